"""Every branch of BMIG, BQUERY and BSUB in MFT-PubSub as explained: the answer, and the table afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from paper_lines import EXPLAINED, claims, figure_tree, mft

from sterna.simulation.papers.first_approach import FirstApproach
from sterna.simulation.papers.messages import (
    Bmig,
    Bquery,
    Bsub,
    Fmig,
    Mig,
    Name,
    PaperEvent,
    PaperMessage,
    Pub,
    Rep,
    Sub,
    Uns,
)
from sterna.simulation.papers.mft import Knowledge, MftBroker
from sterna.simulation.papers.phoenix import Phoenix
from sterna.simulation.papers.simple_routing import SimpleRouting


class OneBroker:
    """b with the neighbours x, y and z; s is reached by y, at time 5 and three hops."""

    def __init__(self) -> None:
        self.sent: list[tuple[PaperMessage, Name]] = []
        self.core = MftBroker("b", lambda message, to: self.sent.append((message, to)), EXPLAINED)
        self.core.neighbours = dict.fromkeys("xyz")
        self.core.receive(Sub("f", "s", 5, 2), "y")
        self.sent.clear()

    @property
    def via(self) -> Name | None:
        return self.core.table.via("s")


def claimed(time: int, hops: int, travelled: int = 1) -> OneBroker:
    """x claims s, and this broker is not the first to hear of it."""
    broker = OneBroker()
    broker.core.receive(Bmig(claims(("s", time, hops)), (), travelled), "x")
    return broker


def listed(time: int) -> OneBroker:
    """x knows of s and does not claim it."""
    broker = OneBroker()
    broker.core.receive(Bmig((), claims(("s", time, 9)), 1), "x")
    return broker


OURS = Bsub("s", ("f",), 5, 3, 0)


def test_a_claim_that_is_newer_is_asked_about_and_passed_on_with_the_old_time() -> None:
    broker = claimed(6, 4)
    assert broker.sent == [(Bquery("s", 5, 3), "x"), (Bmig(claims(("s", 5, 4)), (), 2), "y")]
    assert (broker.via, broker.core.times["s"]) == ("x", Knowledge(5, 3)), "its hops are known when the answer comes"


def test_a_claim_that_is_older_is_corrected_and_goes_no_further() -> None:
    broker = claimed(4, 1)
    assert broker.sent == [(OURS, "x")]
    assert (broker.via, broker.core.times["s"]) == ("y", Knowledge(5, 3))


@pytest.mark.parametrize("hops", [2, 3])
def test_a_claim_as_new_and_as_near_is_believed_turned_to_and_passed_on(hops: int) -> None:
    broker = claimed(5, hops)
    assert broker.sent == [(Bmig(claims(("s", 5, hops)), (), 2), "y")]
    assert (broker.via, broker.core.times["s"]) == ("x", Knowledge(5, 1 + hops + 1))


def test_a_claim_as_new_and_farther_away_is_corrected() -> None:
    broker = claimed(5, 4)
    assert broker.sent == [(OURS, "x")]
    assert broker.via == "y"


def test_a_claim_from_where_the_subscriber_is_goes_nowhere() -> None:
    broker = OneBroker()
    broker.core.receive(Bmig(claims(("s", 5, 1)), (), 1), "y")
    assert broker.sent == []


def test_others_are_compared_by_time_alone() -> None:
    assert listed(6).sent == [(Bquery("s", 5, 3), "x")]
    assert listed(5).sent == []
    assert listed(4).sent == [(OURS, "x")]
    assert listed(6).via == "y"


def test_a_subscriber_unknown_here_is_asked_about() -> None:
    broker = OneBroker()
    broker.core.receive(Bmig(claims(("new", 1, 1)), claims(("s", 5, 3)), 0), "x")
    assert broker.sent == [(Bquery("new", 0, 0), "x")]
    broker.core.receive(Bsub("new", ("g",), 1, 1, 0), "x")
    assert broker.core.table.entries() == {("f", "y", "s"), ("g", "x", "new")}
    assert broker.sent[1:] == [(Bsub("new", ("g",), 1, 1, 1), to) for to in "yz"]


def test_only_the_first_receiver_tells_of_subscribers_that_the_sender_does_not_know() -> None:
    for travelled, answers in ((0, [(OURS, "x")]), (1, [])):
        broker = OneBroker()
        broker.core.receive(Bmig((), (), travelled), "x")
        assert broker.sent == answers


def test_a_query_is_answered_only_if_the_asker_knows_less() -> None:
    for time, answers in ((4, [(OURS, "x")]), (5, []), (6, [])):
        broker = OneBroker()
        broker.core.receive(Bquery("s", time, 9), "x")
        assert broker.sent == answers


def test_told_filters_replace_those_before_and_a_repetition_of_them_that_is_no_nearer_ends() -> None:
    broker = OneBroker()
    broker.core.receive(Bsub("s", ("g", "h"), 6, 2, 0), "x")
    assert broker.core.table.entries() == {("g", "x", "s"), ("h", "x", "s")}
    assert broker.sent == [(Bsub("s", ("g", "h"), 6, 2, 1), to) for to in "yz"]
    broker.sent.clear()
    broker.core.receive(Bsub("s", ("g", "h"), 6, 3, 0), "z")
    assert broker.sent == []


def test_no_filters_with_a_newer_time_mean_gone() -> None:
    broker = OneBroker()
    broker.core.receive(Bsub("s", (), 6, 2, 0), "x")
    assert broker.core.table.entries() == set()
    broker.core.receive(Sub("f", "s", 5, 1), "y")
    assert broker.core.table.entries() == set(), "an old subscription brings nobody back"


def test_events_that_waited_go_in_few_messages_to_the_next_broker() -> None:
    broker = OneBroker()
    del broker.core.neighbours["y"]
    for number in range(100):
        broker.core.receive(Pub(PaperEvent("f", "p", number)), "p")
    assert broker.sent == []
    broker.core.migrate("y", "z")
    replays = [message for message, _ in broker.sent if isinstance(message, Rep)]
    assert len(replays) == 13
    assert [event.number for message in replays for event in message.events] == list(range(100))


def test_migrations_and_unsubscriptions_that_are_not_newer_change_nothing() -> None:
    broker = OneBroker()
    for message in (Mig("s", "q", 5, 1), Uns("f", "s", 5, 1), Sub("g", "s", 4, 1)):
        broker.core.receive(message, "x")
    assert broker.sent == []
    assert broker.core.table.entries() == {("f", "y", "s")}


def test_a_broker_that_starts_again_is_a_new_one_that_migrates_in() -> None:
    world = figure_tree(mft(EXPLAINED))
    for child in ("b6", "b7", "b3"):
        world.cut(child)
    world.brokers["b3"] = MftBroker("b3", world.sender_of("b3"), EXPLAINED)
    world.brokers["b3"].clients["s3"] = None
    world.lost_parents.clear()
    world.subscribers["s3"].connect("b3")
    world.settle()
    for child, parent in (("b3", "b1"), ("b6", "b3"), ("b7", "b3")):
        world.join(child, parent)
        world.settle()
    assert {name for name, _ in world.brokers["b3"].table.routes.items()} == {f"s{x}" for x in range(1, 8)}
    assert "s1" not in world.wrong()


@pytest.mark.parametrize(
    ("core", "message"),
    [
        (MftBroker("b", lambda message, to: None, EXPLAINED), Fmig()),
        (FirstApproach("b", lambda message, to: None), Bquery("s", 1, 1)),
        (Phoenix("b", lambda message, to: None, lambda: 0), Fmig()),
        (SimpleRouting("b", lambda message, to: None), Rep((), "s")),
    ],
)
def test_a_message_of_another_protocol_is_an_error(core: Any, message: PaperMessage) -> None:
    with pytest.raises(TypeError, match=f"{type(message).__name__} is no message for b"):
        core.receive(message, "x")


def test_a_world_in_which_messages_overtake_each_other_is_noticed() -> None:
    world = figure_tree(mft(EXPLAINED))
    for number in range(2):
        world.publish("f6", "b1", number)
    world._lines.reverse()
    with pytest.raises(AssertionError, match="has overtaken another from b1 to b3"):
        world.settle()
