"""Clients with every QoS who publish, listen, share, come and go under load, and keep the books of it.

They live at one node or at several that are one broker; what they are owed is the same: nothing acknowledged is lost,
nothing of QoS 2 comes twice, and every topic comes in the order of its publisher.
"""

from __future__ import annotations

import random
import select
import time
from collections.abc import Callable, Sequence
from typing import Self

from .nodes import LiveNode
from .steadfast import Steadfast

MESSAGES_PER_S = 500
STALLED_S = 60.0
"""Without anything new for so long, nothing more will come."""
LAG_MAX = 1000
"""Messages the slowest reader may be behind before publishers pause: a busy machine must not pile up work."""
SPREAD_S = 60.0
"""How long a retained message may take to be known at every node."""


class Crowd:
    """Everybody who talks to the nodes, and what must have come of it.  Each client has one node it comes back to."""

    def __init__(self, nodes: Sequence[LiveNode], dice: random.Random, messages_per_s: float = MESSAGES_PER_S) -> None:
        self.nodes = nodes
        self.dice = dice
        self.messages_per_s = messages_per_s
        self.publishers = [
            Steadfast(f"publisher-{qos}-{version}", version, window=window)
            for qos, version, window in ((1, 4, 20), (1, 5, 5), (2, 4, 20), (2, 5, 5))
        ]
        self.readers = [
            Steadfast("reader-2-4", 4),
            Steadfast("reader-2-5", 5, receive_maximum=3),
            Steadfast("reader-1-4", 4),
            Steadfast("reader-1-5", 5, receive_maximum=20),
        ]
        self.members = [Steadfast("member-2-4", 4), Steadfast("member-2-5", 5, receive_maximum=8)]
        self.everybody = self.publishers + self.readers + self.members
        self.homes = {client.client_id: nodes[i % len(nodes)] for i, client in enumerate(self.everybody)}
        self.published: dict[str, list[bytes]] = {}
        """Topic -> payloads, in the order they were handed to their publisher."""
        self.retained: dict[str, bytes] = {}
        self.count = 0
        self._back_at = {client.client_id: 0.0 for client in self.everybody}
        self._stays = False
        self._visitors = 0
        for client in self.readers:
            client.subscribe("data/#", int(client.client_id[7]))
        for client in self.members:
            client.subscribe("$share/group/data/#", 2)

        # Messages published before they are confirmed need not come.
        asking = self.readers + self.members
        assert self.run(lambda: not any(client.is_asking for client in asking), STALLED_S, publishing=False)

    # -- living --

    def run(self, until: Callable[[], bool], within_s: float, *, publishing: bool = True) -> bool:
        """Everybody goes about their business until something holds; False if it did not in time."""
        end = time.monotonic() + within_s
        credit, last = 0.0, time.monotonic()
        while not until():
            now = time.monotonic()
            if now > end:
                return False
            credit, last = credit + (now - last) * self.messages_per_s, now
            while publishing and credit >= 1:
                credit -= 1
                self._publish_one()
            for client in self.everybody:
                self._come_or_go(client, now)
                client.pump()
            ready = [number for client in self.everybody if (number := client.fileno()) is not None]
            select.select(ready, [], [], 0.005)
        return True

    def _publish_one(self) -> None:
        publisher = self.dice.choice(self.publishers)
        if publisher.backlog > 200 or self._lag() > LAG_MAX:
            return  # its node is away for long, or somebody's is
        self.count += 1
        qos = int(publisher.client_id[10])
        topic = f"{publisher.client_id}/{self.dice.randrange(3)}"
        payload = b"%d" % self.count
        if self.dice.random() < 0.1:
            topic = f"state/{topic}"
            if self.dice.random() < 0.3:
                payload = b""
            self.retained[topic] = payload
            publisher.publish(topic, payload, qos, retain=True)
        else:
            self.published.setdefault(f"data/{topic}", []).append(payload)
            publisher.publish(f"data/{topic}", payload, qos)

    def _come_or_go(self, client: Steadfast, now: float) -> None:
        if client.fileno() is None:
            if now >= self._back_at[client.client_id]:
                self._back_at[client.client_id] = now + 0.05  # not too eager while its node is away
                client.connect(self.homes[client.client_id].entrance)
        elif client.is_connected and not self._stays:
            if self.dice.random() < 0.002:
                client.leave() if self.dice.random() < 0.5 else client.vanish()
                self._back_at[client.client_id] = now + self.dice.choice([0.0, 0.1, 1.0])
            elif self.dice.random() < 0.01 and not client.is_asking:
                self._change_mind(client)

    def _change_mind(self, client: Steadfast) -> None:
        """Subscribe to a topic of its own, or unsubscribe from it."""
        own = f"own/{client.client_id}"
        if own in client.subscriptions:
            client.unsubscribe(own)
        else:
            client.subscribe(own, 1)

    def drain(self) -> None:
        """Nobody publishes or leaves any more; everything under way comes to its end."""
        self._stays = True
        while not self._is_done():
            if not self._moves_on():
                self.check()
                idle = {client.client_id: client.is_idle for client in self.everybody}
                raise AssertionError(f"there is no end to it: {idle}")
        self._hear_all()

    def _moves_on(self) -> bool:
        before = self._progress()
        return self.run(lambda: self._progress() != before or self._is_done(), STALLED_S, publishing=False)

    def _progress(self) -> tuple[int, int]:
        return sum(len(client.given) for client in self.everybody), sum(one.acknowledged for one in self.publishers)

    def _lag(self) -> int:
        return self._wanted() - min(len(reader.given) for reader in self.readers)

    def _wanted(self) -> int:
        return sum(map(len, self.published.values()))

    def _is_done(self) -> bool:
        wanted = self._wanted()
        if any(len(reader.given) < wanted for reader in self.readers):
            return False
        heard = all(len({given.payload for given in reader.given}) >= wanted for reader in self.readers)
        shared = len({given.payload for member in self.members for given in member.given}) >= wanted
        return heard and shared and all(client.is_connected and client.is_idle for client in self.everybody)

    def _hear_all(self) -> None:
        for client in self.everybody:
            client.ping()
        assert self.run(lambda: all(client.is_idle for client in self.everybody), 10, publishing=False)

    def disperse(self) -> None:
        for client in self.everybody:
            client.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.everybody:
            client.vanish()

    # -- accounting --

    def check(self) -> None:
        for reader in self.readers:
            self._check_received(reader.client_id, [reader])
        self._check_received("the group", self.members, in_order=False)

    def _check_received(self, name: str, readers: list[Steadfast], *, in_order: bool = True) -> None:
        granted = max(readers[0].subscriptions.values())
        for topic, payloads in self.published.items():
            given = [one.payload for reader in readers for one in reader.given if one.topic == topic]
            first_times = list(dict.fromkeys(given))
            missing = [payload for payload in payloads if payload not in set(given)]
            assert not missing, f"{name} lost {missing[:5]} and {len(missing)} in all, of {topic}"
            if "publisher-2" in topic and granted == 2:
                twice = [payload for payload in first_times if given.count(payload) > 1]
                assert not twice, f"{name} got {twice[:5]} and {len(twice)} in all twice, of {topic}"
            if in_order:
                assert first_times == payloads, f"{name}: order of {topic}"

    def check_retained(self) -> None:
        """At every node, as soon as the news is there."""
        kept = {topic: payload for topic, payload in self.retained.items() if payload}
        for node in self.nodes:
            end = time.monotonic() + SPREAD_S
            while (found := self._found_retained(node)) != kept:
                wrong = {topic: (kept.get(topic), found.get(topic)) for topic in kept.keys() | found.keys()}
                wrong = {topic: both for topic, both in wrong.items() if both[0] != both[1]}
                assert time.monotonic() < end, f"{node.directory.name}: retained and found differ in {wrong}"

    def _found_retained(self, node: LiveNode) -> dict[str, bytes]:
        self._visitors += 1
        visitor = self._visit(node, f"visitor-{self._visitors}")
        visitor.leave()
        self.everybody.remove(visitor)
        return {one.topic: one.payload for one in visitor.given}

    def _visit(self, node: LiveNode, client_id: str) -> Steadfast:
        """Somebody new looks at what is retained there."""
        visitor = Steadfast(client_id, 4)
        visitor.subscribe("state/#", 1)
        self.everybody.append(visitor)
        self.homes[client_id] = node
        self._back_at[client_id] = 0.0
        assert self.run(lambda: visitor.is_connected and visitor.is_idle, 10, publishing=False)
        visitor.ping()
        assert self.run(lambda: visitor.is_idle, 10, publishing=False)
        return visitor

    def check_subscriptions(self) -> None:
        """The last confirmation holds: clients hear their own topic if, and only if, they are subscribed to it."""
        asked = [client for client in self.everybody if client not in self.members]
        for client in asked:
            self.publishers[0].publish(f"own/{client.client_id}", b"still there?", 1)
        subscribed = [client for client in asked if f"own/{client.client_id}" in client.subscriptions]
        self.run(lambda: self.publishers[0].is_idle and all(map(_was_asked, subscribed)), 10, publishing=False)
        self._hear_all()
        for client in asked:
            assert _was_asked(client) == (client in subscribed), client.client_id


def _was_asked(client: Steadfast) -> bool:
    return any(given.payload == b"still there?" for given in client.given)
