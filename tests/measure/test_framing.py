"""Counting by arithmetic gives what reading packet by packet would."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.measure.errors import MeasurementError
from sterna.measure.load import packets
from sterna.measure.load.framing import FixedStream, SequenceSample, answers, runs
from sterna.measure.load.packets import PUBCOMP, PUBLISH, PUBREC, PUBREL

TOPIC = "bench/t"
SIZE = packets.publish_bytes(TOPIC)
SIZES = {PUBLISH[2]: packets.publish_bytes(TOPIC, 2), PUBREL: 4}


def numbered(numbers: range) -> bytes:
    return b"".join(packets.publish(TOPIC, packets.payload(0, n)) for n in numbers)


@given(count=st.integers(1, 20), cuts=st.lists(st.integers(1, 3 * SIZE), max_size=30))
def test_a_stream_counts_the_same_wherever_it_is_cut(count: int, cuts: list[int]) -> None:
    data, stream, whole = numbered(range(count)), FixedStream(SIZE), 0
    for cut in [*cuts, count * SIZE]:
        part, data = data[:cut], data[cut:]
        buffer = bytearray(part).ljust(4 * SIZE, b"\xff")
        places = stream.take(buffer, len(part))
        assert all(buffer[place] == PUBLISH[0] and place + SIZE <= len(part) for place in places)
        whole += len(places)
    assert stream.messages == count
    assert whole <= count


@pytest.mark.parametrize(("place", "value"), [(0, 0x32), (1, 9), (SIZE, 0x40), (2 * SIZE + 1, 0)])
def test_a_stream_that_does_not_line_up_is_refused(place: int, value: int) -> None:
    data = bytearray(numbered(range(3)))
    data[place] = value
    with pytest.raises(MeasurementError, match="line up"):
        FixedStream(SIZE).take(data, len(data))


@pytest.mark.parametrize("order", [[0, 1, 3], [0, 1, 1], [1, 0, 2], [6, 7, 1]])
def test_a_sample_notices_messages_lost_repeated_or_out_of_order(order: list[int]) -> None:
    data = bytearray(b"".join(numbered(range(n, n + 1)) for n in order))
    with pytest.raises(MeasurementError, match="came after"):
        SequenceSample(packets.payload_offset(TOPIC), cycle=8, step=1).check(data, range(0, len(data), SIZE))


def test_a_sample_follows_a_publisher_round_its_cycle_in_steps() -> None:
    data = bytearray(b"".join(numbered(range(n, n + 1)) for n in (1, 4, 7, 1)))
    sample = SequenceSample(packets.payload_offset(TOPIC), cycle=9, step=3)
    sample.check(data, range(0, len(data), SIZE))
    assert sample.checked == 4


@given(kinds=st.lists(st.booleans(), max_size=40), cut=st.integers(0, 60))
def test_runs_find_every_whole_packet_of_a_mixed_stream(kinds: list[bool], cut: int) -> None:
    each = [
        packets.publish(TOPIC, b"4" * packets.PAYLOAD_BYTES, 2, number + 1)  # payload of first bytes of PUBLISH
        if kind
        else packets.acknowledgements(PUBREL, [number + 1])
        for number, kind in enumerate(kinds)
    ]
    data = bytearray(b"".join(each))
    end = max(0, len(data) - cut)
    found = runs(data, end, SIZES)

    expected, place = [], 0
    for packet in each:
        if place + len(packet) > end:
            break
        expected.append((place, packet[0]))
        place += len(packet)
    assert [(s, run.header) for run in found for s in range(run.start, run.end, run.size)] == expected
    assert all(one.header != two.header for one, two in pairwise(found))


def test_an_unexpected_packet_ends_the_run() -> None:
    with pytest.raises(MeasurementError, match="0x3c"):
        runs(bytearray(b"\x3c\x02\x00\x01"), 4, SIZES)


def test_answers_carry_the_packet_ids_in_order() -> None:
    ids = [1, 255, 256, 65535]
    data = bytearray(b"".join(packets.publish(TOPIC, packets.payload(0, 0), 2, n) for n in ids))
    (run,) = runs(data, len(data), SIZES)
    assert answers(run, data, packets.payload_offset(TOPIC, 2) - 2, PUBREC) == packets.acknowledgements(PUBREC, ids)
    acks = bytearray(packets.acknowledgements(PUBREL, ids))
    (run,) = runs(acks, len(acks), SIZES)
    assert answers(run, acks, 2, PUBCOMP) == packets.acknowledgements(PUBCOMP, ids)
