"""What `pip install` gives: a wheel built from the tracked files alone, in an empty environment outside the checkout.

`STERNA_WHEEL=dist` (as `make wheel` sets it) has the hot modules compiled, which takes a minute or two, and leaves the
wheel in that folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

from .nodes import LiveNode

ROOT = Path(__file__).parents[2]
PIP_S = 3600
WAIT_S = 500
FOR_GOOD = os.environ.get("STERNA_WHEEL")


def run(*words: object, within: Path, extra: Mapping[str, str] | None = None) -> str:
    """What a command prints, run in a folder that is no checkout."""
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
        pytest.skip("which files belong to the project only git knows")
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


class InstalledNode(LiveNode):
    def __init__(self, directory: Path, programs: Path, toml: str = "") -> None:
        self.program = (str(programs / "sterna"),)
        super().__init__(directory, toml, within=("env", "-C", str(directory)))


@pytest.mark.slow
@pytest.mark.timeout(3 * PIP_S)
def test_a_wheel_installed_elsewhere_runs_a_node_that_takes_and_gives_messages(tmp_path: Path) -> None:
    sources, wheels = copy_of_the_sources(tmp_path / "sources"), Path(FOR_GOOD or tmp_path / "wheels").absolute()
    programs = environment(tmp_path / "installed")
    how = {} if FOR_GOOD else {"STERNA_INTERPRETED": "1"}
    run(programs / "pip", "wheel", "--no-deps", "--wheel-dir", wheels, sources, within=tmp_path, extra=how)
    shutil.rmtree(sources)
    [wheel] = wheels.glob("sterna-*.whl")
    run(programs / "pip", "install", wheel, within=tmp_path)
    run(programs / "pip", "check", within=tmp_path)
    assert run(programs / "sterna", "--version", within=tmp_path) == f"sterna {wheel.name.split('-')[1]}\n"
    with InstalledNode(tmp_path / "node", programs) as node:
        where = ("-h", "127.0.0.1", "-p", node.port)
        run(programs / "sterna", "pub", *where, "-t", "a/b", "-m", "hello", "-q", "1", "-r", within=tmp_path)
        heard = run(programs / "sterna", "sub", *where, "-t", "a/#", "-q", "1", "-C", "1", "-v", within=tmp_path)
        assert heard == "a/b hello\n"
        assert node.stop() == 0
        node.restart()  # on the journal it wrote
        again = ("-h", "127.0.0.1", "-p", node.port)
        assert heard == run(programs / "sterna", "sub", *again, "-t", "a/#", "-C", "1", "-v", within=tmp_path)
        assert node.stop() == 0
        starting, _ = node.events("node starting")
        assert starting["compiled"] is (FOR_GOOD is not None and shutil.which("cc") is not None)
        assert [event for event in node.events() if event["level"] not in ("debug", "info")] == []

    feed = InstalledNode(tmp_path / "feed", programs, '[feed]\nbind = "127.0.0.1:0"\n')
    refused = subprocess.run(
        [*feed.program, "check-config", str(feed.file)], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S
    )
    assert refused.returncode == 1
    assert "pip install 'sterna[feed]'" in refused.stdout + refused.stderr


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
        pytest.skip("without a C compiler nothing is compiled to begin with")
    assert done.returncode == 0, done.stderr
    assert "Incompatible types" in done.stdout + done.stderr
    assert "the hot modules stay interpreted" in done.stderr
    assert list(tmp_path.rglob("*.so")) == []
