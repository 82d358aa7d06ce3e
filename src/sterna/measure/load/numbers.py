"""Numbers from many sensors: the load that expressions are measured with.

A thousand topics, each message a write's neighbour of messages on other topics, so that no broker can take several as
one.  The loop is closed: no more than a window of messages is on its way, so nothing need be dropped, and
losses are counted all the same.
"""

from __future__ import annotations

import time
from itertools import cycle

from sterna.measure.errors import MeasurementError
from sterna.measure.load import packets
from sterna.measure.load.connections import LoadClients
from sterna.measure.load.saturation import TURN_S_MAX
from sterna.measure.load.shapes import SensorNumbers

TOPICS = 1_000
PUBLISHERS = 20
BLOCK = TOPICS // PUBLISHERS
"""Messages per write: one for each topic of the publisher."""
BLOCKS = 16
"""Different ones of a publisher; then they come again."""
WINDOW = 4_000


def topic(number: int) -> str:
    return f"{number // 32:02}/{number % 32:02}/t"


def blocks(publisher: int) -> list[bytes]:
    mine = range(publisher * BLOCK, (publisher + 1) * BLOCK)
    return [
        b"".join(packets.publish(topic(number), b"%06.2f" % ((number * 7 + turn * 13) % 1000 / 3.7)) for number in mine)
        for turn in range(BLOCKS)
    ]


class SmallPackets:
    """PUBLISH packets of any size below 128 bytes, cut anywhere by the kernel."""

    def __init__(self) -> None:
        self.messages = 0
        self._rest = b""

    def take(self, data: bytes) -> None:
        data = self._rest + data
        place, end, messages = 0, len(data), 0
        try:
            while place < end:
                if data[place] != packets.PUBLISH[0] or data[place + 1] > packets.SMALL:
                    raise MeasurementError(f"unexpected packet with first byte 0x{data[place]:02x}")
                after = place + 2 + data[place + 1]
                if after > end:
                    break
                place = after
                messages += 1
        except IndexError:
            pass  # the length is in the next piece
        self.messages += messages
        self._rest = data[place:]


class NumbersLoad:
    """One subscriber, who gets one message for each published."""

    def __init__(self, clients: LoadClients, load: SensorNumbers) -> None:
        self._clients = clients
        self.published = 0
        self._stream = SmallPackets()
        self._subscriber = clients.connect("subscriber")
        self._subscriber.subscribe((load.topic_filter,), 0)
        clients.watch(self._subscriber, self._read)
        publishers = [(clients.connect(f"publisher-{number}"), cycle(blocks(number))) for number in range(PUBLISHERS)]
        for client, _ in publishers:
            clients.watch_silent(client)
        self._turns = cycle(publishers)

    def _read(self) -> None:
        end = self._subscriber.read(self._clients.view)
        self._stream.take(bytes(self._clients.view[:end]))

    @property
    def delivered(self) -> int:
        return self._stream.messages

    @property
    def owed(self) -> int:
        return self.published - self.delivered

    def run(self, until: float) -> None:
        while time.perf_counter() < until:
            for _ in range(PUBLISHERS):
                if self.owed + BLOCK > WINDOW:
                    break
                client, stock = next(self._turns)
                if not client.blocked:
                    client.send(next(stock))
                    self.published += BLOCK
            self._clients.turn(TURN_S_MAX)

    def drain(self, until: float) -> None:
        while self.owed and time.perf_counter() < until:
            self._clients.turn(TURN_S_MAX)
