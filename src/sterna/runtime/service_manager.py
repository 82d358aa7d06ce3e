"""Word to the service manager that started this process: ready, reloading, stopping, alive (systemd's notify protocol).

Without `NOTIFY_SOCKET` in the environment nothing is said.  The variables are taken out of the environment, so that
processes started from here do not speak for this one.  The watchdog is answered by the event loop: a process whose loop
hangs falls silent, and systemd starts it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import MutableMapping

log = logging.getLogger(__name__)


class ServiceManager:
    def __init__(self, environ: MutableMapping[str, str] | None = None) -> None:
        variables = os.environ if environ is None else environ
        path = variables.pop("NOTIFY_SOCKET", "")
        watchdog_us, meant = variables.pop("WATCHDOG_USEC", ""), variables.pop("WATCHDOG_PID", "")
        self._socket = _connected(path) if path else None
        is_watched = watchdog_us.isdigit() and meant in ("", str(os.getpid()))
        #: Half the time after which systemd would lose patience; 0 without a watchdog.
        self._alive_every_s = int(watchdog_us) / 2e6 if is_watched else 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ready(self) -> None:
        self._say("READY=1")
        if self._alive_every_s and self._timer is None and self._socket is not None:
            self._alive()

    def reloading(self) -> None:
        """`ready` ends it."""
        self._say(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._say("STOPPING=1")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _alive(self) -> None:
        self._say("WATCHDOG=1")
        self._timer = asyncio.get_running_loop().call_later(self._alive_every_s, self._alive)

    def _say(self, words: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send(words.encode())
        except OSError as error:
            log.warning("the service manager does not hear us", extra={"reason": str(error)})


def _connected(path: str) -> socket.socket | None:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        end.connect("\0" + path[1:] if path.startswith("@") else path)
    except OSError as error:
        end.close()
        log.warning("the service manager cannot be reached", extra={"address": path, "reason": str(error)})
        return None
    return end
