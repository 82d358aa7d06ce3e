"""Fences: messages on topics of our own that every attached node sends through its foreign broker and hears there.

A fence that comes back shows that the broker is alive, and that everything sent before it has passed.  A fence of
another node of this network shows that the broker is attached twice, or bridged to one that is.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ROOT: Final = b"sterna/interwork/"
FILTER: Final = ROOT + b"+/+"
#: Fences that may be missing before the broker counts as dead.
MISSING_MAX: Final = 3


class Fence(NamedTuple):
    network: str
    node: str
    life: str
    number: int


def topic_of(network: str, node: str) -> bytes:
    return ROOT + network.encode() + b"/" + node.encode()


def encode(fence: Fence) -> bytes:
    return f"{fence.life} {fence.number}".encode()


def decode(topic: bytes, payload: bytes) -> Fence | None:
    """None for anything else on these topics: clients of the foreign broker can write there, too."""
    parts = topic[len(ROOT) :].split(b"/")
    words = payload.split(b" ")
    if len(parts) != 2 or len(words) != 2 or len(payload) > 100 or not words[1].isdigit():
        return None
    try:
        return Fence(parts[0].decode(), parts[1].decode(), words[0].decode(), int(words[1]))
    except UnicodeDecodeError:
        return None


class Fences:
    """Those of this node, and when others were heard."""

    def __init__(self, network: str, node: str, life: str) -> None:
        self.topic = topic_of(network, node)
        self._me = Fence(network, node, life, 0)
        self._loose = Fence(network, node, f"{life}-0", 0)
        self._number = 0
        #: Number -> when it was sent, and which message was the last before it.
        self._sent: dict[int, tuple[float, int]] = {}
        self.way_s: float | None = None
        """How long the last one took through the broker and back."""
        self.others: dict[str, float] = {}
        """Other nodes of this network -> when their fence came last."""

    def next(self, now: float, serial: int) -> bytes:
        """The payload of the next one, which is sent after message `serial`."""
        self._number += 1
        self._sent[self._number] = now, serial
        return encode(self._me._replace(number=self._number))

    def loose(self, serial: int) -> bytes:
        """The payload of one at QoS 0, sent after message `serial`: it bounds messages at QoS 0, and may be lost."""
        return encode(self._loose._replace(number=serial))

    def loose_serial(self, fence: Fence) -> int | None:
        """The message before it, if it is such a one of ours."""
        return fence.number if fence[:3] == self._loose[:3] else None

    def apart(self) -> bytes:
        """The payload of one that is not awaited."""
        self._number += 1
        return encode(self._me._replace(number=self._number))

    def forget(self) -> None:
        """Those under way will not come back."""
        self._sent.clear()

    @property
    def number(self) -> int:
        """Of the last one."""
        return self._number

    @property
    def missing(self) -> int:
        return len(self._sent)

    def is_mine(self, fence: Fence) -> bool:
        return fence[:3] == self._me[:3]

    def came_back(self, fence: Fence, now: float) -> int | None:
        """The message that was the last before it; None if it is not awaited."""
        sent = self._sent.get(fence.number)
        if sent is None:
            return None
        for number in [number for number in self._sent if number <= fence.number]:
            del self._sent[number]
        self.way_s = now - sent[0]
        return sent[1]

    def heard_other(self, fence: Fence, now: float) -> bool:
        """Is it of another node of this network?"""
        if fence.network != self._me.network or fence.node == self._me.node:
            return False
        self.others[fence.node] = now
        return True

    def recent_others(self, since: float) -> list[str]:
        return sorted(node for node, at in self.others.items() if at >= since)
