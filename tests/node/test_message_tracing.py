"""Trace context in user properties: which is followed, and that nodes agree on spans without telling each other."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.broker.clock import BrokerClock
from sterna.mqtt.message import Message
from sterna.node.message_tracing import MARK, HopSpan, MessageTracing, context_in
from sterna.vocabulary.identity import Identity

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALUE = f"00-{TRACE}-{PARENT}-01".encode()


def tracing(node: str, share: float = 1.0) -> tuple[MessageTracing, list[HopSpan]]:
    clock, told = BrokerClock(), list[HopSpan]()
    clock.tell(0.0, 1000.0)
    return MessageTracing(node, clock, share, told.append), told


def message(value: bytes = VALUE, origin: str | None = None) -> Message:
    made = Message(b"plant/1", b"21.5", 1, properties=MARK + value, publisher=b"meter", received_at=999.5)
    if origin is not None:
        made.identity = Identity(origin, 1, 5)
    return made


def test_a_node_knows_the_span_of_the_hop_before_it() -> None:
    (a, at_a), (b, at_b) = tracing("a"), tracing("b")
    b.link_to = {"a": "a"}.get
    a.entered(message())
    a.sent("b", "a", b"\x01a" + MARK + VALUE + b" and what follows")
    b.delivered(message(origin="a"))
    entered, forwarded, delivered = at_a[0], at_a[1], at_b[0]
    assert [one.name for one in (entered, forwarded, delivered)] == ["entered", "forwarded", "delivered"]
    assert [one.parent for one in (entered, forwarded, delivered)] == [int(PARENT, 16), entered.span, forwarded.span]
    assert {one.trace for one in (entered, forwarded, delivered)} == {int(TRACE, 16)}
    assert (delivered.start_s, delivered.end_s) == (999.5, 1000.0)
    assert delivered.attributes["sterna.node"] == "b"


@pytest.mark.parametrize(
    "value",
    [
        f"00-{TRACE}-{PARENT}-00".encode(),
        f"00-{'0' * 32}-{PARENT}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        f"ff-{TRACE}-{PARENT}-01".encode(),
        f"00-{TRACE.upper()}-{PARENT}-01".encode(),
        VALUE[:-1],
        b"",
    ],
)
def test_what_is_not_sampled_or_no_context_is_left_alone(value: bytes) -> None:
    node, told = tracing("a")
    node.entered(message(value))
    node.delivered(message(value))
    node.sent("b", "a", MARK + value)
    assert told == []


def test_a_share_of_the_traces_is_told_and_every_node_picks_the_same() -> None:
    (a, at_a), (b, at_b) = tracing("a", 0.25), tracing("b", 0.25)
    rng = Random(1)
    for _ in range(400):
        value = f"00-{rng.getrandbits(128):032x}-{PARENT}-01".encode()
        a.entered(message(value))
        b.delivered(message(value, origin="a"))
    assert 60 <= len(at_a) <= 140
    assert [one.trace for one in at_a] == [one.trace for one in at_b]
    none, told = tracing("a", 0.0)
    none.entered(message())
    assert told == []


def test_every_message_of_a_frame_is_found() -> None:
    node, told = tracing("a")
    other = VALUE.replace(b"0af7", b"1111")
    node.sent("b", "x", b"junk" + MARK + VALUE + b"\x00" + MARK + b"no context" + MARK + other)
    assert [one.trace for one in told] == [int(TRACE, 16), int(TRACE.replace("0af7", "1111"), 16)]


@given(st.lists(st.sampled_from([MARK, VALUE, b"\x26", b"\x00", b"traceparent", VALUE[:20]])).map(b"".join))
def test_any_bytes_are_read_to_their_end(data: bytes) -> None:
    position, found = 0, 0
    while position >= 0:
        before = position
        context, position = context_in(data, position)
        found += context is not None
        assert position > before or position < 0
    assert found <= data.count(MARK + VALUE)
