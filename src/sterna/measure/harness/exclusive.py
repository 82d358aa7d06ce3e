"""Names only one process of the machine holds at a time: for what must not be used twice, and cannot tell by itself."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def claim(name: str) -> socket.socket | None:
    """Held until it is closed or this process ends, however it ends; none if somebody holds it.  Linux only: elsewhere
    sockets have no names that are not files."""
    with ExitStack() as unless_taken:
        held = unless_taken.enter_context(socket.socket(socket.AF_UNIX))
        try:
            held.bind(f"\0sterna-{name}")
        except OSError:
            return None
        unless_taken.pop_all()
        return held
