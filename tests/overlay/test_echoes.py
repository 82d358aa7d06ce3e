"""Echoes between hosts: sealed, of one size, answered with measure, and believed once."""

from __future__ import annotations

from math import inf, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.overlay.coordinates import Coordinate
from sterna.overlay.echoes import (
    ECHO_BYTES,
    SOURCES_MAX,
    Echo,
    EchoAnswerer,
    EchoAsker,
    EchoKind,
    RefusedEcho,
    opened,
    sealed,
)

KEY, OTHER = b"k" * 32, b"o" * 32
HERE = Coordinate((0.1, -0.2, 0.3, 0.4), 0.0015, 0.25, -0.001)


def exchange(place: Coordinate = HERE, at: float = 1.0, back_at: float = 1.05) -> tuple[EchoAsker, bytes]:
    asker = EchoAsker(Random(1))
    pong = EchoAnswerer().came(asker.ping("w", KEY, at), "source", [KEY], place, at)
    assert pong is not None
    return asker, pong


def test_a_ping_comes_back_with_the_place_of_the_worker_and_the_round_trip() -> None:
    asker, pong = exchange()
    sample = asker.came(pong, [KEY], 1.05)
    assert sample is not None
    assert sample.peer == "w"
    assert sample.round_trip_s == pytest.approx(0.05)
    assert sample.coordinate.vector == pytest.approx(HERE.vector, rel=1e-3)
    assert sample.coordinate.height == pytest.approx(HERE.height, rel=1e-2)


def test_a_pong_is_no_larger_than_its_ping() -> None:
    asker, pong = exchange()
    assert len(pong) == len(asker.ping("w", KEY, 2.0)) == ECHO_BYTES <= 44


@pytest.mark.parametrize(
    ("spoil", "refusal"),
    [
        (lambda pong: pong[:-1], RefusedEcho.SIZE),
        (lambda pong: pong + b"x", RefusedEcho.SIZE),
        (lambda pong: pong[:3] + b"\x09" + pong[4:], RefusedEcho.VERSION),
        (lambda pong: pong[:10] + bytes([pong[10] ^ 1]) + pong[11:], RefusedEcho.MAC),
        (lambda pong: sealed(Echo(EchoKind.PONG, 12345, HERE), KEY), RefusedEcho.UNASKED),
        (lambda pong: sealed(Echo(EchoKind.PING, opened(pong, [KEY])[0].nonce), KEY), RefusedEcho.UNASKED),  # type: ignore[union-attr]
        (lambda pong: sealed(Echo(EchoKind.PONG, opened(pong, [KEY])[0].nonce), KEY), RefusedEcho.COORDINATE),  # type: ignore[union-attr]
    ],
)
def test_pongs_that_are_not_right_are_refused_by_reason(spoil, refusal: RefusedEcho) -> None:  # type: ignore[no-untyped-def]
    asker, pong = exchange()
    assert asker.came(spoil(pong), [KEY], 1.05) is None
    assert asker.refusals == {refusal: 1}


def test_a_pong_counts_once_and_not_for_long() -> None:
    asker, pong = exchange()
    assert asker.came(pong, [KEY], 1.05) is not None
    assert asker.came(pong, [KEY], 1.06) is None
    late, pong = exchange()
    assert late.came(pong, [KEY], 20.0) is None
    assert asker.refusals == late.refusals == {RefusedEcho.UNASKED: 1}


@pytest.mark.parametrize("bad", [nan, inf, -inf, 60_000.0])
def test_a_worker_that_says_nonsense_about_its_place_is_not_believed(bad: float) -> None:
    asker, pong = exchange(Coordinate((bad, 0.0, 0.0, 0.0), 0.001, 0.5))
    assert asker.came(pong, [KEY], 1.05) is None
    assert asker.refusals == {RefusedEcho.COORDINATE: 1}


def test_a_clock_that_stands_still_or_goes_back_measures_nothing() -> None:
    asker, pong = exchange()
    assert asker.came(pong, [KEY], 1.0) is None
    assert asker.refusals == {RefusedEcho.ROUND_TRIP: 1}


def test_a_worker_answers_those_with_the_key_of_now_or_before_and_nobody_else() -> None:
    worker, asker = EchoAnswerer(), EchoAsker(Random(1))
    answer = worker.came(asker.ping("w", OTHER, 1.0), "s", [KEY, OTHER], HERE, 1.0)
    assert answer is not None
    assert asker.came(answer, [OTHER], 1.1) is not None
    assert worker.came(asker.ping("w", b"x" * 32, 1.0), "s", [KEY, OTHER], HERE, 1.0) is None
    assert worker.came(answer, "s", [KEY, OTHER], HERE, 1.0) is None
    assert worker.refusals == {RefusedEcho.MAC: 1, RefusedEcho.UNASKED: 1}


def test_a_source_that_asks_too_often_gets_no_answer_and_others_do() -> None:
    worker, asker = EchoAnswerer(per_second=10), EchoAsker(Random(1))
    answers = [worker.came(asker.ping("w", KEY, 1.0), "often", [KEY], HERE, 1.0) for _ in range(30)]
    assert sum(answer is not None for answer in answers) == 10
    assert worker.came(asker.ping("w", KEY, 1.0), "other", [KEY], HERE, 1.0) is not None
    assert worker.came(asker.ping("w", KEY, 2.0), "often", [KEY], HERE, 2.0) is not None
    assert worker.refusals == {RefusedEcho.OFTEN: 20}


def test_many_sources_are_forgotten_one_by_one() -> None:
    worker, asker = EchoAnswerer(), EchoAsker(Random(1))
    for number in range(SOURCES_MAX + 10):
        worker.came(asker.ping("w", KEY, 1.0), str(number), [KEY], HERE, 1.0)
    assert len(worker._allowances) == SOURCES_MAX


@given(st.binary(max_size=100))
def test_no_bytes_raise_anything(data: bytes) -> None:
    for spoilt in (data, (b"STE\x01" + data).ljust(ECHO_BYTES, b"\0")[:ECHO_BYTES]):
        assert EchoAnswerer().came(spoilt, "s", [KEY], HERE, 1.0) is None
        assert EchoAsker(Random(1)).came(spoilt, [KEY], 1.0) is None
