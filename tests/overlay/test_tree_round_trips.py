"""Round trips: an echo counts once and in time; the smoothed value takes out queues and follows real change."""

from __future__ import annotations

from random import Random

import pytest

from sterna.overlay.round_trips import NONCE_S, NONCES_MAX, OpenPings, RoundTrips


def test_an_echo_counts_in_time_and_once() -> None:
    questions = OpenPings()
    nonce = questions.ask(10.0, Random(1))
    assert questions.elapsed(nonce, 10.25) == 0.25
    assert questions.elapsed(nonce, 10.0 + NONCE_S + 0.1) is None
    questions.close(nonce)
    assert questions.elapsed(nonce, 10.25) is None


def test_what_was_never_asked_is_no_answer() -> None:
    assert OpenPings().elapsed(4711, 1.0) is None


def test_questions_out_are_bounded() -> None:
    questions, rng = OpenPings(), Random(2)
    nonces = [questions.ask(0.0, rng) for _ in range(NONCES_MAX + 3)]
    known = [questions.elapsed(nonce, 1.0) is not None for nonce in nonces]
    assert known == [False] * 3 + [True] * NONCES_MAX


def test_a_datagram_that_stood_in_a_queue_is_no_distance() -> None:
    trips = RoundTrips()
    for sample in [0.010] * 10 + [0.500] + [0.010] * 3:
        trips.sample(sample)
        assert trips.smoothed_s == pytest.approx(0.010)


def test_a_distance_that_has_really_changed_is_followed() -> None:
    trips = RoundTrips()
    for sample in [0.010] * 10 + [0.050] * 12:
        trips.sample(sample)
    assert trips.smoothed_s == pytest.approx(0.050, rel=0.1)


def test_no_path_is_free() -> None:
    trips = RoundTrips()
    trips.sample(0.0)
    assert trips.microseconds == 1
