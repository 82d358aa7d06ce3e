"""`sterna pipeline ...` in a process of its own: watched while it runs, and killed with its JVM in the end.

What it says goes to a file: nobody need read it for the job to go on, and a failure tells the last of it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import psutil

from live.nodes import wait_until

LINES = 6
_SPARKS = re.compile(r"its log: (\S+)\)")


class Driver:
    """`with Driver(words, tmp_path / "log") as driver: driver.wait_until(...)`."""

    def __init__(self, words: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(words, start_new_session=True, stdout=out, stderr=out, env=environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """With its JVM; a second time does nothing."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Neither the job nor its JVM does anything meanwhile."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            wait_until(self._is_stopped, "all of the job has stopped")
            yield
        finally:
            if self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGCONT)

    def _is_stopped(self) -> bool:
        """Python's workers are in process groups of their own, and go on."""
        leader = psutil.Process(self._process.pid)
        group = [one for one in (leader, *leader.children(recursive=True)) if os.getpgid(one.pid) == leader.pid]
        return all(one.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE) for one in group)

    def wait_until(
        self,
        holds: Callable[[], object],
        what: str | Callable[[], str],
        within_s: float,
        meanwhile: Callable[[], None] = lambda: time.sleep(0.01),
    ) -> None:
        """Come back as soon as it holds; fail saying what was waited for, and what the job said last."""
        deadline = time.monotonic() + within_s
        while not holds():
            is_over = self._process.poll() is not None
            if is_over or time.monotonic() > deadline:
                why = "the job ended by itself" if is_over else f"waited {within_s:g} s in vain"
                raise AssertionError(f"{self.last_words()}\n{why}: {what if isinstance(what, str) else what()}")
            meanwhile()

    def is_done(self) -> bool:
        """It has ended by itself, and well."""
        return self._process.poll() == 0

    def last_words(self) -> str:
        """Of Spark, then of the job."""
        said = self._log.read_text(errors="replace")
        found = _SPARKS.findall(said)
        sparks = Path(found[-1]).read_text(errors="replace") if found and Path(found[-1]).exists() else ""
        return "\n".join(sparks.splitlines()[-LINES:] + said.splitlines()[-LINES:])
