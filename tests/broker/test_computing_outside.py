"""Expressions that Spark computes, as the broker serves them: it computes none, and publishes each result once."""

from __future__ import annotations

import pytest
from surviving_node import SurvivingNode

from sterna.operators.settings import Settings

SPARKS = Settings(engine="spark")
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
    watcher.subscribe(TEXT.decode(), 1)
    watcher.subscribe("$SUM/u", 1)
    watcher.subscribe("$GT;0/t", 1)
    node.settle()
    computations = node.broker.routes.computations
    assert [text for text, _ in computations.outside()] == [TEXT, b"$SUM/u"]
    assert computations.sources() == [b"t"]
    sensor.publish("t", b"1", 1, 1)
    node.settle()
    node.wait(7200)
    node.settle()
    assert watcher.payloads() == [b"1"]
    watcher.unsubscribe("$GT;0/t")
    node.settle()
    assert not computations.takes(b"t")


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
    watcher.subscribe("$GT;0/t", 1)
    node.settle()
    computations, before = node.broker.routes.computations, node.broker.journal.next_offset
    computations.hand_in(TEXT, END_US, b"1.0")
    computations.hand_in(b"$GT;0/t", END_US, b"1.0")
    computations.hand_in(b"plain/topic", END_US, b"1.0")
    assert node.broker.journal.next_offset == before


def test_every_coming_and_going_is_a_new_edition(node: SurvivingNode) -> None:
    computations, watcher = node.broker.routes.computations, node.client("watcher")
    seen = [computations.edition]
    for subscribe, text in ((True, TEXT), (True, b"$GT;0/t"), (False, TEXT), (True, TEXT)):
        (watcher.subscribe if subscribe else watcher.unsubscribe)(text.decode(), *((1,) if subscribe else ()))
        node.settle()
        seen.append(computations.edition)
    assert seen == [0, 1, 1, 2, 3]
