"""Blocks that make services of nodes: their commands run below a folder that stands for the root of the file system.

systemd enables the units there without starting them: it is not the first process where tests run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from live.left_out import leave_out
from sterna.runtime.config.loading import load

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = ("/usr/bin/python3 -m venv ", "/opt/sterna/bin/pip ")
"""Commands that tests/live/test_wheel.py runs with folders of its own."""
WANTED = "etc/systemd/system/multi-user.target.wants"


@pytest.fixture(autouse=True)
def systemd() -> None:
    if shutil.which("systemctl") is None:
        leave_out("there is no systemctl; as root: apt-get install systemd")


def enabled(page: str, names: str, system: Path) -> set[str]:
    """The units that are to start with the system once the commands of a block have run."""
    (text,) = [body for kind, body in FENCE.findall((ROOT / page).read_text()) if kind == "sh" and names in body]
    for folder in ("etc/systemd/system", "usr/local/bin"):
        (system / folder).mkdir(parents=True)
    for line in text.splitlines():
        if not line.startswith((*ELSEWHERE, "systemctl daemon-reload")):
            run(line, system)
    return {file.name for file in (system / WANTED).iterdir()}


def run(line: str, system: Path) -> None:
    here = re.sub(r" /(etc|usr|opt)/", rf" {system}/\1/", line).replace(" --now", "")
    here = here.replace("systemctl ", f"systemctl --root={system} ")
    done = subprocess.run(["sh", "-c", here], cwd=system, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{here}\n{done.stderr}"


def test_a_node_becomes_a_service(tmp_path: Path) -> None:
    (tmp_path / "contrib").symlink_to(ROOT / "contrib")
    bodies = [body for kind, body in FENCE.findall((ROOT / "docs/operating.md").read_text()) if kind == "toml"]
    (toml,) = [body for body in bodies if 'data = "/var/lib/sterna"' in body]
    (tmp_path / "node.toml").write_text(toml)
    assert enabled("docs/operating.md", "/opt/sterna/bin/pip install .", tmp_path) == {"sterna-node.service"}
    assert (tmp_path / "usr/local/bin/sterna").readlink() == tmp_path / "opt/sterna/bin/sterna"
    unit = (tmp_path / WANTED / "sterna-node.service").readlink()
    (file,) = re.findall(r"^ExecStart=.* --config (\S+)$", (tmp_path / unit.relative_to("/")).read_text(), re.MULTILINE)
    assert load(tmp_path / file.lstrip("/"), {}).node.data == Path("/var/lib/sterna")


def test_workers_and_coordinators_become_services(tmp_path: Path) -> None:
    (tmp_path / "contrib").symlink_to(ROOT / "contrib")
    found = enabled("contrib/README.md", "install -m 644 contrib/systemd/*.service", tmp_path)
    assert found == {"sterna-worker.service", "sterna-coordinator.service"}
    assert (tmp_path / "etc/systemd/system/sterna-node@.service").is_file()
