"""What is made of the bytes that were counted; the counting itself is a benchmark's."""

from __future__ import annotations

from sterna.measure.load import packets
from sterna.measure.workloads.operators.between_nodes import Carried, Savings, _payloads


def carried(size: int, answer: bytes = b"1.5") -> Carried:
    return Carried(messages=1000, results=10, size=size, answer=answer)


def test_results_are_read_from_what_the_client_was_sent() -> None:
    sent = packets.publish("$AVG/t/$A", b"1.5") + packets.publish("$AVG/t/$A", b"22.25")
    assert list(_payloads(sent)) == [b"1.5", b"22.25"]


def test_ten_times_less_is_enough_if_the_answer_is_the_same() -> None:
    assert Savings(carried(100), carried(1000)).is_reached
    assert not Savings(carried(101), carried(1000)).is_reached
    assert not Savings(carried(100), carried(1000, b"1.0")).is_reached
    assert "1,000 messages took 100 bytes" in Savings(carried(100), carried(1000)).summary
