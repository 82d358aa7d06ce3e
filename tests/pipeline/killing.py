"""Kills an archive's batches, compactions and erasures with SIGKILL before each change they make to the disk, one after
another, and lets them race.

A program of its own, without Spark, because it forks.  All work is done in its children: the reader of the log bears no
fork once it was used.  It prints how many places it has killed at.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.archives import counted, keep, kept, on_disk
from sterna.pipeline.archive.compaction import compact, in_threads, merge
from sterna.pipeline.archive.erasure import ErasureScope, erase
from sterna.pipeline.archive.files import ArchiveFiles

CHANGES = frozenset({"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "fcntl.flock", "merge"})
BATCHES, RACED, ROWS = 2, 20, 10
OLD_S = 25 * 3600


def killed(work: Callable[[], object], at: int | None = None, after_s: float = 0.0) -> bool:
    """Do the work in a process that is killed before its `at`-th change, or after so long; was it?"""
    child = os.fork()
    if child == 0:
        try:
            if at is not None:
                _kill_myself(at)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
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
        yield merge(one)
        sys.audit("merge")


def done(work: Callable[[], object]) -> None:
    """In a process of its own."""
    assert not killed(work, at=0)


def archive(directory: Path, batches: int) -> ArchiveFiles:
    """Copied, if one was made before: paths in the log are relative."""
    first = directory.with_name("first")
    if not first.exists():
        _fill(ArchiveFiles(first), batches)
    shutil.copytree(first, directory)
    return ArchiveFiles(directory)


def _fill(files: ArchiveFiles, batches: int) -> None:
    def fill() -> None:
        for batch in range(batches):
            keep(files, batch, range(batch * ROWS, (batch + 1) * ROWS))

    done(fill)


def check_merged(files: ArchiveFiles, batches: int) -> None:
    """Started again after a kill, a compaction leaves every message once, and in time nothing else."""
    assert kept(files) == list(range(batches * ROWS))
    compact(files, keep_s=-1)
    assert kept(files) == list(range(batches * ROWS))
    left = on_disk(files) - set(counted(files))
    for path in left:
        os.utime(path, (0, time.time() - OLD_S))
    compact(files, keep_s=-1)
    assert on_disk(files) == set(counted(files))
    assert len(on_disk(files)) == 2


def kill_compactions(directory: Path) -> int:
    at, was_killed = 0, True
    while was_killed:
        at += 1
        files = archive(directory / str(at), BATCHES)
        was_killed = killed(partial(compact, files, keep_s=-1, run=one_by_one), at)
        done(partial(check_merged, files, BATCHES))
    return at - 1


def kill_batches(directory: Path) -> int:
    at, was_killed = 0, True
    while was_killed:
        at += 1
        files = archive(directory / str(at), 2)
        was_killed = killed(partial(keep, files, 2, range(2 * ROWS, 3 * ROWS)), at)

        def check(files: ArchiveFiles = files) -> None:
            assert kept(files) in (list(range(2 * ROWS)), list(range(3 * ROWS)))
            keep(files, 2, range(2 * ROWS, 3 * ROWS))  # Spark runs it again, not knowing how far it came
            check_merged(files, 3)

        done(check)
    return at - 1


def kill_erasures(directory: Path) -> int:
    """Nothing is erased, or all of it; run again, it is gone from the disk as well."""
    at, was_killed = 0, True
    while was_killed:
        at += 1
        files = archive(directory / str(at), BATCHES)
        was_killed = killed(partial(erase, files, ErasureScope("plant/#")), at)

        def check(files: ArchiveFiles = files) -> None:
            assert len(counted(files)) in (2 * BATCHES, BATCHES)
            erase(files, ErasureScope("plant/#"))
            assert {path.parent.name for path in on_disk(files)} == {"first_level=office"}
            assert len(on_disk(files)) == BATCHES
            assert files.last_batch() == BATCHES - 1

        done(check)
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

    def check() -> None:
        compact(files)
        found = kept(files)
        assert found == list(range(len(found)))

    while os.waitpid(keeper, os.WNOHANG)[0] == 0:
        kills += killed(lambda: compact(files, run=in_threads), after_s=dice.uniform(0.0, 0.1))
        done(check)

    def check_all() -> None:
        assert kept(files) == list(range(RACED * ROWS))

    done(check_all)
    return kills


_WORKS = (
    ("compactions", kill_compactions),
    ("batches", kill_batches),
    ("erasures", kill_erasures),
    ("race", race),
)

if __name__ == "__main__":
    os.fsync = lambda fd: None  # what a kill leaves does not depend on it, and it takes most of the time
    place = Path(sys.argv[1])
    for name, work in _WORKS:
        print(name, work(place / name), flush=True)
