"""Publications at QoS 2 that a client was told of are kept: foreign broker and node may die together after PUBREC."""

from __future__ import annotations

import pytest

from sterna.gateway.settings import GatewayLimits
from sterna.mqtt import packets

from .model_client import ModelClient
from .test_watched_clients import WatchedTown, joined, last_words, versions


def _kinds(client: ModelClient) -> list[int]:
    return [first >> 4 for first, _ in client.heard]


def _received(town: WatchedTown, version: int) -> ModelClient:
    """A client that was told PUBREC, and whose release did not get through."""
    client = joined(town, version)
    client.publish(b"one", 2)
    for _ in range(50):
        town.settle()
        if b"\x50\x02" in bytes(client.end.sent):
            break
    assert b"\x50\x02" in bytes(client.end.sent)
    assert list(town.keeper.kept(b"c")) == [1]
    return client


def _both_die(town: WatchedTown) -> None:
    town.lose_sessions()
    town.begin_again()


def test_pubrec_waits_for_the_journal_and_keeps_its_order() -> None:
    town = WatchedTown()
    town.keeper.is_slow = True
    client = joined(town, 4)
    client.publish(b"one", 2)
    client.publish(b"two", 2)
    client.talk(1)
    assert packets.PUBREC not in _kinds(client)
    town.keeper.write()
    client.talk(1)
    assert [body for first, body in client.heard if first >> 4 == packets.PUBREC] == [b"\0\1", b"\0\2"]
    for ticket in town.tickets.values():
        ticket.settle()
    client.talk()
    assert last_words(client) == [packets.PUBCOMP] * 2
    assert not town.keeper.kept(b"c"), "nothing is kept after the last word"


def test_a_client_hears_of_no_publication_that_could_not_be_kept() -> None:
    town = WatchedTown()
    town.keeper.is_slow = True
    client = joined(town, 4)
    client.publish(b"one", 2)
    client.talk(1)
    town.keeper.write(is_safe=False)
    client.talk()
    assert packets.PUBREC not in _kinds(client)
    assert client.end.closing


@versions
@pytest.mark.parametrize("releases", [True, False])
def test_a_publication_that_broker_and_node_have_forgotten_is_said_again_when_its_client_is_back(
    version: int, releases: bool
) -> None:
    town = WatchedTown()
    _received(town, version)
    _both_die(town)
    again = joined(town, version)
    if releases:
        again.pending[1] = "released"
        again.send(b"\x62\x02\0\1")
    again.talk(1)
    assert [payload for _, payload, _ in town.network.accepted] == [b"one", b"one"]
    assert town.watcher.doubts == ["repeated"]
    assert not last_words(again), "the witness has not seen it"
    assert town.keeper.kept(b"c")
    town.tickets[b"one"].settle()
    again.talk()
    assert last_words(again) == ([packets.PUBCOMP] if releases else [])
    assert not town.keeper.kept(b"c")
    again.publish(b"two", 2)
    again.talk(1)
    town.tickets[b"two"].settle()
    again.talk()
    assert not again.pending, "its identifier is free again"


@versions
def test_it_is_dropped_if_doubts_are_to_be_dropped(version: int) -> None:
    town = WatchedTown()
    town.watcher.repeats_doubts = False
    _received(town, version)
    _both_die(town)
    again = joined(town, version)
    again.pending[1] = "released"
    again.send(b"\x62\x02\0\1")
    again.talk(1)
    assert [payload for _, payload, _ in town.network.accepted] == [b"one"]
    assert town.watcher.doubts == ["dropped"]
    assert last_words(again) == [packets.PUBCOMP]
    assert not town.keeper.kept(b"c")


@versions
def test_a_broker_that_kept_the_session_is_not_told_twice(version: int) -> None:
    town = WatchedTown()
    _received(town, version)
    town.wire().cut()
    town.begin_again()
    again = ModelClient(town, version)
    again.connect(persistent=True)
    again.pending[1] = "released"
    again.send(b"\x62\x02\0\1")
    again.talk(1)
    assert [payload for _, payload, _ in town.network.accepted] == [b"one"]
    assert last_words(again) == [packets.PUBCOMP]
    assert not town.watcher.doubts
    assert not town.keeper.kept(b"c")


@versions
def test_what_is_being_said_again_survives_another_loss_of_the_broker(version: int) -> None:
    town = WatchedTown()
    _received(town, version)
    _both_die(town)
    again = joined(town, version)
    again.talk(1)
    town.lose_sessions()
    again.talk(2)
    assert [payload for _, payload, _ in town.network.accepted] == [b"one"] * 3
    town.tickets[b"one"].settle()
    again.talk()
    assert not town.keeper.kept(b"c")


@versions
def test_a_client_that_begins_anew_has_left_nothing_behind(version: int) -> None:
    town = WatchedTown()
    _received(town, version)
    _both_die(town)
    again = ModelClient(town, version)
    again.connect()
    again.talk(1)
    assert [payload for _, payload, _ in town.network.accepted] == [b"one"]
    assert not town.keeper.kept(b"c")


def test_publications_beyond_the_bound_are_counted_and_the_first_is_named() -> None:
    town = WatchedTown(GatewayLimits(buffer_bytes=1024))
    client = joined(town, 5)
    for name in (b"a", b"b", b"c"):
        town.tickets.pop(name * 600, None)
        client.publish(name * 600, 2)
        for _ in range(50):
            town.settle()
    assert list(town.keeper.kept(b"c")) == [1], "further ones have no room"
    assert town.watched.view()["not_kept"] == {"client-full": 2, "node-full": 0}
    named = [fields for event, fields in town.reports if event == "publications not kept"]
    assert [fields["client"] for fields in named] == ["c"]
    assert "1024 bytes" in named[0]["reason"]
