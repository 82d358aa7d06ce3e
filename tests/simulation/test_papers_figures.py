"""The conversations of the thesis' figures, message for message, with their contents and tables."""

from __future__ import annotations

from itertools import count

import pytest
from paper_lines import EXPLAINED, PRINTED, Lines, by_sender, claims, figure_tree, mft

from sterna.simulation.papers.first_approach import FirstApproach
from sterna.simulation.papers.ideal_tree import IdealTree, Sent
from sterna.simulation.papers.messages import (
    Bmig,
    Bsub,
    Btab,
    Fmig,
    Mig,
    Name,
    PaperEvent,
    PaperMessage,
    ProxyMig,
    Pub,
    Rep,
    Sub,
    Uns,
)
from sterna.simulation.papers.mft import MftBroker, MftReading
from sterna.simulation.papers.phoenix import Phoenix
from sterna.simulation.papers.simple_routing import SimpleRouting

FIGURE_2_1 = {
    "b1": {"s1": ["f1"]},
    "b2": {"s2": ["f1", "f2"], "s4": ["f4"]},
    # The text gives f6 to s4 at b2; both of its tables have it behind b3, so that s5 has it here.
    "b3": {"s3": ["f3"], "s5": ["f1", "f6"], "s6": ["f6"]},
}
LINKS = {"b1": ["b2", "b3"], "b2": ["b1"], "b3": ["b1"]}
TABLE_2_2 = [
    ("f1", "b2"), ("f1", "b3"), ("f1", "s1"), ("f2", "b2"), ("f3", "b3"), ("f4", "b2"), ("f6", "b3"), ("f6", "b3"),
]  # fmt: skip


def simple() -> tuple[Lines, dict[str, SimpleRouting]]:
    lines = Lines()
    brokers = {name: SimpleRouting(name, lines.sender(name)) for name in LINKS}
    lines.brokers = brokers
    for name, links in LINKS.items():
        brokers[name].neighbours = dict.fromkeys(links)
    for at, subscribers in FIGURE_2_1.items():
        for subscriber, filters in subscribers.items():
            for one in filters:
                lines.tell(subscriber, at, Sub(one))
    return lines, brokers


def test_figure_2_1_the_table_of_b1_is_a_multiset() -> None:
    lines, brokers = simple()
    assert sorted(brokers["b1"].entries) == TABLE_2_2
    lines.tell("s5", "b3", Uns("f6"))
    assert ("f6", "b3") in brokers["b1"].entries, "s6 still wants it"
    lines.tell("s6", "b3", Uns("f6"))
    assert ("f6", "b3") not in brokers["b1"].entries


def test_figure_2_2_a_subscription_crosses_each_link_once() -> None:
    lines, brokers = simple()
    lines.sent.clear()
    lines.tell("s4", "b2", Sub("f7"))
    assert [(one.sender, one.to) for one in lines.sent] == [("b2", "b1"), ("b1", "b3")]
    assert sorted(brokers["b1"].entries) == [*TABLE_2_2, ("f7", "b2")]


def test_figure_2_3_an_event_is_sent_five_times() -> None:
    lines, _ = simple()
    lines.sent.clear()
    lines.tell("p1", "b2", Pub(PaperEvent("f1", "p1", 1)))
    assert {(one.sender, one.to) for one in lines.sent} == {
        ("b2", "s2"), ("b2", "b1"), ("b1", "s1"), ("b1", "b3"), ("b3", "s5"),
    }  # fmt: skip
    assert len(lines.sent) == 5


def phoenix() -> tuple[Lines, dict[str, Phoenix]]:
    lines, clock = Lines(), count(1)
    brokers = {name: Phoenix(name, lines.sender(name), lambda: next(clock)) for name in LINKS}
    lines.brokers = brokers
    for name, links in LINKS.items():
        brokers[name].neighbours = dict.fromkeys(links)
    for at, subscribers in FIGURE_2_1.items():
        for subscriber, filters in subscribers.items():
            for one in filters:
                lines.tell(subscriber, at, Sub(one, subscriber))
    lines.sent.clear()
    return lines, brokers


def test_table_2_3_phoenix_knows_whose_each_entry_is() -> None:
    _, brokers = phoenix()
    assert brokers["b1"].table.entries() == {
        ("f1", "s1", "s1"), ("f1", "b2", "s2"), ("f1", "b3", "s5"), ("f2", "b2", "s2"), ("f3", "b3", "s3"),
        ("f4", "b2", "s4"), ("f6", "b3", "s5"), ("f6", "b3", "s6"),
    }  # fmt: skip


def test_phoenix_replays_what_a_subscriber_that_moved_has_missed_once() -> None:
    lines, brokers = phoenix()
    for number in range(5):
        lines.tell("p", "b1", Pub(PaperEvent("f2", "p", number)))
    lines.sent.clear()
    # It has the first two: they were stored at the times 1 and 2.
    lines.tell("s2", "b3", Mig("s2", "b2", time=2))
    migrations = [(one.sender, one.to) for one in lines.sent if isinstance(one.message, Mig)]
    assert migrations == [("b3", "b1"), ("b1", "b2")], "only brokers between the old and the new one hear of it"
    got = [event.number for one in lines.sent if one.to == "s2" and isinstance(one.message, Rep)
           for event in one.message.events]  # fmt: skip
    assert got == [2, 3, 4]
    lines.sent.clear()
    lines.tell("p", "b1", Pub(PaperEvent("f2", "p", 5)))
    assert [(one.sender, one.to) for one in lines.sent] == [("b1", "b3"), ("b3", "s2")]
    assert "s2" not in brokers["b2"].local


def table_of(world: IdealTree, broker: Name) -> Btab:
    routes = world.brokers[broker].table.routes
    return Btab(tuple((name, tuple(route.filters)) for name, route in routes.items()))


def same(message: PaperMessage) -> PaperMessage:
    """The rows of a table have no order."""
    return Btab(tuple(sorted(message.table))) if isinstance(message, Btab) else message


def test_figure_3_1_the_first_approach_sends_13_messages() -> None:
    world = figure_tree(FirstApproach)
    whole = same(table_of(world, "b2"))
    world.move("b3", "b2")
    s3, s6, s7 = (ProxyMig((f"s{x}",), f"b{x}") for x in (3, 6, 7))
    expected = [
        Sent("b3", "b2", s3), Sent("b2", "b1", s3), Sent("b2", "b3", whole), Sent("b3", "b6", Fmig()),
        Sent("b3", "b7", Fmig()), Sent("b6", "b3", s6), Sent("b7", "b3", s7), Sent("b3", "b2", s6),
        Sent("b3", "b6", whole), Sent("b3", "b2", s7), Sent("b3", "b7", whole), Sent("b2", "b1", s6),
        Sent("b2", "b1", s7),
    ]  # fmt: skip
    assert by_sender(one._replace(message=same(one.message)) for one in world.sent) == by_sender(expected)
    assert len(world.sent) == 13
    assert world.wrong() == {}


def test_figure_3_1_a_route_is_wrong_until_the_brokers_below_have_answered() -> None:
    world = figure_tree(FirstApproach)
    world.cut("b3")
    world.join("b3", "b2")
    world.settle(3)
    assert world.brokers["b3"].table.via("s6") == "b2", "it trusts the table that it was sent"
    world.settle()
    assert world.brokers["b3"].table.via("s6") == "b6"


def test_figure_3_2_the_first_approach_sends_12_messages() -> None:
    world = figure_tree(FirstApproach)
    world.cut("b3")
    world.move("b6", "b5")
    world.join("b3", "b2")
    world.settle()
    kinds = [type(one.message).__name__ for one in world.sent]
    assert (kinds.count("ProxyMig"), kinds.count("Btab"), kinds.count("Fmig")) == (8, 3, 1)
    s3, s6, s7 = (ProxyMig((f"s{x}",), f"b{x}") for x in (3, 6, 7))
    claimed = [one for one in world.sent if isinstance(one.message, ProxyMig)]
    assert claimed == [
        Sent("b6", "b5", s6), Sent("b5", "b2", s6), Sent("b2", "b1", s6), Sent("b3", "b2", s3), Sent("b2", "b1", s3),
        Sent("b7", "b3", s7), Sent("b3", "b2", s7), Sent("b2", "b1", s7),
    ]  # fmt: skip
    assert world.wrong() == {}


CHILDREN_OF_B3 = claims(("s3", 1, 1), ("s6", 1, 2), ("s7", 1, 2))
OTHERS_OF_B3 = claims(("s1", 1, 2), ("s2", 1, 3), ("s4", 1, 4), ("s5", 1, 4))


@pytest.mark.parametrize("reading", [PRINTED, EXPLAINED], ids=["printed", "explained"])
def test_figure_4_1_mft_sends_2_messages(reading: MftReading) -> None:
    world = figure_tree(mft(reading))
    world.move("b3", "b2")
    assert world.sent == [
        Sent("b3", "b2", Bmig(CHILDREN_OF_B3, OTHERS_OF_B3, 0)),
        Sent("b2", "b1", Bmig(CHILDREN_OF_B3, (), 1)),
    ]
    assert world.wrong() == {}
    b6 = world.brokers["b6"]
    assert isinstance(b6, MftBroker)
    assert b6.times["s5"].hops == 5, "stale on purpose: nobody tells b6"


@pytest.mark.parametrize("reading", [PRINTED, EXPLAINED], ids=["printed", "explained"])
def test_figure_4_2_mft_sends_13_messages(reading: MftReading) -> None:
    world = figure_tree(mft(reading))
    world.cut("b3")
    world.move("b6", "b5")
    world.join("b3", "b2")
    world.settle()
    s6 = claims(("s6", 1, 1))
    others = claims(("s1", 1, 3), ("s2", 1, 4), ("s3", 1, 2), ("s4", 1, 5), ("s5", 1, 5), ("s7", 1, 3))
    told = [Bsub("s6", ("f6",), 1, 1, travelled) for travelled in range(4)]
    expected = [
        Sent("b6", "b5", Bmig(s6, others, 0)), Sent("b5", "b2", Bmig(s6, (), 1)), Sent("b2", "b1", Bmig(s6, (), 2)),
        Sent("b3", "b2", Bmig(CHILDREN_OF_B3, OTHERS_OF_B3, 0)),
        Sent("b2", "b1", Bmig(CHILDREN_OF_B3, (), 1)), Sent("b2", "b5", Bmig(CHILDREN_OF_B3, (), 1)),
        Sent("b5", "b6", Bmig(CHILDREN_OF_B3, (), 2)),
        Sent("b6", "b5", told[0]), Sent("b5", "b2", told[1]), Sent("b2", "b1", told[2]), Sent("b2", "b4", told[2]),
        Sent("b2", "b3", told[2]), Sent("b3", "b7", told[3]),
    ]  # fmt: skip
    assert by_sender(world.sent) == by_sender(expected)
    assert world.wrong() == {}


def test_figure_4_2_events_that_waited_at_b3_reach_s6_once() -> None:
    world = figure_tree(mft(EXPLAINED))
    world.cut("b3")
    world.move("b6", "b5")
    for number in range(3):
        world.publish("f6", "b7", number)
    world.settle()
    assert world.received["s6"] == []
    assert len(world.brokers["b3"].table.waiting["s6"]) == 3, "where the way ends, and nowhere else"
    assert not any(world.brokers[name].table.waiting for name in world.brokers if name != "b3")
    world.join("b3", "b2")
    world.settle()
    assert [event.number for event in world.received["s6"]] == [0, 1, 2]
    assert not world.brokers["b3"].table.waiting


@pytest.mark.parametrize("reading", [PRINTED, EXPLAINED], ids=["printed", "explained"])
def test_a_subscriber_that_jumps_between_partitions_is_known_by_its_own_list(reading: MftReading) -> None:
    world = figure_tree(mft(reading))
    world.cut("b3")
    s5 = world.subscribers["s5"]
    for at, gained, left in (("b3", "f50", "f5"), ("b2", "f51", "f50"), ("b3", "f52", "f51"), ("b2", "f53", "f52")):
        s5.connect(at)
        world.settle()
        s5.subscribe([gained])
        s5.unsubscribe([left])
        world.settle()
        partition = [name for name in world.brokers if world.component(name) == world.component(at)]
        known = {name: set(world.brokers[name].table.filters("s5")) for name in partition}
        assert known == {name: set(s5.filters) for name in partition}
