"""Who may import whom, and that the cores know neither clock nor socket: the contracts of pyproject.toml, as a test."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_import_respects_the_layers() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 broken" in run.stdout


def test_the_contracts_name_every_package() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    packages = {path.parent.name for path in (ROOT / "src/sterna").glob("*/__init__.py")}
    assert packages == {package.strip() for layer in layers for package in layer.split("|")}
    pure = next(contract["source_modules"] for contract in contracts if contract["type"] == "forbidden")
    assert {module.removeprefix("sterna.") for module in pure} == packages - {
        "runtime",
        "measure",
        "pipeline",
        "cli",
    }
