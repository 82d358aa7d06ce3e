"""Expressions that Spark computes, as the broker serves them: it computes none, and publishes each result once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.surviving_node import SurvivingNode
from sterna.broker.expressions.spark_expressions import PassedMessage
from sterna.broker.limits import Limits
from sterna.broker.session.publisher_sequence import numbered
from sterna.operators.settings import EngineChoice, OperatorSettings

SPARKS = OperatorSettings(engine="spark", engines=(EngineChoice("own/#", "node"),))
TEXT = b"$HOURLYSUM/t"
END_US = 1_700_000_000_000_000


@pytest.fixture
def node() -> SurvivingNode:
    return SurvivingNode(operators=SPARKS)


def hand_in(node: SurvivingNode, number: int, payload: bytes) -> None:
    node.broker.routes.computations.hand_in(TEXT, number, payload)
    node.settle()


def test_what_is_sparks_is_not_computed_here(node: SurvivingNode) -> None:
    watcher, sensor = node.client("watcher"), node.client("sensor")
    for text in (TEXT.decode(), "$SUM/u", "$GT;0/t", "$GT;0/own/t"):
        watcher.subscribe(text, 1)
        node.settle()
    node.wait(1)  # a client may cost so much in one turn
    computations = node.broker.routes.computations
    assert [text for text, _ in computations.outside()] == [TEXT, b"$SUM/u", b"$GT;0/t"]
    assert computations.sources() == [b"own/t"]
    sensor.publish("t", b"2", 1, 1)
    sensor.publish("own/t", b"1", 1, 2)
    node.settle()
    node.wait(7200)
    node.settle()
    assert watcher.payloads() == [b"1"]
    watcher.unsubscribe("$GT;0/own/t")
    node.settle()
    assert not computations.takes(b"own/t")


def test_a_result_is_published_once_however_often_it_comes(node: SurvivingNode) -> None:
    watcher, other = node.client("watcher"), node.client("other")
    watcher.subscribe(TEXT.decode(), 1)
    other.subscribe(TEXT.decode(), 0)
    node.settle()
    for number, payload in ((END_US, b"1.0"), (END_US, b"1.0"), (END_US + 1, b"2.0"), (END_US, b"1.0")):
        hand_in(node, number, payload)
    assert watcher.payloads() == other.payloads() == [b"1.0", b"2.0"]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_result_that_comes_again_after_a_crash_is_dropped(node: SurvivingNode, checkpoint: bool, qos: int) -> None:
    node.client("watcher").subscribe(TEXT.decode(), qos)
    node.settle()
    since = node.broker.routes.computations.outside()
    hand_in(node, END_US, b"1.0")
    if checkpoint:
        node.checkpoint()
    node.crash()
    watcher = node.client("watcher")
    watcher.payloads()
    before = node.broker.journal.next_offset
    hand_in(node, END_US, b"1.0")
    assert node.broker.journal.next_offset == before
    hand_in(node, END_US + 1, b"2.0")
    assert watcher.payloads()[-1] == b"2.0"
    if checkpoint:
        assert node.broker.routes.computations.outside() == since


def test_a_result_that_was_not_written_before_a_crash_is_taken_again(node: SurvivingNode) -> None:
    node.client("watcher").subscribe(TEXT.decode(), 1)
    node.settle()
    node.broker.routes.computations.hand_in(TEXT, END_US, b"1.0")
    node.crash()
    watcher = node.client("watcher")
    hand_in(node, END_US, b"1.0")
    assert watcher.payloads() == [b"1.0"]


def test_a_result_the_disk_did_not_take_is_tried_again(node: SurvivingNode) -> None:
    watcher = node.client("watcher")
    watcher.subscribe(TEXT.decode(), 1)
    node.settle()
    node.broker.routes.computations.hand_in(TEXT, END_US, b"1.0")
    node.refuse()
    hand_in(node, END_US, b"1.0")
    assert watcher.payloads() == [b"1.0"]


def test_a_result_that_nobody_wants_or_that_is_not_sparks_goes_nowhere(node: SurvivingNode) -> None:
    watcher = node.client("watcher")
    watcher.subscribe("$GT;0/own/t", 1)
    watcher.subscribe("$GT;0/t", 1)
    node.settle()
    computations, before = node.broker.routes.computations, node.broker.journal.next_offset
    computations.hand_in(TEXT, END_US, b"1.0")
    computations.hand_in(b"$GT;0/t", END_US, b"1.0")
    for topic in (b"own/t", b"u"):  # computed here; of no filter
        computations.hand_in(b"$GT;0/" + topic, END_US, b"1.0", PassedMessage(topic, 1, b"", 0.0))
        computations.hand_in(b"$GT;0/t", END_US, b"1.0", PassedMessage(topic, 1, b"", 0.0))
    computations.hand_in(TEXT, END_US, b"1.0", PassedMessage(b"t", 1, b"", 0.0))
    computations.hand_in(b"plain/topic", END_US, b"1.0")
    assert node.broker.journal.next_offset == before


def test_every_coming_and_going_is_a_new_edition(node: SurvivingNode) -> None:
    computations, watcher = node.broker.routes.computations, node.client("watcher")
    seen = [computations.edition]
    for subscribe, text in ((True, TEXT), (True, b"$GT;0/own/t"), (False, TEXT), (True, TEXT)):
        (watcher.subscribe if subscribe else watcher.unsubscribe)(text.decode(), *((1,) if subscribe else ()))
        node.settle()
        seen.append(computations.edition)
    assert seen == [0, 1, 1, 2, 3]


# -- rules alone: messages that pass --

ROOMS, ALL = b"$GT;0/room/+", b"$GT;0/room/#"
CONTENT_TYPE = b"\x03\x00\x01x"


def pass_on(node: SurvivingNode, text: bytes, number: int, topic: bytes, payload: bytes = b"1", qos: int = 1) -> None:
    passed = PassedMessage(topic, qos, CONTENT_TYPE, 0.0)
    node.broker.routes.computations.hand_in(text, END_US + number, payload, passed)
    node.settle()


def test_a_message_that_passed_goes_on_under_its_own_name_with_its_properties(node: SurvivingNode) -> None:
    watcher = node.client("watcher")
    watcher.subscribe(ROOMS.decode(), 1)
    node.settle()
    pass_on(node, ROOMS, 1, b"room/1", b"7", 2)
    pass_on(node, ROOMS, 2, b"room/2", b"8", 0)  # at QoS 0 nothing would remember it
    assert watcher.payloads() == [b"7", b"8"]
    kept = [node.broker.journal.read(offset) for offset in range(node.broker.journal.next_offset)]
    assert [(one.topic, one.qos, one.properties) for one in kept if one is not None] == [
        (b"$GT;0/room/1", 2, numbered(0, END_US + 1) + CONTENT_TYPE),
        (b"$GT;0/room/2", 1, numbered(0, END_US + 2) + CONTENT_TYPE),
    ]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_expressions_with_the_same_rules_share_their_numbers(node: SurvivingNode, checkpoint: bool) -> None:
    """A message comes once in the name of either, after a crash, too, and when the one it came by is gone."""
    one, other = node.client("one"), node.client("other")
    one.subscribe(ROOMS.decode(), 1)
    other.subscribe(ALL.decode(), 1)
    node.settle()
    node.checkpoint()
    pass_on(node, ALL, 1, b"room/1/x", b"deep")
    pass_on(node, ROOMS, 2, b"room/1", b"flat")
    assert one.payloads() == [b"flat"]
    assert other.payloads() == [b"deep", b"flat"]
    one.unsubscribe(ROOMS.decode())
    node.settle()
    if checkpoint:
        node.checkpoint()
    node.crash()
    other = node.client("other")
    other.payloads()
    before = node.broker.journal.next_offset
    for text in (ROOMS, ALL):
        pass_on(node, text, 2, b"room/1", b"flat")
    assert node.broker.journal.next_offset == before
    pass_on(node, ROOMS, 3, b"room/2", b"late")  # made before anybody knew that it was unsubscribed
    assert other.payloads()[-1] == b"late"


def test_rules_count_among_those_that_may_concern_one_message() -> None:
    node = SurvivingNode(operators=SPARKS, limits=Limits(overlapping_expressions=2))
    first, second, third = (node.client(name) for name in ("first", "second", "third"))
    for watcher, text in ((first, "$GT;1/#"), (first, "$HOURLYSUM/#"), (second, "$GT;2/t"), (third, "$GT;3/t")):
        watcher.subscribe(text, 1)
        node.wait(1)
    computations = node.broker.routes.computations
    assert [computations.get(b"$GT;%d/t" % number) is not None for number in (2, 3)] == [True, False]
    second.unsubscribe("$GT;2/t")
    node.settle()
    third.subscribe("$GT;3/t", 1)
    node.wait(1)
    assert [computations.get(b"$GT;%d/t" % number) is not None for number in (2, 3)] == [False, True]


# -- a job that is killed hands in again, to a node that is killed, too --

PASSED_QOS = (1, 2)


@pytest.mark.parametrize("qos", PASSED_QOS)
@pytest.mark.parametrize("is_acknowledged", [False, True])
def test_a_message_that_passed_comes_again_after_a_crash_only_as_its_qos_allows(
    node: SurvivingNode, is_acknowledged: bool, qos: int
) -> None:
    """The node dies before it has written down that the subscriber has it.  Rules pass a message on at its own QoS: at
    QoS 1 the session sends it again, whoever computes; at QoS 2 the subscriber knows the packet.  The job hands it in
    again, and that never is another publication."""
    watcher = node.client("watcher")
    watcher.subscribe(ROOMS.decode(), 2)
    node.settle()
    pass_on(node, ROOMS, 1, b"room/1", b"7", qos)
    (first,) = [packet for packet in watcher.take() if packet.kind == 3]
    assert first.qos == qos
    if is_acknowledged:
        watcher.acknowledge(4 if qos == 1 else 5, first.packet_id)
        node.broker.flush()
    node.crash()
    watcher = node.client("watcher")
    pass_on(node, ROOMS, 1, b"room/1", b"7", qos)
    repeated = [packet for packet in watcher.take() if packet.kind == 3]
    assert [(packet.qos, packet.packet_id) for packet in repeated] == [(qos, first.packet_id)]
    kept = [node.broker.journal.read(offset) for offset in range(node.broker.journal.next_offset)]
    assert [one.payload for one in kept if one is not None] == [b"7"]


steps = st.lists(
    st.sampled_from(["rooms", "all", "window", "write", "hear", "checkpoint", "node dies", "job dies"]), max_size=40
)


@given(steps, st.sampled_from(PASSED_QOS))
def test_each_result_is_in_the_journal_once_whoever_dies_when(drawn: list[str], qos: int) -> None:
    """Writing and hearing of it are two moments.  A job that was killed hands in everything since it last heard that
    the node has it, or more; of a node that was killed, what it had not written is handed in again."""
    node = SurvivingNode(operators=SPARKS)
    watcher = node.client("watcher")
    for text in (ROOMS, ALL, TEXT):
        watcher.subscribe(text.decode(), 2)
        node.settle()
    computations = node.broker.routes.computations
    made: list[tuple[bytes, int, PassedMessage | None]] = []
    begun = None

    def hand_in_from(place: int) -> None:
        for text, number, passed in made[place:]:
            computations.hand_in(text, END_US + number, b"%d" % number, passed)

    for step in drawn:
        if step in ("rooms", "all", "window"):
            passed = None if step == "window" else PassedMessage(b"room/1", qos, b"", 0.0)
            made.append(({"rooms": ROOMS, "all": ALL, "window": TEXT}[step], len(made), passed))
            hand_in_from(-1)
        elif step == "write" and begun is None and node.broker.commitments.pending:
            node.broker.flush()
            begun = node.begin_commit()
        elif step == "hear" and begun is not None:
            node.finish_commit(begun)
            begun = None
        elif step == "checkpoint" and begun is None:
            node.checkpoint()
        elif step == "node dies":
            node.crash()
            computations, begun = node.broker.routes.computations, None
            hand_in_from(0)
        elif step == "job dies":
            hand_in_from(len(made) // 2)
    if begun is not None:
        node.finish_commit(begun)
    hand_in_from(0)
    node.settle()
    kept = [node.broker.journal.read(offset) for offset in range(node.broker.journal.next_offset)]
    results = [(int(one.payload), one.publisher) for one in kept if one is not None]
    by_numbers: list[list[int]] = [
        [number for number, text in results if (text == TEXT) is is_window] for is_window in (False, True)
    ]
    assert by_numbers == [
        [number for text, number, _ in made if (text == TEXT) is is_window] for is_window in (False, True)
    ]
