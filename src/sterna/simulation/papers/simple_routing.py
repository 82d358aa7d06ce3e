"""Simple Routing (Algorithm 2.1): subscriptions are flooded over a tree and nobody knows whose they are.

The table is a multiset: two subscribers behind one link are two equal entries, and an unsubscription removes one.
"""

from __future__ import annotations

from collections.abc import Callable

from sterna.simulation.papers.messages import Name, PaperMessage, Pub, Sub, Uns, refuse

Send = Callable[[PaperMessage, Name], object]


class SimpleRouting:
    def __init__(self, name: Name, send: Send) -> None:
        self.name = name
        self.neighbours: dict[Name, None] = {}
        self.entries: list[tuple[str, Name]] = []
        self._send = send

    def receive(self, message: PaperMessage, sender: Name) -> None:
        match message:
            case Sub(filter=one):
                self.entries.append((one, sender))
                self._flood(message, sender)
            case Uns(filter=one):
                if (one, sender) in self.entries:
                    self.entries.remove((one, sender))
                self._flood(message, sender)
            case Pub(event=event):
                matching = dict.fromkeys(to for one, to in self.entries if one == event.topic and to != sender)
                for to in matching:
                    self._send(message, to)
            case _:
                refuse(message, self.name)

    def _flood(self, message: PaperMessage, sender: Name) -> None:
        for neighbour in self.neighbours:
            if neighbour != sender:
                self._send(message, neighbour)
