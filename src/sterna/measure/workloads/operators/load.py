"""Numbers from many sensors: what expressions are measured with, a process of its own that prints one line of JSON.

A thousand topics, each message a write's neighbour of messages on other topics, so that no broker can take several as
one.  The loop is closed: no more than a window of messages is on its way, so nothing need be dropped, and whatever is
lost all the same is counted.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from itertools import cycle

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.measurement import Measurement
from sterna.measure.load import packets
from sterna.measure.load.connections import Client, Clients
from sterna.measure.load.generator import measure_load
from sterna.measure.load.saturation import TURN_S_MAX

TOPICS = 1_000
PUBLISHERS = 20
BLOCK = TOPICS // PUBLISHERS
"""Messages per write: one for each topic of the publisher."""
BLOCKS = 16
"""Different ones of a publisher; then they come again."""
WINDOW = 4_000
EXPRESSIONS = 1_000
PER_CLIENT = 100
"""As many expressions as a client may have."""


def topic(number: int) -> str:
    return f"{number // 32:02}/{number % 32:02}/t"


def blocks(publisher: int) -> list[bytes]:
    mine = range(publisher * BLOCK, (publisher + 1) * BLOCK)
    return [
        b"".join(packets.publish(topic(number), b"%06.2f" % ((number * 7 + turn * 13) % 1000 / 3.7)) for number in mine)
        for turn in range(BLOCKS)
    ]


class Stream:
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


class Numbers:
    """The load: one subscriber to `topic_filter`, who gets one message for each published."""

    def __init__(self, clients: Clients, topic_filter: str) -> None:
        self._clients = clients
        self.published = 0
        self._stream = Stream()
        self._subscriber = clients.connect("subscriber")
        self._subscriber.subscribe((topic_filter,), 0)
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


def bystanders(port: int) -> list[Client]:
    """Clients with a thousand expressions between them, none of which takes any message of the load."""
    clients = []
    for start in range(0, EXPRESSIONS, PER_CLIENT):
        client = Client(port, f"bystander-{start}", [])
        client.introduce(clean=True)
        client.subscribe([f"$AVG/elsewhere/{number}/+" for number in range(start, start + PER_CLIENT)], 0)
        clients.append(client)
    return clients


def measure(
    port: int, pid: int, topic_filter: str, warm_up_s: float, measure_s: float, rounds: int
) -> list[Measurement]:
    """Round after round; if `rounds` is more than one, every other one with bystanders."""
    clients = Clients(port)
    try:
        load = Numbers(clients, topic_filter)
        gc.collect()
        gc.freeze()
        gc.disable()
        found = []
        for number in range(rounds):
            others = bystanders(port) if number % 2 else []
            found.append(measure_load(load, pid, warm_up_s, measure_s))
            for other in others:
                other.socket.close()
        return found
    finally:
        clients.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sterna.measure.workloads.operators.load", description=__doc__)
    parser.add_argument("filter")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--broker-pid", type=int, required=True)
    parser.add_argument("--warm-up", type=float, required=True, help="seconds")
    parser.add_argument("--measure", type=float, required=True, help="seconds")
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    try:
        found = measure(given.port, given.broker_pid, given.filter, given.warm_up, given.measure, given.rounds)
    except (MeasurementError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
