"""What `pip install` gives, of the tracked files alone, in an empty environment outside the checkout.

A wheel has compiled modules; the README's lines are tried as where there is no compiler.

`STERNA_WHEEL=dist` (as `make wheel` sets it) leaves the wheel in that folder.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

from sterna import __version__

from .left_out import leave_out
from .nodes import LiveNode, wait_until

ROOT = Path(__file__).parents[2]
PIP_S = 3600
WAIT_S = 500
INSTALLED_BYTES_MAX = 100_000_000
RESIDENT_BYTES_MAX = 60_000_000
"""Of a plain node with no clients."""
FOR_GOOD = os.environ.get("STERNA_WHEEL")


def run(*words: object, within: Path, extra: Mapping[str, str] | None = None) -> str:
    """The output of a command, run in a folder that is no checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STERNA_", "PYTHON"))}
    command = [str(word) for word in words]
    done = subprocess.run(
        command, cwd=within, env=kept | dict(extra or {}), capture_output=True, text=True, timeout=PIP_S
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def copy_of_the_sources(to: Path) -> Path:
    """As a fresh clone has them: nothing that git does not track."""
    if not (ROOT / ".git").exists():
        leave_out("which files belong to the project only git knows")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to / name)
    return to


def environment(folder: Path) -> Path:
    """An empty virtual environment."""
    venv.create(folder, with_pip=True)
    return folder / "bin"


def installed_bytes(folder: Path) -> int:
    """The size of an installation, without pip and its own packages."""
    packages = [path for site in folder.glob("lib/*/site-packages") for path in site.iterdir()]
    kept = [path for path in packages if not path.name.startswith(("pip", "setuptools", "pkg_resources"))]
    return sum(file.stat().st_size for path in kept for file in (path.rglob("*") if path.is_dir() else [path]))


class InstalledNode(LiveNode):
    """With an admin port, as a node has it by default."""

    def __init__(self, directory: Path, programs: Path, toml: str = '[admin]\nbind = "127.0.0.1:0"\n') -> None:
        self.program = (str(programs / "sterna"),)
        super().__init__(directory, toml, within=("env", "-C", str(directory)))


def works(programs: Path, folder: Path, *, compiled: bool) -> None:
    """A node takes and gives messages, and again when it was stopped and started."""
    installed = installed_bytes(programs.parent)
    assert installed < INSTALLED_BYTES_MAX
    assert run(programs / "sterna", "--version", within=folder) == f"sterna {__version__}\n"
    with InstalledNode(folder / "node", programs) as node:
        where = ("-h", "127.0.0.1", "-p", node.port)
        run(programs / "sterna", "pub", *where, "-t", "a/b", "-m", "hello", "-q", "1", "-r", within=folder)
        heard = run(programs / "sterna", "sub", *where, "-t", "a/#", "-q", "1", "-C", "1", "-v", within=folder)
        assert heard == "a/b hello\n"
        wait_until(node.is_at_rest, "the node is at rest")
        resident = node.resident_bytes
        assert resident < RESIDENT_BYTES_MAX
        assert node.stop() == 0
        node.restart()  # on the journal it wrote
        again = ("-h", "127.0.0.1", "-p", node.port)
        assert heard == run(programs / "sterna", "sub", *again, "-t", "a/#", "-C", "1", "-v", within=folder)
        assert node.stop() == 0
        first, *_ = node.events()
        assert (first["event"], first["compiled"]) == ("node starting", compiled)
        assert [event for event in node.events() if event["level"] not in ("debug", "info")] == []
    # pytest shows it with -rP.
    print(f"installed {installed / 1e6:.1f} MB; a plain node at rest has {resident / 1e6:.1f} MB resident")


@pytest.mark.slow
@pytest.mark.timeout(3 * PIP_S)
def test_a_wheel_installed_elsewhere_runs_a_node_that_takes_and_gives_messages(tmp_path: Path) -> None:
    sources, wheels = copy_of_the_sources(tmp_path / "sources"), Path(FOR_GOOD or tmp_path / "wheels").absolute()
    programs = environment(tmp_path / "installed")
    run(programs / "pip", "wheel", "--no-deps", "--wheel-dir", wheels, sources, within=tmp_path)
    shutil.rmtree(sources)
    [wheel] = wheels.glob(f"sterna-{__version__}-*.whl")  # dist/ may have those of other releases
    run(programs / "pip", "install", wheel, within=tmp_path)
    run(programs / "pip", "check", within=tmp_path)
    works(programs, tmp_path, compiled=shutil.which("cc") is not None)

    with InstalledNode(tmp_path / "looked-at", programs) as node:
        for name in ("app.js", "app.css", "icon.svg"):
            status, shown = node.ask(f"/dashboard/{name}")
            assert (status, bool(shown.strip())) == (200, True)

    assert "Not installed: needs the package" in run(programs / "sterna", "--help", within=tmp_path)
    for extra, words in (("feed", ("readers", "list")), ("experiments", ("experiment", "migration", "--help"))):
        lacking = subprocess.run(
            [programs / "sterna", *words], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert (lacking.returncode, f"pip install '.[{extra}]'" in lacking.stderr) == (1, True)
        assert "Traceback" not in lacking.stderr

    for extra, key in (("feed", 'bind = "127.0.0.1:0"'), ("telemetry", 'endpoint = "http://127.0.0.1:1/v1/traces"')):
        node = InstalledNode(tmp_path / extra, programs, f"[{extra}]\n{key}\n")
        refused = subprocess.run(
            [*node.program, "check-config", str(node.file)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert refused.returncode == 1
        assert f"pip install '.[{extra}]'" in refused.stdout + refused.stderr


@pytest.mark.slow
@pytest.mark.timeout(3 * PIP_S)
def test_the_lines_of_the_readme_install_a_node_from_the_sources(tmp_path: Path) -> None:
    """Without a compiler.  Of Spark, which is large, pip only says that it would install it."""
    sources, programs = copy_of_the_sources(tmp_path / "sources"), environment(tmp_path / "installed")
    plain, spark = re.findall(r"^pip (install .*?) *#", (sources / "README.md").read_text(), re.MULTILINE)
    interpreted = {"STERNA_INTERPRETED": "1"}
    run(programs / "pip", *shlex.split(plain), within=sources, extra=interpreted)
    run(programs / "pip", "check", within=tmp_path)
    works(programs, tmp_path, compiled=False)
    said = run(programs / "pip", *shlex.split(spark), "--dry-run", within=sources, extra=interpreted)
    (would,) = [line for line in said.splitlines() if line.startswith("Would install ")]
    assert {"pyarrow", "pyspark"} <= {package.rpartition("-")[0] for package in would.split()}


@pytest.mark.slow
@pytest.mark.timeout(2 * WAIT_S)
def test_a_module_that_mypyc_refuses_costs_speed_and_not_the_installation(tmp_path: Path) -> None:
    """The real setup.py on modules that are nearly empty; one of them is wrong."""
    shutil.copyfile(ROOT / "setup.py", tmp_path / "setup.py")
    modules = [line.strip(' ",') for line in (ROOT / "setup.py").read_text().splitlines() if '"src/' in line]
    assert len(modules) > 10
    for module in modules:
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module).write_text("number: int = 1\n")
    for folder in {path.parent for path in (tmp_path / "src").rglob("*.py")} | {tmp_path / "src/sterna"}:
        (folder / "__init__.py").touch()
    (tmp_path / modules[0]).write_text("number: int = 'no number'\n")
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": "src"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    if not shutil.which("cc"):
        leave_out("without a C compiler nothing is compiled to begin with")
    assert done.returncode == 0, done.stderr
    assert "Incompatible types" in done.stdout + done.stderr
    assert "the hot modules stay interpreted" in done.stderr
    assert list(tmp_path.rglob("*.so")) == []
