"""The most memory that a family of processes had while something ran: JVMs apart from Python."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from sterna.measure.harness import meter

LOOK_S = 0.5


class MemoryWatch:
    """`with MemoryWatch(pids) as watch:`, and then `watch.jvm_mib` and `watch.python_mib`: each at its most."""

    def __init__(self, *pids: int) -> None:
        """Of these processes and their descendants; by default of this one."""
        self._pids = pids or (os.getpid(),)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory watch")
        self.jvm_mib = self.python_mib = 0.0
        #: CPU time of the watching itself, which is nobody else's.
        self.own_ns = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _: BaseException | None, _where: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            jvm = python = 0
            for pid in {member for root in self._pids for member in meter.family(root)}:
                with suppress(OSError):  # it has ended
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                    is_jvm = Path(f"/proc/{pid}/comm").read_text().strip() == "java"
                    jvm, python = jvm + pages * is_jvm, python + pages * (not is_jvm)
            size_mib = os.sysconf("SC_PAGESIZE") / 2**20
            self.jvm_mib = max(self.jvm_mib, jvm * size_mib)
            self.python_mib = max(self.python_mib, python * size_mib)
            self.own_ns = time.thread_time_ns()
            if self._over.wait(LOOK_S):
                return
