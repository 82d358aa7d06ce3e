"""Neighbours that said what makes no sense: their links are ended, and taken up again after a pause that grows."""

from __future__ import annotations

from sterna.vocabulary.bounds import NODES_MAX

#: After the first nonsense; each further one doubles the pause ...
PAUSE_S = 1.0
#: ... up to this.
PAUSE_MAX_S = 300.0
#: One that has made sense for so long after its pause is forgiven.
FORGIVEN_S = 600.0


class Quarantine:
    def __init__(self) -> None:
        #: Peer -> its last pause, and until when that is.
        self._peers: dict[str, tuple[float, float]] = {}

    def offended(self, peer: str, now: float) -> float:
        """The pause, in seconds."""
        before, until = self._peers.pop(peer, (0.0, now))
        pause_s = PAUSE_S if not before or now - until > FORGIVEN_S else min(2 * before, PAUSE_MAX_S)
        self._peers[peer] = (pause_s, now + pause_s)
        if len(self._peers) > NODES_MAX:
            del self._peers[next(iter(self._peers))]
        return pause_s

    def left_s(self, peer: str, now: float) -> float:
        """Of its pause; 0 if there is none."""
        _, until = self._peers.get(peer, (0.0, now))
        return max(0.0, until - now)
