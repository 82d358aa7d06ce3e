"""Small hosts: a control group for each broker and node that gives it a share of one core.

So five brokers and five nodes fit on two cores, each as slow as on a small machine, and limits are found in real time.
Without the right to make control groups there are none, and `can_confine` says so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PERIOD_US_MIN = 10_000
QUOTA_US_MIN = 1000
"""The kernel takes no less, so a smaller share needs a longer period."""
ROOT_V1 = Path("/sys/fs/cgroup/cpu")
ROOT_V2 = Path("/sys/fs/cgroup")
GONE_S = 5.0


def can_confine() -> bool:
    return _root() is not None


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
    root = _root()
    if root is None:
        yield
        return
    group = root / f"sterna-ildm-{os.getpid()}-{name}"
    group.mkdir()
    try:
        period_us = max(PERIOD_US_MIN, int(QUOTA_US_MIN / share))
        quota_us = max(QUOTA_US_MIN, int(share * period_us))
        if root == ROOT_V1:
            (group / "cpu.cfs_period_us").write_text(str(period_us))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {period_us}")
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        _release(group, root)


def _release(group: Path, root: Path) -> None:
    """Let what still runs end at full speed."""
    deadline = time.monotonic() + GONE_S
    while group.exists() and time.monotonic() < deadline:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (root / "cgroup.procs").write_text(pid)
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.02)
