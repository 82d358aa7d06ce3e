"""Lost messages are counted, named and told; and to forget it never takes longer than a bounded step at a time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from broker.lone_node import WALL_OFFSET, LoneNode
from conformance.packets import Puback
from sterna.broker.delivery import queue_retention
from sterna.broker.delivery.queue_retention import STEP_WORK, Sweep
from sterna.broker.limits import Limits
from sterna.broker.session.offset_queue import PIECE_MESSAGES
from sterna.journal.settings import JournalSettings


def told(node: LoneNode, event: str) -> list[dict[str, object]]:
    return [fields for name, fields in node.reports if name == event]


def waiting(node: LoneNode, names: list[str], count: int) -> None:
    """Sessions that wait for offsets 0, 1, 2...; whether the journal has them does not matter here."""
    for name in names:
        client = node.resume(name)
        client.subscribe("t", 1)
        client.leave()
        grant = node.broker.routes.route(b"t").deliveries[-1][1]
        node.session(name).queue.push_run(0, count, grant)


def swept(node: LoneNode, first_offset: int) -> Sweep:
    sweep = Sweep(node.broker.state, node.broker.delivery, node.broker.log, node.broker.reports)
    sweep.begin(first_offset)
    while sweep.step():
        assert sweep.steps < 10_000
    return sweep


# -- retention --


def test_messages_that_stay_because_they_are_retained_are_looked_up_in_steps_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = LoneNode()
    waiting(node, [f"c{number}" for number in range(30)], PIECE_MESSAGES)
    asked: list[int] = []

    def kept(_: object, offset: int) -> str:
        asked.append(offset)
        return "kept"

    monkeypatch.setattr(type(node.broker.retained), "at_offset", kept)
    sweep = Sweep(node.broker.state, node.broker.delivery, node.broker.log, node.broker.reports)
    sweep.begin(PIECE_MESSAGES)
    more = True
    while more:
        before = len(asked)
        more = sweep.step()
        assert len(asked) - before <= (STEP_WORK // queue_retention.PIECE_WORK) * PIECE_MESSAGES
    assert len(asked) == 30 * PIECE_MESSAGES
    assert all(len(session.queue) == PIECE_MESSAGES for session in node.broker.sessions.values())


def test_ten_long_queues_are_trimmed_in_steps_of_a_few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    node = LoneNode()
    count = 30 * PIECE_MESSAGES
    waiting(node, [f"c{number}" for number in range(10)], count)
    asked: list[int] = []
    monkeypatch.setattr(type(node.broker.retained), "at_offset", lambda _, offset: asked.append(offset))
    sweep = Sweep(node.broker.state, node.broker.delivery, node.broker.log, node.broker.reports)
    sweep.begin(count - 100)
    most, more = 0, True
    while more:
        before = len(asked)
        more = sweep.step()
        most = max(most, len(asked) - before)
    assert most <= (STEP_WORK // queue_retention.PIECE_WORK) * PIECE_MESSAGES
    assert len(asked) == 10 * (count - 100)
    assert all(len(session.queue) == 100 for session in node.broker.sessions.values())


def test_queues_that_have_nothing_to_lose_are_passed_in_large_numbers() -> None:
    node = LoneNode()
    waiting(node, [f"c{number}" for number in range(50)], 10)
    assert swept(node, 0).steps == 1
    assert node.dropped("retention") == 0


def test_each_session_and_share_is_told_once_what_retention_took() -> None:
    node = LoneNode()
    waiting(node, ["one", "two"], 3 * PIECE_MESSAGES)
    member = node.resume("member")
    member.subscribe("$share/g/t", 1)
    share = node.broker.routes.share(b"$share/g/t")
    assert share is not None
    share.queue.push_run(0, 10, None)
    swept(node, 2 * PIECE_MESSAGES)
    losses = {
        fields.get("client", fields.get("share")): fields["messages"]
        for fields in told(node, "retention dropped waiting messages")
    }
    assert losses == {"one": 2 * PIECE_MESSAGES, "two": 2 * PIECE_MESSAGES, "$share/g/t": 10}
    assert node.session("one").dropped_by_retention == 2 * PIECE_MESSAGES
    assert node.dropped("retention") == 4 * PIECE_MESSAGES + 10
    assert node.broker.routes.waiting.messages == 0


def test_what_a_session_had_lost_when_the_journal_was_trimmed_again_is_told_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_retention, "STEP_WORK", 1)
    node = LoneNode()
    waiting(node, ["one"], 3 * PIECE_MESSAGES)
    sweep = Sweep(node.broker.state, node.broker.delivery, node.broker.log, node.broker.reports)
    sweep.begin(2 * PIECE_MESSAGES)
    assert sweep.step()
    sweep.begin(3 * PIECE_MESSAGES)
    while sweep.step():
        pass
    assert sum(int(str(f["messages"])) for f in told(node, "retention dropped waiting messages")) == 3 * PIECE_MESSAGES
    assert node.session("one").dropped_by_retention == node.dropped("retention") == 3 * PIECE_MESSAGES


def test_a_session_that_ends_while_its_queue_is_trimmed_is_not_saved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_retention, "STEP_WORK", 1)
    node = LoneNode()
    waiting(node, ["one"], 3 * PIECE_MESSAGES)
    sweep = Sweep(node.broker.state, node.broker.delivery, node.broker.log, node.broker.reports)
    sweep.begin(2 * PIECE_MESSAGES)
    assert sweep.step()
    node.broker.lifecycle.end_session(node.session("one"))
    while sweep.step():
        pass
    assert b"one" not in node.broker.log.changed


def test_the_node_drops_one_segment_a_step_and_then_what_waited_for_it() -> None:
    node = LoneNode(settings=JournalSettings(durability="os", segment_bytes=64 * 1024, retention_bytes=100_000))
    reader = node.resume("reader")
    reader.subscribe("t", 1)
    reader.leave()
    writer = node.join("writer")
    for _ in range(60):
        writer.publish("t", bytes(10_000), 1)
    node.node.checkpointed(node.node.changes())
    before = node.node.journal.statistics().segments
    segments = [before]
    while node.node.tidy():
        segments.append(node.node.journal.statistics().segments)
    assert segments[1] == before - 1
    assert all(one - other <= 1 for one, other in pairwise(segments))
    assert node.session("reader").dropped_by_retention == node.node.journal.first_offset > 0


# -- clocks --


def test_a_clock_that_is_set_forward_does_not_make_everything_old_at_once() -> None:
    settings = JournalSettings(durability="os", segment_bytes=64 * 1024, retention_age_s=1000.0)
    node = LoneNode(settings=settings)
    writer = node.join("writer")
    for _ in range(20):
        writer.publish("t", bytes(10_000), 1)
    node.node.checkpointed(node.node.changes())
    day = 24 * 3600.0
    node.broker.tell_time(node.now, node.wall + 365 * day)
    for _ in range(3):
        assert not node.node.tidy()
    assert node.node.journal.first_offset == 0
    (report,) = told(node, "the clock was set forward")
    assert report["seconds"] == 365 * day
    node.now += 1001.0
    node.broker.tell_time(node.now, node.wall + 365 * day)
    assert node.node.tidy()
    assert node.node.journal.first_offset > 0


def test_a_clock_that_is_set_back_makes_nothing_old() -> None:
    settings = JournalSettings(durability="os", segment_bytes=64 * 1024, retention_age_s=1000.0)
    node = LoneNode(settings=settings)
    writer = node.join("writer")
    for _ in range(20):
        writer.publish("t", bytes(10_000), 1)
    node.node.checkpointed(node.node.changes())
    node.now += 1001.0
    node.broker.tell_time(node.now, WALL_OFFSET)
    assert not node.node.tidy()
    assert node.node.journal.first_offset == 0
    assert told(node, "the clock was set forward") == []


# -- full queues --


def test_what_a_full_queue_turns_away_is_counted_for_the_session_and_told_once() -> None:
    node = LoneNode(Limits(queued=2))
    reader = node.resume("reader")
    reader.subscribe("t", 1)
    reader.leave()
    writer = node.join("writer")
    for _ in range(5):
        writer.publish("t", b"", 1)
        node.node.tidy()
    event = "messages are dropped: too many wait already"
    assert told(node, event) == [{"waiting_for": "reader", "reason": "queue-full"}]
    assert node.session("reader").dropped_by_full_queue == 3
    (view,) = [view for view in node.broker.views(10) if view.client == "reader"]
    assert (view.queued, view.dropped_by_full_queue) == (2, 3)
    again = node.resume("reader")
    again.send(Puback(1), Puback(2))
    again.leave()
    for _ in range(3):
        writer.publish("t", b"", 1)
        node.node.tidy()
    assert len(told(node, event)) == 2
    assert node.session("reader").dropped_by_full_queue == 4


# -- the end of a session --


def test_a_session_that_has_ended_holds_no_messages_whoever_still_knows_it() -> None:
    node = LoneNode(Limits(inflight=1))
    reader = node.resume("reader")
    reader.subscribe("t", 1)
    writer = node.join("writer")
    for _ in range(3):
        writer.publish("t", b"x", 1)
    session = node.session("reader")
    assert (len(session.inflight), session.inflight_bytes, len(session.queue)) == (1, 1, 2)
    reader.vanish()
    node.pass_time(101)
    assert b"reader" not in node.broker.sessions
    assert (len(session.inflight), session.inflight_bytes, len(session.queue)) == (0, 0, 0)


# -- damage --


def test_damage_found_while_running_is_told_and_counted() -> None:
    node = LoneNode()
    reader = node.resume("reader")
    reader.subscribe("t", 1)
    reader.leave()
    node.join("writer").publish("t", b"x", 1)
    journal = node.node.journal
    journal._tail_limits = (0, 0)
    node.join("other").publish("u", b"y", 1)  # so that the first one leaves the tail
    segment = node.store._segments[1]
    place = journal._index.find(0)
    assert place is not None
    data = bytearray(node.store.read(1, 0, segment.size))
    data[place.start + 100] ^= 0x10
    segment.chunks, segment.starts = [bytes(data)], [0]
    again = node.resume("reader")
    assert again.payloads() == []
    (report,) = told(node, "the journal is damaged")
    assert "a checksum does not hold" in str(report["reason"])
    assert node.broker.statistics().journal_lost == 1
