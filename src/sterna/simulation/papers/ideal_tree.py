"""The papers' brokers on ideal links: FIFO, nothing lost but what is under way on a link that is cut.

This is the world of the thesis' figures: links are cut and made by hand, and everything is quiet in between.  Every
message between brokers is noted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sterna.simulation.papers.messages import Name, PaperEvent, PaperMessage, Pub
from sterna.simulation.papers.mobile_broker import MobileBroker
from sterna.simulation.papers.simple_routing import Send
from sterna.simulation.papers.subscriber import PaperSubscriber

BrokerFactory = Callable[[Name, Send], MobileBroker]
MESSAGES_MAX = 20_000
"""Without a quiet moment: more is a message that circles."""


class Sent(NamedTuple):
    sender: Name
    to: Name
    message: PaperMessage


class IdealTree:
    """Parents by name; the root has none.  Every broker `b<x>` has a subscriber `s<x>` with the filter `f<x>`."""

    def __init__(self, parents: Mapping[Name, Name | None], broker: BrokerFactory) -> None:
        self.parents: dict[Name, Name | None] = dict(parents)
        self.lost_parents: dict[Name, Name] = {}
        """The last parent of one whose link to it was cut: what lies beyond has it as next hop."""
        self.sent: list[Sent] = []
        """Between brokers."""
        self.received: dict[Name, list[PaperEvent]] = {}
        self._lines: deque[tuple[int, Sent]] = deque()
        self._number = 0
        self._arrived: dict[tuple[Name, Name], int] = {}
        """The number of the last message that arrived on a line: FIFO is what the protocols rely on."""
        self.brokers = {name: broker(name, self.sender_of(name)) for name in parents}
        self.subscribers: dict[Name, PaperSubscriber] = {}
        for name, parent in parents.items():
            if parent is not None:
                self._link(name, parent)
        for name in parents:
            self.add_subscriber(f"s{name[1:]}", name, f"f{name[1:]}")
        self.sent.clear()

    def add_subscriber(self, name: Name, at: Name, *filters: str) -> PaperSubscriber:
        heard = self.received.setdefault(name, [])
        subscriber = self.subscribers[name] = PaperSubscriber(name, self.sender_of(name), heard.append)
        subscriber.connect(at)
        subscriber.subscribe(filters)
        self.settle()
        return subscriber

    def publish(self, topic: str, at: Name, number: int = 0) -> None:
        self.brokers[at].receive(Pub(PaperEvent(topic, "p", number)), "p")

    def cut(self, child: Name) -> None:
        """Its link to its parent is lost, and with it what is under way on it."""
        parent = self.parents[child]
        assert parent is not None
        self.parents[child] = None
        self.lost_parents[child] = parent
        self._unlink(child, parent)

    def join(self, child: Name, parent: Name) -> None:
        """A broker without a parent gets one and migrates."""
        assert self.parents[child] is None
        self.parents[child] = parent
        self._link(child, parent)
        self.brokers[child].migrate(self.lost_parents.pop(child, None), parent)

    def move(self, child: Name, parent: Name) -> None:
        """It has another parent."""
        self.cut(child)
        self.join(child, parent)
        self.settle()

    def merge(self, touching: Name, other: Name) -> None:
        """`touching`'s partition migrates into `other`'s: it first, then each broker up to the old root turns round."""
        chain = [touching, *self._ancestors(touching)]
        old = [self.parents[name] for name in chain]
        new = [other, *chain[:-1]]
        for name, before, after in zip(chain, old, new, strict=True):
            self.parents[name] = after
            self._link(name, after)
            self.brokers[name].migrate(self.lost_parents.pop(name, before), after)
            self.settle()

    def settle(self, messages: int = MESSAGES_MAX) -> None:
        """Until nothing is under way, or so many messages have arrived."""
        handled = 0
        while self._lines and handled < messages:
            number, sent = self._lines.popleft()
            line = (sent.sender, sent.to)
            assert number > self._arrived.get(line, 0), f"a message has overtaken another from {line[0]} to {line[1]}"
            self._arrived[line] = number
            handled += 1
            if sent.to in self.brokers:
                self.brokers[sent.to].receive(sent.message, sent.sender)
            else:
                self.subscribers[sent.to].receive(sent.message)
        assert handled < MESSAGES_MAX, "a message circles"

    def wrong(self) -> dict[Name, list[Name]]:
        """By subscriber: brokers from which its events would not come to it, though it is connected."""
        found: dict[Name, list[Name]] = {}
        for name in self.subscribers:
            bad = [at for at in self.brokers if not self._leads(at, name)]
            if bad:
                found[name] = bad
        return found

    def component(self, name: Name) -> Name:
        """The root of its partition."""
        return [name, *self._ancestors(name)][-1]

    def _leads(self, at: Name, subscriber: Name) -> bool:
        home = self.subscribers[subscriber].broker
        for _ in self.brokers:
            via = self.brokers[at].table.via(subscriber)
            if at == home:
                return via == subscriber
            if via not in self.brokers[at].neighbours:
                return False
            assert via is not None
            at = via
        return False

    def _ancestors(self, name: Name) -> list[Name]:
        found = []
        above = self.parents[name]
        while above is not None:
            found.append(above)
            above = self.parents[above]
        return found

    def sender_of(self, name: Name) -> Send:
        def send(message: PaperMessage, to: Name) -> None:
            sent = Sent(name, to, message)
            if name in self.brokers and to in self.brokers:
                self.sent.append(sent)
            self._number += 1
            self._lines.append((self._number, sent))

        return send

    def _link(self, one: Name, other: Name) -> None:
        self.brokers[one].neighbours[other] = None
        self.brokers[other].neighbours[one] = None

    def _unlink(self, one: Name, other: Name) -> None:
        self.brokers[one].neighbours.pop(other, None)
        self.brokers[other].neighbours.pop(one, None)
        self._lines = deque(line for line in self._lines if {line[1].sender, line[1].to} != {one, other})
