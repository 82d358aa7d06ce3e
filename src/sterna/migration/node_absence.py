"""Nodes that cannot be reached, and for how long: their clients get new sessions after `owner_absent_s`."""

from __future__ import annotations

import math

from sterna.migration.move_host import MoveHost


class NodeAbsence:
    def __init__(self, host: MoveHost) -> None:
        self._host = host
        #: Nodes that cannot be reached any more -> since when; others were not there when this one came.
        self._lost_at: dict[str, float] = {}
        self._started_at = host.now

    def lost(self, origin: str) -> None:
        self._lost_at[origin] = self._host.now

    def found(self, origin: str) -> None:
        self._lost_at.pop(origin, None)

    def left_s(self, owner: str) -> float:
        """How long a node that cannot be reached has to stay away before its clients get new sessions; infinity if
        they never do."""
        settings = self._host.settings
        if settings.owner_unreachable == "refuse":
            return math.inf
        return self._lost_at.get(owner, self._started_at) + settings.owner_absent_s - self._host.now

    def missing(self) -> list[str]:
        """Nodes that may give our clients new sessions, because neither of us can reach the other."""
        host = self._host
        if host.settings.owner_unreachable == "refuse":
            return []
        link_to = host.router.link_to
        return [origin for origin in host.router.streams.vector if origin != host.node and link_to(origin) is None]
