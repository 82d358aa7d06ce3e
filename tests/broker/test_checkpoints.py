"""A checkpoint holds what differs from the last, is taken while work goes on, and a crash finds every promise in it."""

from __future__ import annotations

import pytest

from broker.surviving_node import SurvivingNode
from sterna.broker.limits import Limits
from sterna.broker.session import stored_session
from sterna.broker.session.offset_queue import PIECE_MESSAGES

PUBACK, PUBREC = 4, 5


@pytest.fixture
def node() -> SurvivingNode:
    return SurvivingNode()


def test_events_that_were_open_when_it_was_taken_do_not_happen_twice() -> None:
    """A group that was left and joined again before a message came: to leave it once more would lose the message."""
    node = SurvivingNode(Limits(inflight=1))
    member = node.client("member", version=5)
    member.subscribe("$share/g/t", 1)
    writer = node.client("writer")
    writer.publish("t", b"fills the window", 1, 1)
    node.settle()
    writer.publish("t", b"waits", 1, 2)
    begun = node.begin_commit()
    member.unsubscribe("$share/g/t")
    member.subscribe("$share/g/t", 1)
    node.finish_commit(begun)
    node.checkpoint()
    assert node.disk.position.events == 2
    node.crash()
    again = node.client("member", version=5)
    (first,) = again.take()
    again.acknowledge(PUBACK, first.packet_id)
    node.settle()
    assert again.payloads() == [b"waits"]


@pytest.mark.parametrize("crash_after", ["the group", "the checkpoint"])
def test_a_qos_2_message_that_came_while_it_was_taken_is_neither_lost_nor_taken_twice(
    node: SurvivingNode, crash_after: str
) -> None:
    reader = node.client("reader")
    reader.subscribe("t", 1)
    node.settle()
    reader.vanish()
    writer = node.client("writer")
    writer.publish("t", b"once", 2, 7)
    assert node.node.journal.pending
    if crash_after == "the checkpoint":
        node.checkpoint()
    else:
        node.node.changes()
        node.begin_commit()
    node.crash()
    assert node.broker.sessions[b"writer"].received == {7}
    again = node.client("writer")
    again.publish("t", b"once", 2, 7)
    node.settle()
    assert [packet.kind for packet in again.take()] == [PUBREC]
    assert node.client("reader").payloads() == [b"once"]


def test_a_message_in_the_open_group_is_replayed_to_the_sessions_of_the_checkpoint(node: SurvivingNode) -> None:
    reader = node.client("reader")
    writer = node.client("writer")
    reader.subscribe("t", 1)
    writer.publish("t", b"early", 1, 1)
    node.checkpoint()
    writer.publish("t", b"late", 1, 2)
    node.settle()
    node.crash()
    assert node.client("reader").payloads() == [b"early", b"late"]


def test_a_checkpoint_that_could_not_be_saved_is_made_up_for_by_the_next(node: SurvivingNode) -> None:
    member = node.client("member", version=5)
    member.subscribe("$share/g/t", 1)
    node.settle()
    member.vanish()
    writer = node.client("writer")
    writer.publish("t", b"1", 1, 1)
    node.settle()
    failed = node.node.changes()
    assert "\0$share/g/t" in failed.sessions
    node.node.checkpoint_failed(failed)
    node.checkpoint()
    node.crash()
    assert node.client("member", version=5).payloads() == [b"1"]


def test_a_share_is_saved_only_if_something_came_or_went(node: SurvivingNode) -> None:
    member = node.client("member", version=5)
    member.subscribe("$share/g/t", 1)
    node.settle()
    member.vanish()
    writer = node.client("writer")
    writer.publish("t", b"1", 1, 1)
    node.checkpoint()
    node.settle()
    assert "\0$share/g/t" in node.node.changes().sessions
    writer.publish("u", b"2", 1, 2)
    node.settle()
    assert "\0$share/g/t" not in node.node.changes().sessions


def test_a_long_queue_is_saved_by_the_piece(node: SurvivingNode) -> None:
    reader = node.client("reader")
    reader.subscribe("t", 1)
    node.settle()
    reader.vanish()
    node.settle()
    session = node.broker.sessions[b"reader"]
    (_, grant), *_ = [(s, g) for s, g in node.broker.routes.route(b"t").deliveries]
    for number in range(20 * PIECE_MESSAGES):
        session.queue.push(2 * number, grant)
    waiting = list(session.queue)
    node.checkpoint()
    saved = stored_session.decode(node.disk.sessions["reader"])
    assert len(saved.queue) == 20
    node.crash()
    assert list(node.broker.sessions[b"reader"].queue) == waiting


def test_a_share_that_begins_anew_is_not_taken_for_the_one_before(node: SurvivingNode) -> None:
    """As much has come and gone as when the last checkpoint was taken, but it is something else."""
    member = node.client("member", version=5)
    member.subscribe("$share/g/t", 1)
    node.settle()
    member.vanish()
    writer = node.client("writer")
    writer.publish("t", b"of the share that ends", 1, 1)
    node.settle()
    node.checkpoint()
    member = node.client("member", version=5, clean=True)
    member.subscribe("$share/g/t", 1)
    node.settle()
    member.vanish()
    writer.publish("t", b"of the one that begins", 1, 2)
    node.settle()
    node.checkpoint()
    node.crash()
    assert node.client("member", version=5).payloads() == [b"of the one that begins"]


@pytest.mark.parametrize("checkpoints", [0, 1, 2])
@pytest.mark.parametrize("acknowledged", [True, False])
def test_what_a_passing_member_was_sent_is_not_lost_to_the_share(
    node: SurvivingNode, checkpoints: int, acknowledged: bool
) -> None:
    lasting = node.client("lasting", version=5)
    lasting.subscribe("$share/g/t", 1)
    node.settle()
    lasting.vanish()
    passing = node.client("passing", clean=True)
    passing.subscribe("$share/g/t", 1)
    node.settle()
    passing.take()
    writer = node.client("writer")
    writer.publish("t", b"owed", 1, 1)
    node.settle()
    (sent,) = passing.take()
    for _ in range(checkpoints):
        node.checkpoint()
    if acknowledged:
        passing.acknowledge(PUBACK, sent.packet_id)
        node.settle()
    if checkpoints > 1:
        node.checkpoint()
    node.crash()
    assert node.client("lasting", version=5).payloads() == ([] if acknowledged else [b"owed"])
