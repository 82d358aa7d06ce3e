"""`make compiled`: hot modules that do not compile are an error wherever they could, and no hindrance anywhere else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout whose hot modules hold a line each."""
    for name in ("Makefile", "setup.py"):
        shutil.copy(TOP / name, tmp_path)
    listed = (TOP / "setup.py").read_text().partition("HOT_MODULES = [\n")[2].partition("]")[0]
    for line in listed.splitlines():
        module = tmp_path / line.strip(' ",')
        module.parent.mkdir(parents=True, exist_ok=True)
        (module.parent / "__init__.py").touch()
        module.write_text("LINES: int = 1\n")
    (tmp_path / "src/sterna/__init__.py").touch()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    python = tmp_path / ".venv/bin/python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (tmp_path / ".venv/installed").touch()
    return tmp_path


def make_compiled(tree: Path, path: str) -> subprocess.CompletedProcess[str]:
    words = [str(shutil.which("make")), "--old-file", ".venv/installed", "compiled"]
    return subprocess.run(
        words, cwd=tree, env={"PATH": path, "HOME": str(tree)}, capture_output=True, text=True, timeout=250, check=False
    )


@pytest.mark.skipif(not shutil.which("cc"), reason="without a C compiler nothing is compiled")
@pytest.mark.skipif(
    not Path(sysconfig.get_paths()["include"], "Python.h").exists(), reason="without headers nothing is compiled"
)
def test_a_module_that_mypyc_refuses_is_an_error(tree: Path) -> None:
    (tree / "src/sterna/mqtt/topics.py").write_text('LINES: int = "one"\n')
    run = make_compiled(tree, os.environ["PATH"])
    assert run.returncode != 0
    assert "The hot modules do not compile" in run.stderr
    assert "topics.py:1: error: Incompatible types" in run.stderr
    assert not (tree / ".venv/compiled").exists()


def test_without_a_compiler_the_modules_stay_interpreted(tree: Path, tmp_path: Path) -> None:
    (tree / "src/sterna/mqtt/topics.py").write_text('LINES: int = "one"\n')
    programs = tmp_path / "programs"
    programs.mkdir()
    for needed in ("sh", "expr", "sed", "find", "grep", "touch", "tail", "rm"):
        found = shutil.which(needed)
        assert found is not None
        (programs / needed).symlink_to(found)
    run = make_compiled(tree, str(programs))
    assert run.returncode == 0, run.stderr
    assert "running interpreted" in run.stdout
