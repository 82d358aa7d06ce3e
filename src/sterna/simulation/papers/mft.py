"""MFT-PubSub (chapter 4): a broker that moves speaks for all below it; timestamps and hop counts settle who is right.

The thesis' listings and its text differ, and neither converges.  A `MftReading` says how each open place is read:

- `claimed_hops`: a claim with an equal timestamp is believed if the claimed hops are not more than one's own (text),
  or if the hops of the message are not (Algorithm 4.3, lines 12 and 16 as printed);
- `lists_from_times`: BMIG lists everybody the broker has a timestamp of (text: "all the subscribers it knows of"), or
  only those with a route (Algorithm 4.2 as printed), which leaves out who unsubscribed;
- `guard`: when BSUB is newer than what is known.  Of three readings of "(t, h) > T(s)" only `ISSUER` gives Figure 4.2;
- `dead_links_claimed`: claim subscribers whose next hop is gone (both, as Figure 4.2 shows).

Settled for all: SUB, UNS and MIG count if their timestamp is newer; BQUERY is answered if the asker's timestamp is
older.  The guard of BSUB holds again for the same message, so that it would circle for ever in a ring: it ends after
`HOPS_MAX` hops.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from sterna.simulation.papers.messages import (
    Bmig,
    BmigLine,
    Bquery,
    Bsub,
    Mig,
    Name,
    PaperMessage,
    Pub,
    Rep,
    Sub,
    Uns,
    refuse,
)
from sterna.simulation.papers.mobile_broker import HOPS_MAX, MobileBroker, Routed, nobody_asks
from sterna.simulation.papers.simple_routing import Send


class BsubGuard(Enum):
    """When a BSUB with the timestamp that is known counts."""

    ISSUER = "its issuer is nearer to the subscriber than this broker believes to be itself"
    LEXICOGRAPHIC = "never: as tuples compare, it has more hops"
    ADJUSTED = "it is nearer with the way it has come"


@dataclass(frozen=True, slots=True)
class MftReading:
    claimed_hops: bool
    lists_from_times: bool
    guard: BsubGuard = BsubGuard.ISSUER
    dead_links_claimed: bool = True


PRINTED = MftReading(claimed_hops=False, lists_from_times=False)
EXPLAINED = MftReading(claimed_hops=True, lists_from_times=True)


class Knowledge(NamedTuple):
    """T(s)."""

    time: int
    hops: int


UNKNOWN = Knowledge(0, 0)


class MftBroker(MobileBroker):
    def __init__(self, name: Name, send: Send, reading: MftReading, routed: Routed = nobody_asks) -> None:
        super().__init__(name, send, routed)
        self.reading = reading
        self.times: dict[Name, Knowledge] = {}

    def receive(self, message: PaperMessage, sender: Name) -> None:
        match message:
            case Sub() | Uns():
                self._changed(message, sender)
            case Pub():
                self._publish(message, sender)
            case Rep():
                self._replay(message)
            case Mig():
                if message.time > self._known(message.subscriber).time:
                    self.times[message.subscriber] = Knowledge(message.time, message.hops + 1)
                    onward = Mig(message.subscriber, message.broker, message.time, message.hops + 1)
                    self._subscriber_migrated(message, sender, onward)
            case Bmig():
                self._broker_migrated(message, sender)
            case Bquery(subscriber=subscriber, time=time):
                if time < self._known(subscriber).time:
                    self._tell(subscriber, sender)
            case Bsub():
                self._told(message, sender)
            case _:
                refuse(message, self.name)

    def migrate(self, old: Name | None, new: Name) -> None:
        """Algorithm 4.2."""
        children, others = [], []
        for subscriber in self._listed():
            claim = BmigLine(subscriber, *self._known(subscriber))
            via = self.table.via(subscriber)
            if via == old or not self._may_claim(subscriber):
                others.append(claim)
                self.table.turn(subscriber, new)
            else:
                children.append(claim)
        self._send(Bmig(tuple(children), tuple(others), 0), new)
        for claim in others:
            self._send_waiting(claim.subscriber, new)

    def _known(self, subscriber: Name) -> Knowledge:
        return self.times.get(subscriber, UNKNOWN)

    def _listed(self) -> list[Name]:
        return list(self.times if self.reading.lists_from_times else self.table.routes)

    def _may_claim(self, subscriber: Name) -> bool:
        via = self.table.via(subscriber)
        return via is not None and (self.reading.dead_links_claimed or self.is_linked(via))

    def _changed(self, message: Sub | Uns, sender: Name) -> None:
        subscriber = message.subscriber
        if message.time <= self._known(subscriber).time:
            return
        self.times[subscriber] = Knowledge(message.time, message.hops + 1)
        onward: Sub | Uns
        if isinstance(message, Sub):
            if sender == subscriber:
                self.clients[subscriber] = None
            self.table.add(message.filter, sender, subscriber)
            onward = Sub(message.filter, subscriber, message.time, message.hops + 1)
        else:
            self.table.remove(message.filter, subscriber)
            onward = Uns(message.filter, subscriber, message.time, message.hops + 1)
        self._flood(onward, sender)

    def _broker_migrated(self, message: Bmig, sender: Name) -> None:
        """Algorithm 4.3."""
        believed = []
        for claim in message.children:
            kept = self._judged(claim, message.hops, sender)
            if kept is not None:
                believed.append(kept)
        for claim in message.others:
            known = self._known(claim.subscriber)
            if claim.time > known.time:
                self._send(Bquery(claim.subscriber, *known), sender)
            elif claim.time < known.time:
                self._tell(claim.subscriber, sender)
        if message.hops == 0:
            named = {claim.subscriber for claim in (*message.children, *message.others)}
            for subscriber in self._listed():
                if subscriber not in named:
                    self._tell(subscriber, sender)
        self._pass_on(tuple(believed), message.hops + 1, sender)

    def _judged(self, claim: BmigLine, travelled: int, sender: Name) -> BmigLine | None:
        """The claim as it is passed on; None if it is not believed."""
        subscriber = claim.subscriber
        known = self._known(subscriber)
        if claim.time > known.time:
            self._send(Bquery(subscriber, *known), sender)
            return BmigLine(subscriber, known.time, claim.hops)
        compared = claim.hops if self.reading.claimed_hops else travelled
        if claim.time < known.time or compared > known.hops:
            self._tell(subscriber, sender)
            return None
        self.times[subscriber] = Knowledge(claim.time, travelled + claim.hops + 1)
        return BmigLine(subscriber, known.time, claim.hops)

    def _pass_on(self, believed: tuple[BmigLine, ...], hops: int, sender: Name) -> None:
        before: dict[Name, None] = {}
        for claim in believed:
            via = self.table.via(claim.subscriber)
            if via in self.neighbours and via != sender:
                assert via is not None
                before[via] = None
            self.table.turn(claim.subscriber, sender)
        if hops <= HOPS_MAX:
            for to in before:
                self._send(Bmig(believed, (), hops), to)
        for claim in believed:
            self._send_waiting(claim.subscriber, sender)

    def _tell(self, subscriber: Name, to: Name) -> None:
        known = self._known(subscriber)
        self._send(Bsub(subscriber, self.table.filters(subscriber), known.time, known.hops, 0), to)

    def _told(self, message: Bsub, sender: Name) -> None:
        """Algorithm 4.4."""
        if not self._is_news(message) or message.travelled > HOPS_MAX:
            return
        subscriber = message.subscriber
        self.table.replace(subscriber, message.filters, sender)
        self.times[subscriber] = Knowledge(message.time, message.hops + message.travelled + 1)
        onward = Bsub(subscriber, message.filters, message.time, message.hops, message.travelled + 1)
        self._flood(onward, sender)
        self._send_waiting(subscriber, sender)

    def _is_news(self, message: Bsub) -> bool:
        known = self._known(message.subscriber)
        if message.time != known.time:
            return message.time > known.time
        match self.reading.guard:
            case BsubGuard.ISSUER:
                return message.hops < known.hops
            case BsubGuard.ADJUSTED:
                return message.hops + message.travelled + 1 < known.hops
            case BsubGuard.LEXICOGRAPHIC:
                return message.hops > known.hops
