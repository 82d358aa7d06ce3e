"""The account of one network: every byte that passed between its brokers, by what it was for.

Publish forwarding is counted as the paper counted it: whole packets, headers included, that carry messages of clients.
The kinds are counted by the byte, headers apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sterna.measure.wire.conversations import WirePiece

HEADERS = "packet headers"
REPEATED = "sent again by TCP"
DATAGRAMS = "datagrams of the overlay"


@dataclass(slots=True)
class ByteAccount:
    packets: int = 0
    total: int = 0
    publish_packets: int = 0
    publish: int = 0
    """Bytes of packets that carry messages of clients."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Bytes by kind; with headers and what is not understood yet they make up the total."""
    publication_bytes: int = 0
    """Of the messages alone: PUBLISH packets, or frames with messages."""
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def control(self) -> int:
        """Everything that is not publish forwarding."""
        return self.total - self.publish

    def packet(self, size: int, payload: int, pieces: list[WirePiece]) -> None:
        """One packet passed, and these pieces were complete with it."""
        self.packets += 1
        self.total += size
        self._add(HEADERS, size - payload)
        for piece in pieces:
            self._add(piece.kind, piece.size)
            if piece.publication:
                self.publication_bytes += piece.size
        if any(piece.publication for piece in pieces):
            self.publish_packets += 1
            self.publish += size

    def repeated(self, size: int) -> None:
        self.packets += 1
        self.total += size
        self._add(REPEATED, size)

    def datagram(self, size: int) -> None:
        self.packets += 1
        self.total += size
        self._add(DATAGRAMS, size)

    def _add(self, kind: str, size: int) -> None:
        if size:
            self.kinds[kind] = self.kinds.get(kind, 0) + size
            self.counts[kind] = self.counts.get(kind, 0) + 1
