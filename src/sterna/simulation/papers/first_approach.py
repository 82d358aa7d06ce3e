"""The first approach (chapter 3): a broker that moves speaks for its own subscribers and makes those below move, too.

Settled where the thesis slips: rows taken from another broker's table keep their filters (Algorithm 3.3, line 17 drops
them).  A known weakness is kept: a subscriber that left in one partition lives on in tables of the other (a phantom).
"""

from __future__ import annotations

from sterna.simulation.papers.messages import Btab, Fmig, Mig, Name, PaperMessage, ProxyMig, Pub, Rep, Sub, Uns, refuse
from sterna.simulation.papers.mobile_broker import MobileBroker


class FirstApproach(MobileBroker):
    def migrate(self, old: Name | None, new: Name) -> None:
        self._send(self._claim(), new)

    def receive(self, message: PaperMessage, sender: Name) -> None:
        match message:
            case Sub(filter=one, subscriber=subscriber):
                if sender == subscriber:
                    self.clients[subscriber] = None
                if self.table.add(one, sender, subscriber):
                    self._flood(message, sender)
            case Uns(filter=one, subscriber=subscriber):
                if self.table.remove(one, subscriber):
                    self._flood(message, sender)
            case Pub():
                self._publish(message, sender)
            case Rep():
                self._replay(message)
            case Mig():
                self._subscriber_migrated(message, sender, message)
            case ProxyMig():
                self._broker_migrated(message, sender)
            case Btab():
                self._table_received(message, sender)
            case Fmig():
                self._send(self._claim(), sender)
            case _:
                refuse(message, self.name)

    def _claim(self) -> ProxyMig:
        return ProxyMig(tuple(self._local()), self.name)

    def _local(self) -> dict[Name, None]:
        """Subscribers whose next hop is themselves."""
        return {name: None for name, route in self.table.routes.items() if route.via == name}

    def _broker_migrated(self, message: ProxyMig, sender: Name) -> None:
        before: dict[Name, None] = {}
        for subscriber in message.subscribers:
            via = self.table.via(subscriber)
            if via in self.neighbours and via != sender:
                assert via is not None
                before[via] = None
            self.table.turn(subscriber, sender)
            self.clients.pop(subscriber, None)
        for to in before:
            self._send(message, to)
        if sender == message.broker:
            rows = tuple((name, tuple(route.filters)) for name, route in self.table.routes.items())
            self._send(Btab(rows), sender)
        for subscriber in message.subscribers:
            self._send_waiting(subscriber, sender)

    def _table_received(self, message: Btab, sender: Name) -> None:
        local = self._local()
        theirs = dict(message.table)
        for subscriber in [name for name in self.table.routes if name not in local]:
            del self.table.routes[subscriber]
        for subscriber, filters in message.table:
            if subscriber not in local:
                self.table.replace(subscriber, filters, sender)
        for subscriber in local:
            ours = self.table.filters(subscriber)
            known = theirs.get(subscriber, ())
            for one in ours:
                if one not in known:
                    self._send(Sub(one, subscriber), sender)
            for one in known:
                if one not in ours:
                    self._send(Uns(one, subscriber), sender)
        for neighbour in self.neighbours:
            if neighbour != sender:
                self._send(Fmig(), neighbour)
        for subscriber in theirs:
            if subscriber not in local:
                self._send_waiting(subscriber, sender)
