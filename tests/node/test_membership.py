"""Nodes that meet for the first time: what either has taken since both were members reaches the other, and no more."""

from __future__ import annotations

import pytest

from broker.lone_node import Client
from node.faulty_nodes import FaultyTown
from sterna.journal.journal import Journal
from sterna.journal.memory_store import MemoryStore
from sterna.journal.settings import JournalSettings
from sterna.mqtt.message import Message
from sterna.node.membership import PASSED_OVER_MAX, Membership, first_since
from sterna.vocabulary.identity import Identity, Stamp

NOON = 1_800_000_000.0


def payloads(client: Client) -> list[bytes]:
    return [message.payload for message in client.messages()]


def test_a_chain_of_nodes_that_never_met_owes_everything_to_each_other(strategy: str) -> None:
    town = FaultyTown("abc", strategy)
    subscribers = [town[name].join(f"at-{name}") for name in "abc"]
    for subscriber in subscribers:
        subscriber.subscribe("t", 1)
    for name in "abc":
        town[name].join(f"from-{name}").publish("t", name.encode(), 1)
    town.connect("ab", "bc")
    town.pass_time(1)
    assert [sorted(payloads(subscriber)) for subscriber in subscribers] == [[b"a", b"b", b"c"]] * 3


def test_a_newcomer_is_spared_what_was_before_its_time(strategy: str) -> None:
    town = FaultyTown("a", strategy)
    publisher = town["a"].join("publisher")
    publisher.publish("t", b"long ago", 1)
    town.pass_time(3600)
    town.add("n")
    subscriber = town["n"].join("subscriber")
    subscriber.subscribe("t", 1)
    town["a"].join("publisher").publish("t", b"in its time", 1)
    town.pass_time(60)
    town.connect("an")
    town.pass_time(1)
    assert payloads(subscriber) == [b"in its time"]


def test_a_retained_message_of_that_time_comes_once_and_is_known(strategy: str) -> None:
    town = FaultyTown("a", strategy)
    town.add("n")
    waiting = town["n"].join("waiting")
    waiting.subscribe("t", 1)
    town["a"].join("publisher").publish("t", b"value", 1, retain=True)
    town.connect("an")
    town.pass_time(1)
    late = town["n"].join("late")
    late.subscribe("t", 1)
    assert (payloads(waiting), payloads(late)) == ([b"value"], [b"value"])


# -- how long it has been --


def journal_of(*times: float | None) -> Journal:
    """Messages of our own, taken in at these times; None: one of another node, whose clock says anything."""
    store = MemoryStore(JournalSettings(durability="memory"), "n")
    journal = Journal(store, JournalSettings(durability="memory"), epoch=7)
    for number, time in enumerate(times):
        message = Message(b"t", b"", 1, False, received_at=time or NOON * 2)
        if time is None:
            message.identity = Identity("other", 1, number)
        journal.append(message)
    return journal


def test_a_younger_reader_begins_at_its_own_birth_by_our_clock() -> None:
    journal = journal_of(*(NOON + second for second in range(1000)))
    member = Membership(Stamp(int(NOON), -1), journal, now=5.0, wall=NOON)
    begins = member.reading_begins(100.0, now=1005.0, wall=NOON + 1000, frontier=Stamp(7, 999))
    assert begins == Stamp(7, 894)  # and a few seconds more, for the question was under way


def test_an_older_reader_begins_where_we_became_members() -> None:
    journal = journal_of(*(NOON + second for second in range(10)))
    member = Membership(Stamp(int(NOON), 3), journal, now=0.0, wall=NOON)
    assert member.reading_begins(1e6, now=10.0, wall=NOON + 10, frontier=Stamp(7, 9)) == Stamp(7, 3)


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_clock_that_is_set_while_we_run_costs_nothing(jump: float) -> None:
    times = [NOON + second for second in range(50)] + [NOON + jump + second for second in range(50, 100)]
    member = Membership(Stamp(int(NOON), -1), journal_of(*times), now=0.0, wall=NOON)
    begins = member.reading_begins(80.0, now=100.0, wall=NOON + jump + 100, frontier=Stamp(7, 99))
    assert begins.sequence < 20


def test_others_messages_are_passed_over_whatever_their_clocks_say() -> None:
    journal = journal_of(NOON, None, None, NOON + 50, None, NOON + 100, None)
    assert first_since(journal.read, 0, 7, NOON + 50) in (1, 2, 3)
    crowd = journal_of(NOON, *[None] * (3 * PASSED_OVER_MAX), NOON + 50)
    assert first_since(crowd.read, 0, crowd.next_offset, NOON + 50) <= 3 * PASSED_OVER_MAX + 1


def test_age_is_steady_in_the_first_life_and_by_the_clock_afterwards() -> None:
    newborn = Membership(None, journal_of(), now=10.0, wall=NOON)
    assert newborn.is_new
    assert newborn.age(now=70.0, wall=NOON - 99) == 60.0
    risen = Membership(newborn.first, journal_of(), now=0.0, wall=NOON + 500)
    assert risen.age(now=20.0, wall=NOON + 520) == 520.0


def test_a_node_whose_clock_went_back_while_it_was_away_says_it_is_very_old() -> None:
    set_back = Membership(Stamp(int(NOON), -1), journal_of(), now=0.0, wall=NOON - 1)
    assert set_back.age(now=1.0, wall=NOON) > 1e8


def test_a_clock_that_was_never_set_is_not_asked() -> None:
    member = Membership(Stamp(12, -1), journal_of(), now=0.0, wall=NOON)
    assert member.age(now=30.0, wall=NOON + 30) == 30.0
