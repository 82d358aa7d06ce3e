"""Small hosts: a control group for each broker and node that gives it a share of one core.

So five brokers and five nodes fit on two cores, each as slow as on a small machine, and limits are found in real time.
A small host gets its share, and the load generator its time, before other work on the machine.  Without the right to
make control groups there are none, and `can_confine` says so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PERIOD_US_MIN = 10_000
QUOTA_US_MIN = 1000
"""The kernel takes no less, so a smaller share needs a longer period."""
ROOT_V1 = Path("/sys/fs/cgroup/cpu")
ROOT_V2 = Path("/sys/fs/cgroup")
SHARES_V1 = 262_144
WEIGHT_V2 = 10_000
"""The most there is: a process without a group has 1024 in the one and 100 in the other."""
GONE_S = 5.0


def can_confine() -> bool:
    return _root() is not None


def period_s(share: float) -> float:
    """A host with this share stands still for at most so long."""
    return max(PERIOD_US_MIN, int(QUOTA_US_MIN / share)) / 1e6


def _root() -> Path | None:
    if (ROOT_V1 / "cpu.cfs_quota_us").exists():
        return ROOT_V1 if os.access(ROOT_V1, os.W_OK) else None
    control = ROOT_V2 / "cgroup.subtree_control"
    if control.exists() and os.access(control, os.W_OK) and "cpu" in control.read_text().split():
        return ROOT_V2
    return None


@contextmanager
def confined(name: str, pids: Sequence[int], share: float) -> Iterator[None]:
    """These processes, and those they start, get this share of a core together; without the right to, all of it."""
    period_us = round(period_s(share) * 1e6)
    quota_us = max(QUOTA_US_MIN, int(share * period_us))
    v1 = {"cpu.cfs_period_us": period_us, "cpu.cfs_quota_us": quota_us, "cpu.shares": SHARES_V1}
    with _group(name, pids, v1, {"cpu.max": f"{quota_us} {period_us}", "cpu.weight": WEIGHT_V2}):
        yield


@contextmanager
def preferred(name: str, pids: Sequence[int]) -> Iterator[None]:
    """These processes, and those they start, get their time before others, as far as we have the right to."""
    with _group(name, pids, {"cpu.shares": SHARES_V1}, {"cpu.weight": WEIGHT_V2}):
        yield


@contextmanager
def _group(name: str, pids: Sequence[int], v1: Mapping[str, object], v2: Mapping[str, object]) -> Iterator[None]:
    root = _root()
    if root is None:
        yield
        return
    group = root / f"sterna-ildm-{os.getpid()}-{name}"
    group.mkdir()
    try:
        for file, value in (v1 if root == ROOT_V1 else v2).items():
            (group / file).write_text(str(value))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        _release(group, root)


def _release(group: Path, root: Path) -> None:
    """Let the processes that still run end at full speed."""
    deadline = time.monotonic() + GONE_S
    while group.exists() and time.monotonic() < deadline:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (root / "cgroup.procs").write_text(pid)
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.02)
