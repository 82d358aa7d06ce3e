"""The unit files for systemd are such that systemd takes them, and stay confined."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from live.left_out import leave_out

UNITS = sorted((Path(__file__).parents[2] / "contrib" / "systemd").glob("*.service"))
EXPOSED_MAX = 2.0
"""By systemd's own measure, from 0 (nothing) to 10."""


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_a_unit_and_finds_it_confined(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        leave_out("there is no systemd-analyze; as root: apt-get install systemd")
    installed = tmp_path / unit.name
    installed.write_text(unit.read_text().replace("/usr/bin/env sterna", "/bin/true"))
    run = subprocess.run([analyze, "verify", str(installed)], capture_output=True, text=True, timeout=240)
    assert (run.returncode, run.stderr) == (0, "")
    words = [analyze, "security", "--offline=true", str(installed)]
    exposure = subprocess.run(words, capture_output=True, text=True, timeout=240).stdout.splitlines()[-1]
    assert float(exposure.partition(":")[2].split()[0]) < EXPOSED_MAX, exposure
