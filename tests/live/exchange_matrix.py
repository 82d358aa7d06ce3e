"""Every ordered pair of places x QoS x messages, wills, retained messages and wildcards: once each, in order."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from .clients import Paho, Will
from .conftest import Join
from .interworking_networks import wait_for_fences
from .nodes import LiveNode, wait_until

MESSAGES = 10
RETAINED_S = 120.0


def numbers_of(client: Paho) -> dict[str, list[int]]:
    """Messages that have come, by topic."""
    found: dict[str, list[int]] = defaultdict(list)
    for message in client.messages:
        found[message.topic].append(int(message.payload))
    return found


class Place(NamedTuple):
    """Where clients connect, and as whom."""

    port: int
    account: dict[str, str]


class ExchangeMatrix:
    """A client at each place; each of them hears from all."""

    def __init__(self, join: Join, places: dict[str, Place], unshown: Collection[str] = ()) -> None:
        """`unshown`: places at brokers that tell nobody what they retain; elsewhere their values may be missing."""
        self._unshown = unshown
        self._join = join
        self._places = places
        self._clients = {name: self._new(name) for name in places}
        for client in self._clients.values():
            client.subscribe("m/#", 2)
            client.subscribe("w/+/+", 2)

    def _new(self, name: str, **settings: Any) -> Paho:
        return self._join(self._places[name].port, version=4, **self._places[name].account, **settings)

    def run(self, nodes: Iterable[LiveNode]) -> None:
        """`nodes`: those attached, whose fences show that all has passed before retained messages are asked for."""
        self.exchange()
        self.exchange_wills()
        for node in nodes:
            wait_for_fences(node)
        self.check_retained()

    def exchange(self) -> None:
        for source, client in self._clients.items():
            for qos in (0, 1, 2):
                for number in range(MESSAGES):
                    client.publish(f"m/{source}/{qos}", f"{number}", qos)
            for qos in (0, 1, 2):
                client.publish(f"r/{source}/{qos}", f"{qos}", qos, retain=True)
        topics = [f"m/{source}/{qos}" for source in self._places for qos in (0, 1, 2)]
        wanted = {topic: list(range(MESSAGES)) for topic in topics}
        for name, client in self._clients.items():
            for topic in wanted:
                wait_until(
                    lambda client=client, topic=topic: len(numbers_of(client)[topic]) >= MESSAGES,  # type: ignore[misc]
                    f"{topic} has come to {name}",
                    240,
                )
            found = numbers_of(client)
            assert {topic: found[topic] for topic in found if found[topic] != wanted.get(topic)} == {}, name

    def exchange_wills(self) -> None:
        for client in self._clients.values():
            client.messages.clear()
        for name in self._places:
            for qos in (0, 1, 2):
                self._new(name, will=Will(f"w/{name}/{qos}", b"will", qos)).vanish()
        wanted = sorted(f"w/{name}/{qos}" for name in self._places for qos in (0, 1, 2))
        for name, client in self._clients.items():
            client.receive(len(wanted), 240)
            assert sorted(message.topic for message in client.messages) == wanted, name

    def check_retained(self) -> None:
        """A new client at each place gets each value once.  Values of a broker that does not say of a live message that
        it is retained are known elsewhere when they have been read from it: clients that come then get them."""
        wanted = {f"r/{name}/{qos}" for name in self._places for qos in (0, 1, 2)}
        for name in self._places:
            hidden = {topic for topic in wanted if topic.split("/")[1] in set(self._unshown) - {name}}
            deadline = time.monotonic() + RETAINED_S
            while lacking := wanted - hidden - (came := self._retained_at(name, wanted)):
                assert time.monotonic() < deadline, f"{name} never had {sorted(lacking)}"
            assert came <= wanted, name

    def _retained_at(self, name: str, wanted: set[str]) -> set[str]:
        late = self._new(name)
        for topic in sorted(wanted):
            late.subscribe(topic, 2)
        with suppress(AssertionError):
            wait_until(lambda: len(late.messages) >= len(wanted), "all of them", 2)
        # A broker that is to retain a value gets it as a publication, which present subscribers are sent besides.
        stored = [message.topic for message in late.messages if message.retain]
        # aMQTT was seen to send such a value twice to a client that had just come, both times with the flag.
        assert len(set(stored)) == len(stored) or name.endswith("amqtt"), f"{name}: some came twice"
        late.close()
        return {message.topic for message in late.messages}

    def check_that_nothing_came(self) -> None:
        assert {name: len(client.messages) for name, client in self._clients.items()} == dict.fromkeys(
            self._clients, 3 * len(self._places)
        )
