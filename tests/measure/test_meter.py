"""The meter reads what the kernel counted."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sterna.measure.errors import MeasurementError
from sterna.measure.harness import meter

BURN = "import time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True)\ninput()"


@contextmanager
def burnt(code: str) -> Iterator[int]:
    """A process that has used its CPU time and now waits."""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == b"done\n"
        yield process.pid
        process.stdin.close()


def test_cpu_time_is_what_proc_stat_shows_but_finer() -> None:
    with burnt(BURN) as pid, open(f"/proc/{pid}/stat") as stat:
        user, system = stat.read().rsplit(")", 1)[1].split()[11:13]
        ticks_ns = (int(user) + int(system)) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        assert meter.cpu_ns(pid) >= 200_000_000
        assert abs(meter.cpu_ns(pid) - ticks_ns) < 50_000_000


def test_children_of_a_broker_are_charged_to_it() -> None:
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])"
    with burnt(parent) as pid:
        assert meter.cpu_ns(pid) >= 200_000_000


def test_children_that_have_ended_are_charged_where_it_is_asked_for() -> None:
    """As a process of Spark that plans a query and ends with it."""
    before, living = meter.spent_ns(os.getpid()), meter.cpu_ns(os.getpid())
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    spent = meter.spent_ns(os.getpid()) - before
    assert spent >= 480_000_000
    assert spent - (meter.cpu_ns(os.getpid()) - living) >= 400_000_000


def test_memory_grows_by_what_was_touched() -> None:
    before = meter.resident_kib(os.getpid())
    with mmap.mmap(-1, 16 * 1024 * 1024) as block:  # bytes could lie where others were before
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1
        assert 15 * 1024 < meter.resident_kib(os.getpid()) - before < 18 * 1024


def test_a_process_that_is_gone_cannot_be_measured() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(MeasurementError, match="gone"):
        meter.cpu_ns(process.pid)
