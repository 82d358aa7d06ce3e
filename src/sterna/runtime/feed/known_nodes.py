"""The nodes that have had a feed: readers learn which of them cannot be reached now, and notice that data is missing.

The list is kept in one small file, so that a restarted node knows which nodes to expect.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from sterna.runtime.feed.cursors import replace_file

KNOWN_MAX = 4096
REFRESH_S = 3600.0
"""How old what the file says of the times may be."""

log = logging.getLogger(__name__)


class KnownNodes:
    """`look` tells whether there is something to write; times are seconds since 1970."""

    def __init__(self, path: Path | None, forget_s: float) -> None:
        self._path = path
        self._forget_s = forget_s
        #: Name -> (address of its feed, when it was last reachable).
        self._known = _load(path) if path is not None else {}
        self._written = dict(self._known)

    def look(self, reachable: Mapping[str, str], now: float) -> bool:
        """These can be reached; True if the file should be written."""
        for name, address in reachable.items():
            self._known[name] = (address, now)
        gone = [name for name, (_, seen) in self._known.items() if now - seen > self._forget_s]
        oldest = sorted(self._known, key=lambda name: self._known[name][1])
        for name in {*gone, *oldest[: max(0, len(oldest) - KNOWN_MAX)]}:
            del self._known[name]
        return self._path is not None and self._differs()

    def _differs(self) -> bool:
        return self._known.keys() != self._written.keys() or any(
            address != self._written[name][0] or seen - self._written[name][1] > REFRESH_S
            for name, (address, seen) in self._known.items()
        )

    def away(self, reachable: Iterable[str]) -> dict[str, str]:
        """Name -> address of the feed of those that cannot be reached."""
        here = set(reachable)
        return {name: address for name, (address, _) in self._known.items() if name not in here}

    def write(self) -> None:
        """In a thread; if it cannot be written, it is tried again."""
        assert self._path is not None
        known = dict(self._known)
        try:
            replace_file(self._path, json.dumps({"version": 1, "nodes": known}).encode())
        except OSError as error:
            log.warning("other nodes cannot be written down", extra={"file": str(self._path), "reason": str(error)})
        self._written = known


def _load(path: Path) -> dict[str, tuple[str, float]]:
    try:
        found = json.loads(path.read_bytes())["nodes"]
        return {str(name): (str(address), float(seen)) for name, (address, seen) in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        log.warning("which nodes there were cannot be read", extra={"file": str(path), "reason": str(error)})
        return {}
