"""Subscription flooding (SF, section 3.2): nodes inter-subscribe, and publications go where somebody wants them.

Two slips of the paper are mended.  A node tells a new neighbour what its clients and *every other* neighbour want; the
paper's set, "topics to which it has already inter-subscribed", lacks what an only neighbour wants (`papers_rule` keeps
it so).  And a filter that was contained in one that is taken back is told again.
"""

from __future__ import annotations

from collections.abc import Iterable

from sterna.measure.ildm.reference.api import Address, SessionInfo, SessionManager
from sterna.measure.ildm.reference.messages import (
    MessageType,
    create_mqtt_message,
    read_filters,
    read_identifier,
    read_suback,
    read_topic,
)
from sterna.measure.ildm.reference.neighbourhood import LocalClient, Neighbour, Neighbourhood
from sterna.mqtt.topics import covers, matches

REFUSED = 0x80
REMEMBERED_MAX = 10_000
"""Topics whose targets are remembered until a subscription changes."""
Filters = dict[str, int]
"""Filter -> QoS."""


class LiteralSubscriptionFlooding(Neighbourhood):
    def __init__(
        self,
        manager: SessionManager,
        name: str,
        broker: Address,
        connections: int = 1,
        *,
        papers_rule: bool = False,
    ) -> None:
        super().__init__(manager, name, broker, connections)
        self._papers_rule = papers_rule
        self.local: dict[str, Filters] = {}
        """Client identifier -> its subscriptions."""
        self.heard: dict[str, Filters] = {}
        """Neighbour -> its inter-subscriptions here."""
        self.told: dict[str, Filters] = {}
        """Neighbour -> our inter-subscriptions there."""
        self._asked: dict[tuple[SessionInfo, int], list[tuple[str, int]]] = {}
        self._remembered: dict[tuple[bytes, str | None], list[Neighbour]] = {}
        self._identifier = 0

    # --- publications ---------------------------------------------------------------------------------------------

    def targets(self, message: bytes, source: str | None) -> Iterable[Neighbour]:
        """HOT.  Retained ones go everywhere, so that every broker has them for later subscribers."""
        if message[0] & 0x01:
            return [neighbour for name, neighbour in self.neighbours.items() if name != source]
        return self._interested(read_topic(message), source)

    def will_targets(self, message: bytes) -> Iterable[Neighbour]:
        return self._interested(read_topic(message), None)

    def _interested(self, topic: bytes, source: str | None) -> list[Neighbour]:
        key = topic, source
        found = self._remembered.get(key)
        if found is None:
            levels = topic.split(b"/")
            found = [
                neighbour
                for name, neighbour in self.neighbours.items()
                if name != source and any(matches(_levels(one), levels) for one in self.heard.get(name, ()))
            ]
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[key] = found
        return found

    # --- clients --------------------------------------------------------------------------------------------------

    def client_asked(self, client: SessionInfo, kind: MessageType, message: bytes) -> None:
        identifier, filters = read_filters(message)
        self._asked[client, identifier] = filters

    def broker_granted(self, client: SessionInfo, kind: MessageType, message: bytes) -> None:
        """Only now: neighbours are told when the client has its answer."""
        filters = self._asked.pop((client, read_identifier(message)), [])
        own = self.local.setdefault(self._clients[client].connect.client_id, {})
        if kind is MessageType.SUBACK:
            granted = [pair for pair, code in zip(filters, read_suback(message)[1], strict=False) if code != REFUSED]
            own.update(granted)
            self._inter_subscribe(granted, None)
        else:
            for one, _ in filters:
                own.pop(one, None)
            self._inter_unsubscribe()

    def client_came(self, client: LocalClient) -> None:
        self._forget(client)

    def client_left(self, client: LocalClient) -> None:
        self._forget(client)

    def _forget(self, client: LocalClient) -> None:
        """A client that asked to be remembered is, also after a DISCONNECT."""
        if client.connect.clean and client.connect.client_id in self.local:
            del self.local[client.connect.client_id]
            self._inter_unsubscribe()

    def on_session_closed(self, session: SessionInfo) -> None:
        self._asked = {key: filters for key, filters in self._asked.items() if key[0] is not session}
        super().on_session_closed(session)

    # --- neighbours -----------------------------------------------------------------------------------------------

    def neighbour_joined(self, name: str) -> None:
        self._remembered.clear()
        self.heard.setdefault(name, {})
        self.told[name] = {}
        first = self._papers_set(name) if self._papers_rule else self._needed(name)
        self._subscribe_at(name, _widest(first))

    def neighbour_left(self, name: str) -> None:
        self._remembered.clear()
        told = self.told.pop(name, {})
        if told and name in self.neighbours:
            self.tell(name, self._unsubscribe(list(told)))
        if self.heard.pop(name, None):
            self._inter_unsubscribe()

    def neighbour_said(self, name: str, kind: MessageType, message: bytes) -> None:
        self._remembered.clear()
        _, filters = read_filters(message)
        heard = self.heard.setdefault(name, {})
        if kind is MessageType.SUBSCRIBE:
            heard.update(filters)
            self._inter_subscribe(filters, name)
        elif kind is MessageType.UNSUBSCRIBE:
            for one, _ in filters:
                heard.pop(one, None)
            self._inter_unsubscribe()

    def _inter_subscribe(self, filters: Iterable[tuple[str, int]], source: str | None) -> None:
        """Tell the difference to all neighbours but the one it came from."""
        wanted = dict(filters)
        for name in list(self.neighbours):
            if name != source:
                self._subscribe_at(name, wanted)

    def _subscribe_at(self, name: str, wanted: Filters) -> None:
        told = self.told.setdefault(name, {})
        new = {one: qos for one, qos in wanted.items() if not _is_contained(one, qos, told)}
        if new:
            told.update(new)
            filters = list(new.items())
            self.tell(name, create_mqtt_message(MessageType.SUBSCRIBE, identifier=self._next(), filters=filters))

    def _inter_unsubscribe(self) -> None:
        """Section 3.2.1: keep what a local client wants, and what a neighbour wants except there."""
        for name in list(self.neighbours):
            told = self.told.setdefault(name, {})
            needed = self._needed(name)
            gone = [one for one in told if one not in needed]
            if not gone:
                continue
            for one in gone:
                del told[one]
            self._subscribe_at(name, _widest(needed))
            self.tell(name, self._unsubscribe(gone))

    def _needed(self, name: str) -> Filters:
        """Filters whose messages this neighbour has to send here."""
        needed: Filters = {}
        for filters in (*self.local.values(), *(heard for other, heard in self.heard.items() if other != name)):
            for one, qos in filters.items():
                needed[one] = max(qos, needed.get(one, 0))
        return needed

    def _papers_set(self, name: str) -> Filters:
        """The set as section 4.4 has it."""
        others = [told for other, told in self.told.items() if other != name]
        sets = others or list(self.local.values())
        return {one: qos for filters in sets for one, qos in filters.items()}

    def _unsubscribe(self, filters: list[str]) -> bytes:
        return create_mqtt_message(MessageType.UNSUBSCRIBE, identifier=self._next(), filters=filters)

    def _next(self) -> int:
        self._identifier = self._identifier % 0xFFFF + 1
        return self._identifier


def _levels(topic_filter: str) -> list[bytes]:
    return topic_filter.encode().split(b"/")


def _is_contained(topic_filter: str, qos: int, existing: Filters) -> bool:
    levels = _levels(topic_filter)
    return any(known >= qos and covers(_levels(one), levels) for one, known in existing.items())


def _widest(filters: Filters) -> Filters:
    """Without those that others contain; of two that match the same topics one stays."""
    kept: Filters = {}
    for one, qos in filters.items():
        if not _is_contained(one, qos, kept):
            kept = {other: known for other, known in kept.items() if not _is_contained(other, known, {one: qos})}
            kept[one] = qos
    return kept
