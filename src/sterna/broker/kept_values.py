"""Small values that this node keeps for others, by owner and name: journalled like events of sessions, and given back
after a restart.  They are bounded: the oldest owner's make way, and whoever put one too many hears of it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sterna.broker.session.session_log import SessionLog

BYTES_MAX: Final = 64 << 20
#: Bytes that one costs besides its own.
_OVERHEAD: Final = 64

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(dict[bytes, dict[bytes, bytes]])


class KeptValues:
    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._held: dict[bytes, dict[bytes, bytes]] = {}
        self._bytes = 0
        #: It differs from the last checkpoint.
        self.is_changed = False

    def of(self, owner: bytes) -> dict[bytes, bytes]:
        """In the order in which they came."""
        return dict(self._held.get(owner, {}))

    def owners(self) -> list[bytes]:
        return list(self._held)

    def put(self, log: SessionLog, owner: bytes, name: bytes, value: bytes) -> dict[bytes, list[bytes]]:
        """An empty value is none.  The answer: owners whose values made way, with the names of these."""
        made_way: dict[bytes, list[bytes]] = {}
        if self._held.get(owner, {}).get(name, b"") != value:
            self.replay(owner, name, value)
            log.kept(owner, name, value)
        while self._bytes > self.bytes_max:
            oldest = next(iter(self._held))
            made_way[oldest] = list(self._held[oldest])
            for one in made_way[oldest]:
                self.replay(oldest, one, b"")
                log.kept(oldest, one, b"")
        return made_way

    # -- journal and checkpoint --

    def replay(self, owner: bytes, name: bytes, value: bytes) -> None:
        self.is_changed = True
        held = self._held.setdefault(owner, {})
        before = held.pop(name, b"")
        if before:
            self._bytes -= _cost(owner, name, before)
        if value:
            held[name] = value
            self._bytes += _cost(owner, name, value)
        elif not held:
            del self._held[owner]

    def snapshot(self) -> bytes:
        return _encode(self._held)

    def load(self, blob: bytes) -> None:
        for owner, held in _decoder.decode(blob).items():
            for name, value in held.items():
                self.replay(owner, name, value)


def _cost(owner: bytes, name: bytes, value: bytes) -> int:
    return len(owner) + len(name) + len(value) + _OVERHEAD
