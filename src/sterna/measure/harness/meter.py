"""CPU time and memory that a broker process used, read from the kernel.

CPU time is the process CPU clock (user and system, all threads, also those that ended), the quantity /proc/PID/stat
shows in hundredths of a second, here in nanoseconds; children are added.  Work the kernel does for a socket while a
process sends is charged to that process, so a broker that makes fewer, larger writes is rightly found cheaper.
"""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from pathlib import Path

from sterna.measure.errors import MeasurementError

_libc = ctypes.CDLL(None, use_errno=True)


def cpu_ns(pid: int) -> int:
    """CPU time used so far by the process and its descendants."""
    return sum(map(own_cpu_ns, family(pid)))


def own_cpu_ns(pid: int) -> int:
    """The same of the process alone."""
    return time.clock_gettime_ns(_cpu_clock(pid))


def spent_ns(pid: int) -> int:
    """CPU time of the process and of its descendants, also of those that have ended and were waited for, to a
    hundredth of a second."""
    return sum(map(_spent_ns, family(pid)))


def ended_ns(pid: int) -> int:
    """CPU time of children that have ended and were waited for, and of theirs."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]
    return (int(user) + int(system)) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def _spent_ns(pid: int) -> int:
    with suppress(MeasurementError, OSError):  # it has ended meanwhile
        return own_cpu_ns(pid) + ended_ns(pid)
    return 0


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
    return sum(_rollup(member, "Rss:") for member in family(pid))


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


def family(pid: int) -> list[int]:
    """The process and its descendants."""
    members = [pid]
    for member in members:
        for children in sorted(Path(f"/proc/{member}/task").glob("*/children")):
            with suppress(OSError):  # a thread that has ended
                members.extend(int(child) for child in children.read_text().split())
    return members


def _rollup(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise MeasurementError(f"/proc/{pid}/smaps_rollup has no {field}")
