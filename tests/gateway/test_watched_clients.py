"""In front of a foreign broker a client hears the last word about a publication when the watcher has settled it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import pytest

from sterna.gateway.settings import GatewayLimits
from sterna.gateway.subscriptions import Change
from sterna.gateway.watched import WatchedGateway
from sterna.gateway.watched_client import WatchedClient
from sterna.mqtt import packets

from .model_client import ModelClient
from .town import Town

versions = pytest.mark.parametrize("version", [4, 5])


class Ticket:
    def __init__(self, payload: bytes, client: WatchedClient) -> None:
        self.payload = payload
        self.client = client
        self.is_settled = self.was_seen = self.is_withdrawn = False
        self.answers = 0

    def released(self) -> None: ...

    def answered(self) -> None:
        self.answers += 1

    def interrupted(self) -> None:
        self.answers = 0

    def withdraw(self) -> None:
        self.is_withdrawn = True

    def settle(self, *, seen: bool = True) -> None:
        self.is_settled, self.was_seen = True, seen
        self.client.settled()


class Watcher:
    def __init__(self) -> None:
        self.tickets: dict[bytes, Ticket] = {}
        self.is_full = False
        self.is_open = True
        self.repeats_doubts = True
        self.doubts: list[str] = []
        self.waiting: list[WatchedClient] = []
        self.wanted: dict[bytes, set[bytes] | None] = {}
        self.is_telling = False
        self.untold: list[Callable[[], None]] = []

    def published(self, topic: bytes, payload: bytes, qos: int, retain: bool, client: WatchedClient) -> Ticket | None:
        assert topic == b"up"
        assert qos
        assert not retain
        assert payload not in self.tickets, "asked for twice"
        self.tickets[payload] = Ticket(payload, client)
        return self.tickets[payload]

    def wait_for_room(self, client: WatchedClient) -> None:
        self.waiting.append(client)

    def doubt(self, outcome: str) -> None:
        self.doubts.append(outcome)

    def is_taken(self, client_id: bytes) -> bool:
        return client_id == b"ours"

    def begins(self, client_id: bytes, filters: Iterable[bytes] | None) -> int:
        self.wanted[client_id] = None if filters is None else set(filters)
        return 1

    def subscribed(self, client_id: bytes, topic_filter: bytes) -> None:
        held = self.wanted[client_id]
        if held is not None:
            held.add(topic_filter)

    def unsubscribed(self, client_id: bytes, topic_filter: bytes) -> None:
        held = self.wanted[client_id]
        if held is not None:
            held.discard(topic_filter)

    def ends(self, client_id: bytes, number: int) -> bool:
        return self.wanted.pop(client_id, None) is not None

    def when_known(self, act: Callable[[], None]) -> bool:
        if self.is_telling:
            self.untold.append(act)
        return self.is_telling


class RelayJournal:
    """A journal that outlives gateways; it writes when `is_slow` says so."""

    def __init__(self) -> None:
        self.packets: dict[bytes, dict[int, bytes]] = {}
        self.earlier: dict[bytes, set[int]] = {}
        self.asked: set[bytes] = set()
        self.filters: dict[bytes, dict[bytes, tuple[int, int]]] = {}
        self.is_slow = False
        self.made_way = 0
        self.waiting: list[Callable[[bool], None]] = []

    def begin(self, client_id: bytes) -> None:
        self.filters[client_id] = {}
        self.renew(client_id)

    def renew(self, client_id: bytes) -> None:
        self.earlier[client_id] = set(self.packets.get(client_id, ()))

    def end(self, client_id: bytes) -> None:
        self.filters.pop(client_id, None)
        self.answered(client_id)

    def ask(self, client_id: bytes) -> None:
        self.asked.add(client_id)

    def answered(self, client_id: bytes) -> None:
        self.asked.discard(client_id)

    def is_unanswered(self, client_id: bytes) -> bool:
        return client_id in self.asked

    def subscriptions(self, client_id: bytes) -> dict[bytes, tuple[int, int]] | None:
        return self.filters.get(client_id)

    def subscribed(self, client_id: bytes, changes: list[Change]) -> None:
        for topic_filter, options in changes:
            if options is not None:
                self.filters[client_id][topic_filter] = options
            else:
                self.filters[client_id].pop(topic_filter, None)

    def keep(self, client_id: bytes, packet_id: int, packet: bytes) -> None:
        self.packets.setdefault(client_id, {})[packet_id] = packet
        self.earlier[client_id].discard(packet_id)

    def drop(self, client_id: bytes, packet_id: int) -> None:
        self.packets.get(client_id, {}).pop(packet_id, None)
        self.earlier.get(client_id, set()).discard(packet_id)

    def kept(self, client_id: bytes) -> dict[int, bytes]:
        return dict(self.packets.get(client_id, {}))

    def lost(self, client_id: bytes) -> set[int]:
        return set(self.earlier.get(client_id, ()))

    def when_safe(self, act: Callable[[bool], None]) -> None:
        if self.is_slow:
            self.waiting.append(act)
        else:
            act(True)

    def write(self, *, is_safe: bool = True) -> None:
        waiting, self.waiting = self.waiting, []
        for act in waiting:
            act(is_safe)


class WatchedTown(Town):
    def __init__(self, limits: GatewayLimits | None = None) -> None:
        super().__init__(("a:1",))
        self.limits = limits or GatewayLimits()
        self.network.knows_gateways = False
        self.watcher = Watcher()
        self.keeper = RelayJournal()
        self.begin_again()

    def begin_again(self) -> None:
        """Another life of the gateway, as after a crash of its node."""
        self.watcher.tickets.clear()
        self._timers.clear()
        self.watched = self.new_gateway()
        self.gateway = self.watched

    def new_gateway(self) -> WatchedGateway:
        dice = Random(1)
        return WatchedGateway("g", "a:1", self.limits, self, self.watcher, self.keeper, dice, lambda: self.now)

    @property
    def tickets(self) -> dict[bytes, Ticket]:
        return self.watcher.tickets

    def lose_sessions(self) -> None:
        self.wire().cut()
        self.network.sessions.clear()


def joined(town: WatchedTown, version: int, name: str = "c") -> ModelClient:
    client = ModelClient(town, version, name)
    client.connect(persistent=True)
    assert client.heard[0][0] == 0x20
    client.heard.clear()
    return client


def last_words(client: ModelClient) -> list[int]:
    return [first >> 4 for first, _ in client.heard if first >> 4 in (packets.PUBACK, packets.PUBCOMP)]


@versions
@pytest.mark.parametrize("qos", [1, 2])
def test_the_last_word_waits_for_the_watcher(version: int, qos: int) -> None:
    town = WatchedTown()
    client = joined(town, version)
    client.publish(b"one", qos)
    client.talk(1)
    assert [payload for _, payload, _ in town.network.accepted] == [b"one"]
    assert not last_words(client)
    assert town.tickets[b"one"].answers == 1
    town.tickets[b"one"].settle()
    client.talk()
    assert last_words(client) == [packets.PUBACK if qos == 1 else packets.PUBCOMP]
    assert not client.pending


def test_last_words_keep_their_order() -> None:
    town = WatchedTown()
    client = joined(town, 4)
    for payload in (b"one", b"two", b"three"):
        client.publish(payload, 1)
    client.talk(1)
    town.tickets[b"three"].settle()
    town.tickets[b"two"].settle()
    client.talk()
    assert not last_words(client)
    town.tickets[b"one"].settle()
    client.talk()
    assert [body for first, body in client.heard if first >> 4 == packets.PUBACK] == [b"\0\1", b"\0\2", b"\0\3"]


@versions
def test_a_publication_whose_last_word_the_client_did_not_get_is_sent_again_when_the_broker_is_back(
    version: int,
) -> None:
    town = WatchedTown()
    client = joined(town, version)
    client.publish(b"one", 1)
    client.talk(1)
    assert town.tickets[b"one"].answers == 1
    town.lose_sessions()
    client.talk(2)
    assert [payload for _, payload, _ in town.network.accepted] == [b"one", b"one"]
    assert town.tickets[b"one"].answers == 1, "it was asked after again"
    town.tickets[b"one"].settle()
    client.talk()
    assert last_words(client) == [packets.PUBACK]
    assert not client.end.closing, "the client stays"


@versions
@pytest.mark.parametrize("repeats", [True, False])
def test_a_publication_in_doubt_at_qos_2_is_repeated_or_dropped(version: int, repeats: bool) -> None:
    town = WatchedTown()
    town.watcher.repeats_doubts = repeats
    client = joined(town, version)
    client.publish(b"one", 2)
    client.talk(1)
    town.lose_sessions()
    client.talk(2)
    accepted = [payload for _, payload, _ in town.network.accepted]
    assert accepted == ([b"one", b"one"] if repeats else [b"one"])
    assert town.watcher.doubts == (["repeated"] if repeats else ["dropped"])
    if repeats:
        assert not last_words(client)
        town.tickets[b"one"].settle()
        client.talk()
    assert last_words(client) == [packets.PUBCOMP]
    assert sum(first >> 4 == packets.PUBREC for first, _ in client.heard) == 1, "nothing is repeated to the client"
    assert not client.pending
    assert not client.end.closing


@versions
def test_a_publication_that_was_seen_is_in_no_doubt(version: int) -> None:
    town = WatchedTown()
    client = joined(town, version)
    client.publish(b"one", 2)
    client.send(b"")
    while not town.network.accepted:
        town.settle()
    ticket = town.tickets[b"one"]
    ticket.is_settled = ticket.was_seen = True
    town.lose_sessions()
    client.talk(2)
    assert town.watcher.doubts == ["witnessed"]
    assert [payload for _, payload, _ in town.network.accepted] == [b"one"]
    assert last_words(client) == [packets.PUBCOMP]
    assert not client.pending


def test_a_client_that_leaves_waits_for_nothing() -> None:
    town = WatchedTown()
    client = joined(town, 4)
    client.publish(b"one", 1)
    client.talk(1)
    client.client.lost()
    town.pass_time(20)
    assert town.tickets[b"one"].is_withdrawn


def test_a_client_is_not_read_from_while_too_much_is_under_way() -> None:
    town = WatchedTown()
    client = joined(town, 4)
    town.watcher.is_full = True
    client.publish(b"one", 1)
    assert client.end.paused
    town.watcher.is_full = False
    for one in town.watcher.waiting:
        one.has_room()
    assert not client.end.paused


@versions
def test_a_client_may_not_have_the_name_of_the_node(version: int) -> None:
    town = WatchedTown()
    client = ModelClient(town, version, "ours")
    client.connect()
    code = 2 if version == 4 else 0x85
    assert [body[1] for first, body in client.heard if first == 0x20] == [code]
    assert not town.wires


@versions
def test_all_clients_connect_anew_and_do_not_notice(version: int) -> None:
    town = WatchedTown()
    client = joined(town, version)
    client.subscribe(b"down")
    client.talk()
    client.publish(b"one", 1)
    client.talk(1)
    town.watched.connect_anew("for the test")
    client.talk(2)
    assert [payload for _, payload, _ in town.network.accepted] == [b"one", b"one"]
    town.tickets[b"one"].settle()
    town.network.publish(b"down", b"hello", 1)
    client.talk(1)
    assert last_words(client) == [packets.PUBACK]
    assert client.received == [(b"hello", 1)]


@versions
def test_suback_waits_until_the_network_knows(version: int) -> None:
    town = WatchedTown()
    town.watcher.is_telling = True
    client = joined(town, version)
    client.subscribe(b"down")
    client.talk(1)
    assert town.watcher.wanted == {b"c": {b"down"}}
    assert client.pending, "SUBACK waits"
    for tell in town.watcher.untold:
        tell()
    client.talk()
    assert not client.pending


@versions
def test_what_a_lasting_session_wants_outlives_the_node_and_ends_with_the_session(version: int) -> None:
    town = WatchedTown()
    client = joined(town, version)
    client.subscribe(b"down")
    client.subscribe(b"gone")
    client.talk(1)
    client.unsubscribe(b"gone")
    client.talk(1)
    town.wire().cut()
    town.begin_again()
    town.watcher.wanted.clear()
    again = joined(town, version)
    assert town.watcher.wanted == {b"c": {b"down"}}
    town.lose_sessions()
    again.talk(2)
    assert not again.end.closing, "all that it had subscribed to is known"
    town.network.publish(b"down", b"hello", 1)
    again.talk(1)
    assert again.received == [(b"hello", 1)]
    fresh = ModelClient(town, version)
    fresh.connect()
    assert town.watcher.wanted == {b"c": set()}
    fresh.client.lost()
    town.pass_time(20)
    assert not town.watcher.wanted
    assert not town.keeper.filters


def test_a_session_that_is_older_than_the_node_may_want_anything() -> None:
    town = WatchedTown()
    joined(town, 4)
    town.wire().cut()
    town.begin_again()
    town.keeper.filters.clear()
    joined(town, 4)
    assert town.watcher.wanted == {b"c": None}
