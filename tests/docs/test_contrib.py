"""Files in contrib/: the commands exist, and the configurations of the Kubernetes example are valid."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from live.left_out import leave_out
from sterna import __version__
from sterna.broker.access.passwords import hash_password
from sterna.cli.main import COMMANDS
from sterna.runtime.adaptation.coordinator_settings import load_coordinator
from sterna.runtime.adaptation.worker_settings import load_worker
from sterna.runtime.config.loading import load

CONTRIB = Path(__file__).parents[2] / "contrib"
UNITS = sorted((CONTRIB / "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_runs_a_command_that_exists(unit: Path) -> None:
    (command,) = re.findall(r"^ExecStart=/usr/bin/env sterna (\S+) --config ", unit.read_text(), re.MULTILINE)
    assert command in COMMANDS
    assert COMMANDS[command].is_long_lived


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_no_fault_in_a_unit(unit: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        leave_out("there is no systemd-analyze; as root: apt-get install systemd")
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.slow
def test_the_linters_of_make_contrib_find_no_fault() -> None:
    tools = CONTRIB.parent / ".venv/contrib"
    if not (tools / "installed").exists():
        leave_out("the linters of contrib/ are not installed: make contrib")
    done = subprocess.run(
        [tools / "bin/python", CONTRIB.parent / "scripts/check-contrib"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


HARDENING = re.compile(
    r"^(?:Protect|Private|Restrict|Lock|NoNew|Capability|Ambient|SystemCall|UMask)\w*=.*$", re.MULTILINE
)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_every_unit_is_confined_in_the_same_way(unit: Path) -> None:
    wanted = HARDENING.findall((CONTRIB / "systemd/sterna-node.service").read_text())
    assert len(wanted) == 24
    assert HARDENING.findall(unit.read_text()) == wanted


def test_processes_that_tell_systemd_how_they_are_are_watched() -> None:
    """Nodes and gateways do."""
    watched = {unit.name for unit in UNITS if "\nType=notify\n" in unit.read_text()}
    assert watched == {"sterna-node.service", "sterna-node@.service", "sterna-gateway.service"}
    for unit in UNITS:
        assert ("\nWatchdogSec=" in unit.read_text()) == (unit.name in watched)


def test_a_worker_leaves_its_node_and_nobody_kills_one() -> None:
    text = {unit.name: unit.read_text() for unit in UNITS}
    assert "\nKillMode=process\n" in text["sterna-worker.service"]
    assert "\nTimeoutStopSec=infinity\n" in text["sterna-node@.service"]
    assert "CPU_WEIGHT=0" in text["sterna-node@.service"]


def test_the_configurations_of_the_kubernetes_example_are_valid(tmp_path: Path) -> None:
    text = (CONTRIB / "kubernetes" / "adaptation.yaml").read_text()
    files = re.findall(r"^  ([\w-]+\.toml): \|\n((?:    .*\n)+)", text, re.MULTILINE)
    (tmp_path / "network.key").write_text("k" * 32)
    (tmp_path / "password").write_text("secret")
    (tmp_path / "passwords").write_text(hash_password("worker", "secret", random_bytes=os.urandom) + "\n")
    for name, block in files:
        toml = re.sub(r"/(?:secret|config)/", f"{tmp_path}/", dedent(block))
        (tmp_path / name).write_text(toml.replace("/data/", f"{tmp_path}/"))
    assert load(tmp_path / "node.toml", {}).network is not None
    assert load(tmp_path / "edge-node.toml", {}).network is not None
    variables = dict(re.findall(r"name: (STERNA_WORKER_\w+), value: (\S+) ", text))
    told = {"$(POD_IP)": "10.0.0.1", "$(HOST_IP)": "10.0.0.2", "/config": str(tmp_path), '"': ""}
    here = {name: _with(value, told) for name, value in variables.items()}
    worker = load_worker(tmp_path / "worker.toml", here).worker
    assert (worker.admin, worker.clients) == ("127.0.0.1:9883", "10.0.0.2:1883")
    assert load_coordinator(tmp_path / "coordinator.toml", {}).coordinator.act


def test_images_and_the_chart_are_of_this_version() -> None:
    for file in ("helm/sterna/Chart.yaml", "helm/sterna/values.yaml", "README.md"):
        named = re.findall(r"(?:[vV]ersion: |sterna:)\"?(\d+\.\d+\.\d+)", (CONTRIB / file).read_text())
        assert named
        assert set(named) == {__version__}, file


def _with(text: str, told: dict[str, str]) -> str:
    for mark, value in told.items():
        text = text.replace(mark, value)
    return text
