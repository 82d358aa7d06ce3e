"""CPU time and memory that a broker process used, read from the kernel.

CPU time is the process CPU clock (user and system, all threads, also those that ended), the quantity /proc/PID/stat
shows in hundredths of a second, here in nanoseconds; children are added.  Work the kernel does for a socket while a
process sends is charged to that process, so a broker that makes fewer, larger writes is rightly found cheaper.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

from sterna.measure.errors import MeasurementError

_libc = ctypes.CDLL(None, use_errno=True)


def cpu_ns(pid: int) -> int:
    """CPU time used so far by the process and its descendants."""
    return sum(time.clock_gettime_ns(_cpu_clock(member)) for member in _family(pid))


def waited_ns(pid: int) -> int:
    """Time the process (its first thread) was ready to run while something else had its core."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])


def core_busy_ns(pid: int) -> int:
    """Time the one core the process is kept on has spent on processes, and time the machine beneath took away from it;
    0 if it is free to move."""
    cores = os.sched_getaffinity(pid)
    if len(cores) > 1:
        return 0
    line = f"cpu{next(iter(cores))} "
    counted = next(one for one in Path("/proc/stat").read_text().splitlines() if one.startswith(line))
    user, nice, system, _, _, _, _, stolen = map(int, counted.split()[1:9])
    return (user + nice + system + stolen) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def resident_kib(pid: int) -> int:
    """Resident memory.  RSS rather than PSS: PSS moves when an unrelated process maps the same library."""
    return sum(_rollup(member, "Rss:") for member in _family(pid))


def pin(pid: int, core: int | None) -> None:
    """Keep a process on one core; None leaves it free."""
    if core is not None:
        os.sched_setaffinity(pid, {core})


def two_cores() -> tuple[int, int] | tuple[None, None]:
    """One core for the broker, one for the generator, if there are two."""
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[1]) if len(cores) >= 2 else (None, None)


def _cpu_clock(pid: int) -> int:
    clock = ctypes.c_int()
    if _libc.clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise MeasurementError(f"process {pid} is gone; its CPU time cannot be read")
    return clock.value


def _family(pid: int) -> list[int]:
    members = [pid]
    for member in members:
        for children in sorted(Path(f"/proc/{member}/task").glob("*/children")):
            members.extend(int(child) for child in children.read_text().split())
    return members


def _rollup(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise MeasurementError(f"/proc/{pid}/smaps_rollup has no {field}")
