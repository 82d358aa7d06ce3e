"""What is claimed is nobody else's, until it is let go or its process is gone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sterna.measure.harness.exclusive import claim

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names without files are Linux's")

HOLDER = """
from sterna.measure.harness.exclusive import claim
held = claim(%r)
print(bool(held), flush=True)
input()
"""


def test_a_name_is_held_by_one_until_let_go() -> None:
    name = f"test-{os.getpid()}"
    held = claim(name)
    assert held is not None
    assert claim(name) is None
    held.close()
    again = claim(name)
    assert again is not None
    again.close()


def test_what_a_killed_process_held_is_free() -> None:
    name = f"test-{os.getpid()}-elsewhere"
    command = [sys.executable, "-c", HOLDER % name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "True\n"
        assert claim(name) is None
        other.kill()
    held = claim(name)
    assert held is not None
    held.close()
