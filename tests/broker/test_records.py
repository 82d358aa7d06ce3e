"""Records for an audit: what a node notes of sessions and deliveries, in the group that holds what they tell of."""

from __future__ import annotations

from typing import Any

import pytest

from broker.lone_node import LoneNode
from broker.noted import RECORDED, deliveries, records
from conformance.packets import Puback, Pubrec
from sterna.broker.access.authorization import AccessRule
from sterna.broker.limits import Limits
from sterna.journal.audit_columns import session_batch
from sterna.journal.audit_records import SessionRecord
from sterna.journal.frames import HEADER_BYTES, SEGMENT_HEADER_BYTES, SESSIONS, _frame, parse_header
from sterna.journal.memory_store import MemoryStore
from sterna.journal.settings import JournalSettings
from sterna.node.feed_records import unpack_records
from sterna.vocabulary.errors import JournalCorrupt

NO_LOCAL = 0x04


def recorded(limits: Limits | None = None, **more: Any) -> LoneNode:
    return LoneNode(limits, settings=RECORDED, name="here", **more)


def happenings(node: LoneNode) -> list[tuple[str, str, str | None]]:
    return [(row["what"], row["client"], row["filter"]) for row in records(node, "sessions")]


def test_a_delivery_is_noted_when_the_client_has_the_message() -> None:
    node = recorded()
    reader = node.join("reader")
    for qos in range(3):
        reader.subscribe(f"qos/{qos}", qos)
    publisher = node.join("publisher")
    for qos in range(3):
        publisher.publish(f"qos/{qos}", b"", 2)
    assert deliveries(node) == [("reader", 0, 0, False, None)]
    _, at_least_once, exactly_once = reader.messages()
    reader.say(Puback(at_least_once.packet_id))
    reader.say(Pubrec(exactly_once.packet_id))
    assert deliveries(node) == [("reader", number, number, False, None) for number in range(3)]
    row = records(node, "deliveries")[-1]
    assert (row["origin"], row["epoch"], row["share"], row["retained"]) == ("here", 1, None, False)


def test_sessions_have_numbers_of_their_own_as_long_as_epochs_fit_into_a_frame() -> None:
    before = 1_795_000_000 << 32  # as they were numbered once
    numbers = []
    for epoch in (1_795_000_000, 1_795_000_001, 1 << 31, (1 << 32) - 1):
        node = recorded(epoch=epoch)
        node.join("one")
        node.join("other")
        rows = [row for row in records(node, "sessions") if row["what"] == "opened"]
        assert rows[0]["node_epoch"] == epoch
        numbers += [row["session"] for row in rows]
    assert sorted(set(numbers)) == numbers
    assert max(numbers[:6]) < before


def test_messages_published_at_qos_0_leave_no_record() -> None:
    node = recorded()
    node.join("reader").subscribe("#", 1)
    node.join("publisher").publish("t", b"")
    node.join("publisher").publish("t", b"", retain=True)
    assert deliveries(node) == []


def test_what_was_sent_again_or_because_it_is_retained_is_marked() -> None:
    node = recorded()
    node.join("publisher").publish("t", b"kept", 1, retain=True)
    reader = node.resume("reader")
    reader.subscribe("t", 1)
    reader.vanish()
    reader = node.resume("reader")
    (message,) = reader.messages()
    reader.say(Puback(message.packet_id))
    (row,) = records(node, "deliveries")
    assert (row["resent"], row["retained"]) == (True, True)


def test_every_drop_is_noted_with_its_reason() -> None:
    node = recorded(Limits(queued=1, inflight=1))
    away = node.resume("away")
    away.subscribe("t", 1)
    away.subscribe("0", 0)
    away.leave()
    node.join("small", maximum_packet_size=20).subscribe("big", 1)
    publisher = node.join("publisher")
    publisher.publish("t", b"", 1)
    publisher.publish("t", b"", 1)
    publisher.publish("0", b"", 1)
    publisher.publish("big", bytes(100), 1)
    assert deliveries(node) == [
        ("away", 1, 1, False, "queue-full"),
        ("away", 2, 0, False, "offline"),
        ("small", 3, 1, False, "packet-too-large"),
    ]


def test_a_message_that_expires_while_it_waits_is_noted() -> None:
    node = recorded()
    node.resume("away").subscribe("t", 1)
    node.session("away").connection.fail(0x98, "")  # type: ignore[union-attr]  # it is connected
    node.settle()
    node.join("publisher").publish("t", b"", 1, message_expiry=5)
    node.pass_time(10)
    node.resume("away")
    assert deliveries(node) == [("away", 0, 1, False, "expired")]


def test_the_life_of_sessions_and_subscriptions_is_noted_for_all_of_them() -> None:
    node = recorded()
    reader = node.join("reader")
    reader.subscribe("a", 1)
    reader.subscribe("a", 1)
    reader.subscribe("a", 2)
    reader.subscribe("b", NO_LOCAL)
    reader.unsubscribe("b")
    reader.leave()
    assert happenings(node) == [
        ("started", "", None),
        ("opened", "reader", None),
        ("subscribed", "reader", "a"),
        ("unsubscribed", "reader", "a"),
        ("subscribed", "reader", "a"),
        ("subscribed", "reader", "b"),
        ("unsubscribed", "reader", "b"),
        ("closed", "reader", None),
        ("ended", "reader", None),
    ]
    rows = records(node, "sessions")
    assert [(row["qos"], row["no_local"]) for row in rows if row["what"] == "subscribed"] == [
        (1, False),
        (2, False),
        (0, True),
    ]
    assert {row["session"] for row in rows[1:]} == {rows[1]["session"]} != {0}


def test_vectors_say_between_which_messages_a_subscription_stood() -> None:
    node = recorded()
    publisher = node.join("publisher")
    publisher.publish("t", b"", 1)
    reader = node.join("reader")
    reader.subscribe("t", 0)
    publisher.publish("t", b"", 1)
    publisher.publish("t", b"", 1)
    assert len(reader.messages()) == 2
    reader.unsubscribe("t")
    vectors = {row["what"]: dict(row["vector"]) for row in records(node, "sessions") if row["vector"] is not None}
    assert vectors["subscribed"] == {"here": {"epoch": 1, "sequence": 0}}
    assert vectors["unsubscribed"] == {"here": {"epoch": 1, "sequence": 2}}


def test_a_node_that_starts_again_says_which_subscriptions_it_carries_along() -> None:
    node = recorded()
    node.resume("stays").subscribe("a", 1)
    life = node.session("stays").life
    node.join("goes").subscribe("b", 1)
    again = recorded(store=node.store)
    rows = [row for row in records(again, "sessions") if row["node_epoch"] == 2]
    assert [(row["what"], row["client"], row["filter"]) for row in rows] == [
        ("started", "", None),
        ("carried", "stays", "a"),
        ("closed", "stays", None),
    ]
    assert rows[1]["session"] == life


def test_what_a_client_may_read_is_noted_with_its_subscription() -> None:
    deny = AccessRule(("*",), ("secret/%c",), "subscribe", "deny")
    node = recorded(rules=(deny,))
    node.join("reader").subscribe("#", 1)
    (row,) = [row for row in records(node, "sessions") if row["what"] == "subscribed"]
    assert row["rules"] == '[[["secret/reader",false]],true]'


def test_a_group_that_could_not_be_written_takes_no_records_with_it() -> None:
    node = recorded()
    reader = node.join("reader")
    reader.subscribe("t", 0)
    node.join("publisher").publish("t", b"", 1)
    before = records(node, "deliveries")
    journal = node.broker.journal
    node.join("publisher").publish("t", b"", 1)
    journal.let_records_be_written()
    group = journal.close_group()
    assert group is not None
    assert len(group.deliveries) == 1
    journal.failed(group)
    assert [row["sequence"] for row in records(node, "deliveries")] == [*(row["sequence"] for row in before), 1]


def test_records_wait_for_the_next_group_and_nobody_waits_for_them() -> None:
    node = recorded()
    reader = node.join("reader")
    reader.subscribe("t", 1)
    node.join("publisher").publish("t", b"", 1)
    (message,) = reader.messages()
    reader.say(Puback(message.packet_id))
    assert not node.broker.commitments.pending
    assert node.broker.journal.let_records_be_written()
    assert node.broker.commitments.pending


def test_without_the_setting_nothing_is_noted() -> None:
    node = LoneNode(name="here")
    node.join("reader").subscribe("t", 1)
    node.join("publisher").publish("t", b"", 1)
    assert not node.broker.journal.let_records_be_written()
    kinds = [header.kind for header in headers(node.store)]
    assert set(kinds) <= {1, 2}


def headers(store: MemoryStore) -> list[Any]:
    found = []
    for segment in store.segments():
        start = SEGMENT_HEADER_BYTES
        while header := parse_header(store.read(segment.serial, start, HEADER_BYTES)):
            found.append(header)
            start += HEADER_BYTES + header.length
    return found


def test_all_subscriptions_are_noted_again_before_the_journal_forgets_them() -> None:
    settings = JournalSettings(durability="os", deliveries=True, segment_bytes=2000, retention_bytes=8000)
    node = LoneNode(settings=settings, name="here")
    node.join("reader").subscribe("t", 0)
    publisher = node.join("publisher")
    for _ in range(30):
        publisher.publish("t", bytes(500), 1)
        node.node.checkpointed(node.node.changes())
        while node.node.tidy():
            pass
        node.settle()
    assert node.broker.journal.first_offset > 10
    assert [one for one in happenings(node) if one == ("carried", "reader", "t")]


@pytest.mark.parametrize("piece", [b"", b"\x00", b"\x02short", b"\x02" + bytes(80)])
def test_a_piece_that_holds_no_records_is_refused(piece: bytes) -> None:
    with pytest.raises(JournalCorrupt, match="no records"):
        list(unpack_records(memoryview(piece), "sessions", "here"))


def test_records_of_an_earlier_release_are_read_without_what_it_did_not_note() -> None:
    told = session_batch([SessionRecord("opened", 1.0, b"reader", 7, number=3)])
    body = told.select(told.schema.names[:-1]).serialize()
    frame = b"".join(map(bytes, _frame(SESSIONS, 0, 1, 1, 0, 0, body)))
    piece = memoryview(b"\x02" + bytes(8) + frame)
    ((_, rows),) = unpack_records(piece, "sessions", "here")
    (row,) = rows.to_pylist()
    assert (row["what"], row["client"], row["session"], row["number"]) == ("opened", "reader", 7, None)
