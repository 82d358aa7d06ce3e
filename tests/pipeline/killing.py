"""Kills an archive's batches and compactions with SIGKILL before each change they make to the disk, one after another,
and lets them race.

A program of its own, without Spark, because it forks.  It prints how many places it has killed at.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.archives import keep, kept, on_disk
from sterna.pipeline.archive.compaction import compact, in_threads, merge
from sterna.pipeline.archive.files import ArchiveFiles

CHANGES = frozenset({"os.rename", "os.remove", "os.utime", "os.mkdir", "os.rmdir", "fcntl.flock", "merge"})
BATCHES, RACED, ROWS = 3, 60, 10


def killed(work: Callable[[], object], at: int | None = None, after_s: float = 0.0) -> bool:
    """Do the work in a process that is killed before its `at`-th change, or after so long; was it?"""
    child = os.fork()
    if child == 0:
        if at is not None:
            _kill_myself(at)
        work()
        os._exit(0)
    if at is None:
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, "it failed by itself"
    return os.WIFSIGNALED(status)


def _kill_myself(at: int) -> None:
    left = at

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def one_by_one(merges: Any) -> Any:
    for one in merges:
        sys.audit("merge")
        yield merge(one)  # type: ignore[func-returns-value]
        sys.audit("merge")


def archive(directory: Path, batches: int) -> ArchiveFiles:
    files = ArchiveFiles(directory)
    for batch in range(batches):
        keep(files, batch, range(batch * ROWS, (batch + 1) * ROWS))
    return files


def check_merged(files: ArchiveFiles, batches: int) -> None:
    """Started again after a kill, a compaction leaves every message once, and nothing else."""
    assert kept(files) == list(range(batches * ROWS))
    compact(files, keep_s=-1)
    assert kept(files) == list(range(batches * ROWS))
    assert on_disk(files) == {one.file for one in files.list.load()}
    assert len(on_disk(files)) == 2


def kill_compactions(directory: Path) -> int:
    at, was_killed = 0, True
    while was_killed:
        at += 1
        files = archive(directory / str(at), BATCHES)
        was_killed = killed(partial(compact, files, keep_s=-1, run=one_by_one), at)
        check_merged(files, BATCHES)
    return at - 1


def kill_batches(directory: Path) -> int:
    at, was_killed = 0, True
    while was_killed:
        at += 1
        files = archive(directory / str(at), 2)
        was_killed = killed(partial(keep, files, 2, range(2 * ROWS, 3 * ROWS)), at)
        assert kept(files) in (list(range(2 * ROWS)), list(range(3 * ROWS)))
        keep(files, 2, range(2 * ROWS, 3 * ROWS))  # Spark runs it again, not knowing how far it came
        check_merged(files, 3)
    return at - 1


def race(directory: Path) -> int:
    """One process keeps batch after batch, two merge what there is, and one of these is killed again and again."""
    files, dice = archive(directory, 1), random.Random(7)
    keeper = os.fork()
    if keeper == 0:
        for batch in range(1, RACED):
            keep(files, batch, range(batch * ROWS, (batch + 1) * ROWS))
        os._exit(0)
    kills = 0
    while os.waitpid(keeper, os.WNOHANG)[0] == 0:
        kills += killed(lambda: compact(files, run=in_threads), after_s=dice.uniform(0.0, 0.03))
        compact(files)
        found = kept(files)
        assert found == list(range(len(found)))
    assert kept(files) == list(range(RACED * ROWS))
    return kills


if __name__ == "__main__":
    os.fsync = lambda fd: None  # what a kill leaves does not depend on it, and it takes most of the time
    place = Path(sys.argv[1])
    for name, work in (("compactions", kill_compactions), ("batches", kill_batches), ("race", race)):
        print(name, work(place / name), flush=True)
