"""Publishers that number their messages: what they send again is acknowledged and goes nowhere, whatever happened."""

from __future__ import annotations

from struct import pack

import pytest

from broker.surviving_node import Client, SurvivingNode
from sterna.broker.session.publisher_sequence import number_of

PUBACK, PUBREC, PUBREL, PUBCOMP = 4, 5, 6, 7
ANSWER = {1: PUBACK, 2: PUBREC}


def numbered(client: Client, number: str, qos: int, packet_id: int) -> None:
    """A message whose payload is its number."""
    name = b"sterna-sequence"
    pair = b"\x26" + pack(">H", len(name)) + name + pack(">H", len(number)) + number.encode()
    body = pack(">H", 1) + b"t" + pack(">H", packet_id) + bytes((len(pair),)) + pair + number.encode()
    client.feed(0x30 | qos << 1, body)


def publisher(node: SurvivingNode) -> Client:
    return node.client("spark-q-0", version=5)


def kept(node: SurvivingNode) -> list[bytes]:
    journal = node.node.journal
    return [m.payload for m in map(journal.read, range(journal.first_offset, journal.next_offset)) if m is not None]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_published_before_is_acknowledged_and_published_once(qos: int) -> None:
    node = SurvivingNode()
    first = publisher(node)
    for row in range(3):
        numbered(first, f"7.{row}", qos, row + 1)
    node.settle()
    assert [packet.kind for packet in first.take()] == [ANSWER[qos]] * 3
    first.vanish()
    again = publisher(node)
    # Another life of the client: other identifiers, and more to say.
    for row in range(5):
        numbered(again, f"7.{row}", qos, row + 2)
    node.settle()
    assert [packet.kind for packet in again.take()] == [ANSWER[qos]] * 5
    assert kept(node) == [b"7.0", b"7.1", b"7.2", b"7.3", b"7.4"]


@pytest.mark.parametrize("with_checkpoint", [False, True], ids=["journal", "checkpoint"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_crash_forgets_no_number_that_was_acknowledged(qos: int, with_checkpoint: bool) -> None:
    node = SurvivingNode()
    first = publisher(node)
    numbered(first, "1.0", qos, 1)
    node.settle()
    if with_checkpoint:
        node.checkpoint()
    numbered(first, "1.1", qos, 2)
    node.broker.flush()
    node.crash()  # before the second one was written
    again = publisher(node)
    for row in range(3):
        numbered(again, f"1.{row}", qos, row + 1)
    node.settle()
    assert [packet.kind for packet in again.take()] == [ANSWER[qos]] * 3
    assert kept(node) == [b"1.0", b"1.1", b"1.2"]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_the_disk_refused_is_expected_again(qos: int) -> None:
    node = SurvivingNode()
    first = publisher(node)
    for row in range(3):
        numbered(first, f"4.{row}", qos, row + 1)
    node.refuse()
    first.vanish()
    again = publisher(node)
    for row in range(3):
        numbered(again, f"4.{row}", qos, row + 1)
    node.settle()
    assert kept(node) == [b"4.0", b"4.1", b"4.2"]


def test_a_repeat_at_qos_2_is_released_like_any_other() -> None:
    node = SurvivingNode()
    client = publisher(node)
    for packet_id in (1, 2):
        numbered(client, "1.0", 2, packet_id)
        node.settle()
        client.acknowledge(PUBREL, packet_id)
        node.settle()
    answers = client.take()
    assert [(packet.kind, packet.packet_id) for packet in answers] == [
        (PUBREC, 1), (PUBCOMP, 1), (PUBREC, 2), (PUBCOMP, 2),
    ]  # fmt: skip
    assert answers[3].payload == b"", "a reason would say that the identifier is unknown"


def test_numbers_of_one_publisher_say_nothing_about_another() -> None:
    node = SurvivingNode()
    numbered(publisher(node), "9.9", 1, 1)
    numbered(node.client("spark-q-1", version=5), "0.0", 1, 1)
    node.settle()
    assert kept(node) == [b"9.9", b"0.0"]


@pytest.mark.parametrize("value", ["", "1", "1.", ".1", "a.b", "-1.2", "1." + "9" * 19])
def test_what_is_no_number_is_no_matter(value: str) -> None:
    name = b"sterna-sequence"
    block = b"\x26" + pack(">H", len(name)) + name + pack(">H", len(value)) + value.encode()
    assert number_of(block) is None
