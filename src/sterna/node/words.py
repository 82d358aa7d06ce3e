"""What other nodes say: to everybody, and about one session, and then to which move under way it belongs.

What belongs to none is old, repeated or forged: it is counted, and answered where the other side may be waiting to hear
how a move ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sterna.migration import messages
from sterna.migration.directory import Whose
from sterna.migration.messages import (
    WHOLE,
    Absent,
    Digests,
    Evacuate,
    HandOver,
    HandOverAck,
    HandOverPage,
    HandOverWanted,
    MigAbort,
    MigAck,
    Migrate,
    MigRefuse,
    MigSync,
    MigSyncAck,
    MigTo,
    MigToAck,
    OwnerEntry,
    Owners,
    Pull,
)
from sterna.migration.tables import Arriving, On
from sterna.node.arriving import Arrival
from sterna.vocabulary.errors import LinkProtocolError
from sterna.vocabulary.identity import Stamp

if TYPE_CHECKING:
    from sterna.node.moving import Moving


class Words:
    def __init__(self, moving: Moving) -> None:
        self._moving = moving

    def came(self, source: str, body: bytes) -> None:
        try:
            message = messages.decode(body)
        except LinkProtocolError:
            self._moving.counters.refused += 1
            return
        if isinstance(message, Evacuate):
            self._moving.plans.told_to_evacuate(message)
        elif isinstance(message, HandOver | HandOverPage):
            self._moving.new_sessions.came(source, message)
        elif isinstance(message, HandOverWanted | HandOverAck):
            self._moving.fenced_sessions.came(source, message)
        elif isinstance(message, Migrate):
            self._moving.plans.ordered(source, message)
        elif isinstance(message, Pull):
            self._pulled(source, message)
        elif isinstance(message, MigTo):
            self._offered(source, message)
        elif isinstance(message, MigSync | MigAbort | MigAck | Absent):
            self._for_arrival(source, message)
        else:
            self._for_departure(source, message)

    def told(self, link: str, body: bytes) -> None:
        """What a neighbour says to everybody, about who owns what and who is where."""
        moving, router = self._moving, self._moving.router
        news = messages.decode_news(body)
        if isinstance(news, Owners):
            self._owners_told(link, news)
        elif isinstance(news, Digests):
            for page in moving.directory.differing(news.numbers):
                router.tell([link], messages.encode(Owners([one for one in page if one[0] not in moving.unsafe])))
        elif router.link_to(news.node) == link:
            router.tell([other for other in router.links() if other != link], body)
            for entry in news.entries:
                moving.transients.claimed(news.node, *entry)
        else:
            moving.counters.refused += 1

    def _owners_told(self, link: str, news: Owners) -> None:
        moving, router, directory = self._moving, self._moving.router, self._moving.directory
        fresh: list[tuple[OwnerEntry, Whose]] = []
        for entry in news.entries:
            before = directory.whose(entry[0])
            if not directory.can_be(entry[0], entry[2]):
                moving.impossible(link, entry[0], entry[2])
            elif directory.learn(*entry):
                fresh.append((entry, before))
        if fresh:
            entries = [entry for entry, _ in fresh]
            others = [other for other in router.links() if other != link]
            router.tell(others, messages.encode(Owners(entries, news.after, news.is_fresh)))
            moving.predecessors.told(news.after, entries)
            for (client, owner, number, *_), before in fresh:
                moving.owner_changed(client, owner, number, before, is_fresh=news.is_fresh)

    def _pulled(self, source: str, pull: Pull) -> None:
        client = pull.client
        if not self._moving.directory.can_be(client, pull.number):
            self._moving.impossible(source, client, pull.number)
            return
        session = self._moving.broker.sessions.get(client)
        owner, number = self._moving.directory.get(client)
        if session is not None and session.is_moving:
            return  # it will be asked for again
        if session is not None and session.user not in (None, pull.user):
            self._moving.send(source, MigRefuse(client, pull.number, "user"))
            return
        if session is not None and session.number >= pull.number:
            self._moving.send(source, Absent(client, pull.number, self._moving.node, session.number, session.user))
            return
        if session is not None and client not in self._moving.departures:
            self._moving.take_over(session)
            session = self._moving.broker.sessions.get(client)
        if session is None:
            user = self._moving.directory.whose(client).user
            self._moving.send(source, Absent(client, pull.number, owner if owner != source else "", number, user))
        elif pull.ends:
            self._moving.broker.lifecycle.end_session(session)
            owner, number = self._moving.directory.get(client)
            absent = Absent(client, pull.number, "", number)
            self._moving.broker.when_safe(lambda safe: self._moving.send(source, absent))
        elif client not in self._moving.departures and len(self._moving.departures) < self._moving.settings.at_once:
            self._moving.depart(session, source, pull.number, by_plan=False)

    def _offered(self, source: str, offer: MigTo) -> None:
        client = offer.client
        if not self._moving.directory.can_be(client, offer.number):
            self._moving.impossible(source, client, offer.number)
            return
        _, number = self._moving.directory.get(client)
        session = self._moving.broker.sessions.get(client)
        arrival = self._moving.arrivals.get(client)
        if arrival is not None and arrival.source == source and not arrival.served:
            arrival.offered(offer)
            return
        if number >= offer.number or (session is not None and session.is_moving):
            self._say_how_it_stands(source, client, offer.number)
            return
        if session is not None:
            self._moving.fence(session)
            if client in self._moving.broker.sessions:
                return  # it is being fenced; the other one will be offered again
        if self._moving.plans.evacuation is not None:
            self._moving.send(source, MigRefuse(client, offer.number, "it is being evacuated"))
            return
        broker = self._moving.broker
        is_full = len(broker.sessions) >= broker.limits.sessions
        if is_full or len(self._moving.arrivals) >= self._moving.settings.at_once:
            reason = "it has as many sessions as it may" if is_full else "too much is arriving there"
            self._moving.send(source, MigRefuse(client, offer.number, reason))
            return
        arrival = self._moving.arrivals[client] = Arrival(self._moving, client, source, offer.number)
        arrival.begin(pull=False)
        arrival.offered(offer)

    def _say_how_it_stands(self, source: str, client: bytes, number: int) -> None:
        """To whoever asks about a move of which we know nothing more: did it come about?"""
        session = self._moving.broker.sessions.get(client)
        owner, known = self._moving.directory.get(client)
        is_here = session is not None and not session.is_arriving and session.number >= number
        if is_here and session is not None and session.beginning is not None:
            is_here = session.beginning.number < number  # else it began without what was to come
        is_here = is_here or self._moving.fenced_sessions.has(client, number)
        if is_here or (known >= number and owner != source and self._moving.has_taken(client, number)):
            self._moving.send(source, MigSyncAck(client, number, WHOLE))
        else:
            self._moving.send(source, MigRefuse(client, number, "there is no such move"))

    def _for_arrival(self, source: str, message: MigSync | MigAbort | MigAck | Absent) -> None:
        arrival = self._moving.arrivals.get(message.client)
        if arrival is None or (arrival.source, arrival.number) != (source, message.number):
            self._moving.counters.refused += 1
            if isinstance(message, MigSync | MigAbort):
                self._say_how_it_stands(source, message.client, message.number)
            return
        known = True
        if isinstance(message, MigSync):
            arrival.page_came(message)
        elif isinstance(message, MigAck):
            known = arrival.old_owner_is_done(message)
        elif isinstance(message, MigAbort):
            arrival.reason = message.reason or "taken back"
            known = arrival.on(On.MIGABORT)
        else:
            self._absent(arrival, message)
        self._moving.counters.refused += not known

    def _absent(self, arrival: Arrival, absent: Absent) -> None:
        """The one we asked does not have it."""
        if arrival.state is not Arriving.AWAITING:
            return
        client, directory = arrival.client, self._moving.directory
        if not directory.can_be(client, absent.owner_number):
            self._moving.impossible(arrival.source, client, absent.owner_number)
            return
        if absent.owner not in ("", self._moving.node):
            directory.learn(client, absent.owner, absent.owner_number, absent.owner_user)
        owner, number = directory.get(client)
        if owner in (arrival.source, self._moving.node) and absent.owner != arrival.source:
            directory.learn(client, "", max(number, absent.owner_number) + 1)
        arrival.on(On.ABSENT)

    def _for_departure(self, source: str, message: MigToAck | MigSyncAck | MigRefuse) -> None:
        departure = self._moving.departures.get(message.client)
        if departure is None or (departure.target, departure.number) != (source, message.number):
            self._for_nobody(source, message)
        elif isinstance(message, MigToAck):
            vector = {origin: Stamp(epoch, sequence) for origin, epoch, sequence in message.vector}
            departure.theirs(vector, message.heard)
        elif isinstance(message, MigRefuse):
            departure.reason = message.reason
            self._moving.counters.refused += not departure.on(On.AHEAD if message.is_ahead else On.MIGREFUSE)
        elif message.page == WHOLE:
            self._moving.counters.refused += not departure.on(On.MIGSYNCACK_WHOLE)
        else:
            departure.acknowledged(message.page)

    def _for_nobody(self, source: str, message: MigToAck | MigSyncAck | MigRefuse) -> None:
        """An answer to what we no longer ask."""
        self._moving.counters.refused += 1
        arrival = self._moving.arrivals.get(message.client)
        if isinstance(message, MigSyncAck | MigRefuse):
            is_there = isinstance(message, MigSyncAck) and message.page == WHOLE
            self._moving.fenced_sessions.settle(message.client, source, message.number, is_there=is_there)
        if isinstance(message, MigToAck):
            self._moving.send(source, MigAbort(message.client, message.number, "taken back"))
        elif isinstance(message, MigSyncAck):
            self._moving.send(source, MigAck(message.client, message.number))
        elif arrival is not None and (arrival.source, arrival.number) == (source, message.number):
            arrival.reason = message.reason
            arrival.on(On.MIGREFUSE)
