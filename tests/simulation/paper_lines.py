"""Conversations of the thesis' figures: seven brokers on ideal links, and simple brokers on lines of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from sterna.simulation.papers.ideal_tree import BrokerFactory, IdealTree, Sent
from sterna.simulation.papers.messages import BmigLine, Name, PaperMessage
from sterna.simulation.papers.mft import EXPLAINED, PRINTED, MftBroker, MftReading
from sterna.simulation.papers.simple_routing import Send
from sterna.simulation.papers.wrong_tables import FIGURE_TREE

__all__ = ["EXPLAINED", "PRINTED", "claims", "figure_tree", "mft", "replace"]


def mft(reading: MftReading) -> BrokerFactory:
    def broker(name: Name, send: Send) -> MftBroker:
        return MftBroker(name, send, reading)

    return broker


def figure_tree(broker: BrokerFactory) -> IdealTree:
    return IdealTree(FIGURE_TREE, broker)


def claims(*lines: tuple[str, int, int]) -> tuple[BmigLine, ...]:
    return tuple(BmigLine(*line) for line in lines)


def by_sender(sent: Iterable[Sent]) -> dict[Name, list[tuple[Name, PaperMessage]]]:
    """Each sender's messages in their order; between senders there is none."""
    found: dict[Name, list[tuple[Name, PaperMessage]]] = {}
    for one in sent:
        found.setdefault(one.sender, []).append((one.to, one.message))
    return found


class LineBroker(Protocol):
    neighbours: dict[Name, None]

    def receive(self, message: PaperMessage, sender: Name) -> None: ...


class Lines:
    """Brokers and clients by name; messages arrive one by one, each line in its order."""

    def __init__(self) -> None:
        self.brokers: Mapping[Name, LineBroker] = {}
        self.sent: list[Sent] = []
        self._waiting: deque[Sent] = deque()

    def sender(self, name: Name) -> Send:
        def send(message: PaperMessage, to: Name) -> None:
            self.sent.append(Sent(name, to, message))
            self._waiting.append(self.sent[-1])

        return send

    def tell(self, sender: Name, to: Name, message: PaperMessage) -> None:
        """From a client, and all that follows from it."""
        self._waiting.append(Sent(sender, to, message))
        while self._waiting:
            one = self._waiting.popleft()
            if one.to in self.brokers:
                self.brokers[one.to].receive(one.message, one.sender)
