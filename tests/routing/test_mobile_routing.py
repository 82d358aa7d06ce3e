"""Strategy `mobile`: the figures and counterexamples of the thesis it comes from, and tables that are right once quiet.

The tree of the figures: b1 leads; b2 and b3 below it; b4 and b5 below b2, b6 and b7 below b3.  Each node wants its own
filter.  Each counterexample breaks the protocol as published; its name says what must hold instead.
"""

from __future__ import annotations

from random import Random

import pytest
from mobile_field import MobileField

from sterna.routing.mobile_frames import VERSION_MAX, Claim, NodeRecord, Told, encode
from sterna.vocabulary.errors import LinkProtocolError
from sterna.vocabulary.identity import Stamp

TREE = (("b2", "b1"), ("b3", "b1"), ("b4", "b2"), ("b5", "b2"), ("b6", "b3"), ("b7", "b3"))


def _figure() -> MobileField:
    field = MobileField(*(f"b{number}" for number in range(1, 8)))
    for child, parent in TREE:
        field.link(child, parent)
        field.settle()
    field.rest()
    assert field.wrong() == []
    field.sent.clear()
    return field


def _claims(field: MobileField) -> list[tuple[str, str, list[str]]]:
    return [
        (source, target, sorted(told.node for told in frame.entries))
        for source, target, frame in field.sent
        if isinstance(frame, Claim)
    ]


def test_figure_4_1_takes_two_messages() -> None:
    field = _figure()
    field.move("b3", "b2")
    field.settle()
    assert _claims(field) == [("b3", "b2", ["b3", "b6", "b7"]), ("b2", "b1", ["b3", "b6", "b7"])]
    assert len(field.table_frames()) == 2
    assert [field.rovers[name].via("b6") for name in ("b1", "b2", "b3", "b4")] == ["b2", "b3", "b6", "b2"]
    assert field.rovers["b6"].via("b4") == "b3"
    field.rest()
    assert field.wrong() == []


def test_figure_4_2_takes_five_messages_where_the_paper_needs_thirteen() -> None:
    field = _figure()
    field.unlink("b3", "b1")
    field.unlink("b6", "b3")
    field.link("b6", "b5")
    field.settle()
    field.link("b3", "b2")
    field.settle()
    assert _claims(field)[:3] == [("b6", "b5", ["b6"]), ("b5", "b2", ["b6"]), ("b2", "b1", ["b6"])]
    assert _claims(field)[3:] == [("b3", "b2", ["b3", "b7"]), ("b2", "b1", ["b3", "b7"])]
    assert len(field.table_frames()) == 5
    assert [field.rovers[name].via("b6") for name in ("b1", "b2", "b3", "b5", "b7")] == ["b2", "b5", "b2", "b6", "b3"]
    field.rest()
    assert field.wrong() == []


def test_figure_4_2_is_the_same_after_a_cut_a_crash_and_a_move() -> None:
    tables = []
    for cause in ("cut", "crash", "move"):
        field = _figure()
        if cause == "crash":
            field.kill("b6")
            field.rest()
            field.boot("b6")
            field.link("b6", "b5")
        elif cause == "cut":
            field.unlink("b6", "b3")
            field.link("b6", "b5")
        else:
            field.move("b6", "b5", make_before_break=True)
        field.rest()
        assert field.wrong() == []
        tables.append({name: rover.via("b6") for name, rover in field.rovers.items()})
    assert tables[0] == tables[1] == tables[2]


def test_a_leaf_that_moves_to_another_branch_is_found_by_all() -> None:
    """Item 39: as printed, five of seven nodes end with wrong tables."""
    field = _figure()
    field.move("b6", "b4")
    field.settle()
    field.rest()
    assert field.wrong() == []


def test_an_old_leader_that_moves_keeps_its_own_subscriber() -> None:
    """Item 39: as printed, a merge in which the old leader moves makes a node give away its own subscriber."""
    field = MobileField("a1", "a2", "x1", "x2")
    field.link("a2", "a1")
    field.link("x2", "x1")
    field.rest()
    field.link("x1", "a2")
    field.rest()
    assert field.wrong() == []
    assert field.rovers["x1"].routing.counters.contradicted == 0


def test_a_claim_is_passed_on_once_even_in_a_ring() -> None:
    """Item 40: the guard that gives the published figure is true again when a message comes back, and it circles."""
    field = MobileField("a", "b", "c", "d")
    for child, parent in (("b", "a"), ("c", "b")):
        field.link(child, parent)
    field.rest()
    field.link("c", "a")  # b is still linked: a ring
    field.link("d", "c")
    field.settle()
    ways = [(source, target) for source, target, nodes in _claims(field) if nodes == ["d"]]
    assert len(ways) == len(set(ways))
    field.unlink("c", "b")
    field.rest()
    assert field.wrong() == []


def test_a_filter_given_up_in_one_partition_is_gone_in_the_other_after_the_merge() -> None:
    """Item 41: lists made from the filters forget a subscriber that has none left, and its phantom survives."""
    field = _figure()
    field.unlink("b3", "b1")
    field.rovers["b6"].routing.unwant(b"f/b6")
    field.rest()
    assert field.rovers["b1"].wants("b6") == {b"f/b6"}
    field.link("b3", "b2")
    field.rest()
    assert field.wrong() == []
    assert all(rover.wants("b6") == set() for name, rover in field.rovers.items())


def test_a_subscription_made_in_the_other_partition_is_known_after_the_merge() -> None:
    field = _figure()
    field.unlink("b3", "b1")
    field.rovers["b7"].routing.want(b"new/#")
    field.rovers["b4"].routing.want(b"other/+")
    field.rest()
    field.link("b3", "b2")
    field.rest()
    assert field.wrong() == []
    assert field.rovers["b4"].wants("b7") == {b"f/b7", b"new/#"}
    assert field.rovers["b7"].wants("b4") == {b"f/b4", b"other/+"}


def test_no_stale_distance_makes_a_node_unreachable() -> None:
    """Item 42: in a chain of five, b5 moves to b1 and then b2 to b5; b4 is lost for good in the published protocol."""
    field = MobileField("b1", "b2", "b3", "b4", "b5")
    for child, parent in (("b2", "b1"), ("b3", "b2"), ("b4", "b3"), ("b5", "b4")):
        field.link(child, parent)
        field.settle()
    field.rest()
    field.move("b5", "b1")
    field.settle()
    field.move("b2", "b5")
    field.settle()
    assert [field.rovers[name].via("b4") for name in ("b1", "b2", "b5")] == ["b5", "b3", "b2"]
    field.rest()
    assert field.wrong() == []


def test_nothing_is_claimed_through_a_dead_link() -> None:
    """Item 43: the published protocol claims b6 though its link is gone, and needs 13 messages for Figure 4.2."""
    field = _figure()
    field.unlink("b6", "b3")
    field.unlink("b3", "b1")
    field.link("b3", "b2")
    field.settle()
    assert _claims(field)[0] == ("b3", "b2", ["b3", "b7"])


def test_two_neighbours_never_point_at_each_other_for_good() -> None:
    """Item 44: with equal versions both believe the other, and messages are dropped between them."""
    field = MobileField("a", "b", "c")
    field.link("b", "a")
    field.link("c", "b")
    field.rest()
    one = Told("c", (1, 0), (1, 1), 7, (1, 0))
    field.send("a", "b", encode(Claim(("a", (1, 99)), [one])))  # a claims c, which it reaches through b alone
    field.settle()
    assert field.rovers["c"].routing.counters.contradicted == 1  # at once, and all know
    field.rest()
    assert field.wrong() == []
    assert set(field.rovers["c"].doubts) >= {"a", "b"}  # what was on its way to c may have gone astray


def test_a_way_that_changed_and_changed_back_is_another_way() -> None:
    """Item 45: events under way meanwhile were lost or come twice; readers behind it have to ask."""
    field = MobileField("a", "b", "c")
    field.link("b", "a")
    field.link("c", "b")
    field.rest()
    field.rovers["c"].doubts.clear()
    field.unlink("b", "a")
    field.link("b", "a")
    field.rest()
    assert "a" in field.rovers["c"].doubts


@pytest.mark.parametrize("seed", range(60))
def test_once_quiet_all_tables_are_right_whatever_moved_crashed_or_was_lost(seed: int) -> None:
    """Item 46: published, 1,000 of 1,000 runs end with wrong tables; as explained, 298."""
    dice = Random(seed)
    names = [f"b{number}" for number in range(1, dice.choice((5, 8, 14)))]
    field = MobileField(*names)
    for _ in range(30):
        _step(field, names, dice)
        for _ in range(dice.randrange(60)):  # some of what is in flight arrives, in the order of its wire
            busy = [pair for pair, frames in field.wires.items() if frames]
            if busy:
                field.deliver(*dice.choice(busy))
        if dice.random() < 0.3:
            field.rest(dice.uniform(0.1, 3.0))
    field.rest(30)
    assert field.wrong() == []
    sent = len(field.sent)
    field.rest(30)
    assert len(field.sent) == sent  # nothing circulates


def _step(field: MobileField, names: list[str], dice: Random) -> None:
    child = dice.choice(names)
    rover = field.rovers[child]
    match dice.choice(("join", "join", "join", "part", "want", "unwant", "crash", "lose")):
        case "join":
            below = {child}
            while more := {name for name in names for up in field.rovers[name].parents[:1] if up in below} - below:
                below |= more
            others = [name for name in names if name not in below]
            if others:  # a tree of the overlay has no circles, but a former parent may be linked for a moment
                parent = dice.choice(others)
                former = [name for name in rover.parents if name != parent]
                if dice.random() < 0.5:
                    for name in former:
                        field.unlink(child, name)
                field.link(child, parent)
                for name in former:
                    field.unlink(child, name)
        case "part":
            for name in rover.parents:
                field.unlink(child, name)
        case "want":
            rover.routing.want(f"x/{dice.randrange(5)}/#".encode())
            rover.routing.flush()
        case "unwant":
            held = sorted(rover.routing._local)
            if held:
                rover.routing.unwant(dice.choice(held))
                rover.routing.flush()
        case "crash":
            field.kill(child)
            field.boot(child)
        case "lose":
            if field.wires:
                field.unlink(*dice.choice(sorted(field.wires)))


def test_a_direct_message_takes_the_way_to_one_node_and_no_other() -> None:
    field = _figure()
    topic = b"f/b6"
    way = ["b4"]
    while links := [link for link in field.rovers[way[-1]].routing.links_for(topic) if link not in way]:
        assert len(links) == 1
        way.append(links[0])
    assert way == ["b4", "b2", "b1", "b3", "b6"]


# Bounds, and nodes that lie.


def test_versions_from_the_far_future_are_refused() -> None:
    field = _figure()
    for frame in (
        NodeRecord("b4", (1, VERSION_MAX + 1)),
        Claim(("b2", (1, VERSION_MAX + 5)), []),
        NodeRecord("b4", (1, 5), [b"not/#/a filter"]),
        NodeRecord("b4", (1, 5), [], [(b"no share", 1)]),
    ):
        with pytest.raises(LinkProtocolError):
            field.rovers["b1"].routing.receive("b2", encode(frame))
    with pytest.raises(LinkProtocolError):
        field.rovers["b1"].routing.receive("b2", b"\x63junk")


def test_filters_claimed_for_somebody_else_are_taken_back_by_that_node() -> None:
    field = _figure()
    field.send("b2", "b1", encode(NodeRecord("b6", (1, 40), [b"#"])))
    field.rest()
    assert field.wrong() == []
    assert field.rovers["b1"].wants("b6") == {b"f/b6"}


def test_a_node_that_claims_everything_is_contradicted_by_each() -> None:
    field = _figure()
    others = [Told(f"b{number}", (1, 0), (1, 1), 5, (1, 0)) for number in (1, 2, 3, 4, 5, 6)]
    field.send("b7", "b3", encode(Claim(("b7", (1, 77)), others)))
    field.rest()
    assert field.wrong() == []


def test_no_more_nodes_are_known_than_a_network_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sterna.routing.mobile.ORIGINS_MAX", 10)
    field = _figure()
    crowd = [Told(f"x{number}", (1, 0), (1, 1), 5, (1, 0)) for number in range(50)]
    field.rovers["b1"].routing.receive("b2", encode(Claim(("b2", (1, 78)), crowd)))
    assert len(field.rovers["b1"].routing._table.nodes) == 10
    assert field.rovers["b1"].routing.counters.refused == 47


def test_a_node_with_too_many_filters_asks_for_everything() -> None:
    field = _figure()
    for number in range(3000):
        field.rovers["b4"].routing.want(b"%0100d/#" % number)
    field.rest()
    assert field.rovers["b6"].wants("b4") == {b"#"}


def test_the_last_message_of_an_origin_is_heard_of_everywhere() -> None:
    field = _figure()
    field.rovers["b6"].stamp = Stamp(1, 41)
    field.rovers["b6"].routing.turn_ended()
    field.rest()
    assert field.rovers["b4"].routing._table["b6"].frontier == Stamp(1, 41)


def test_a_quiet_network_says_nothing() -> None:
    field = _figure()
    field.rest(600)
    assert field.sent == []
