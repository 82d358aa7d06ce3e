"""The paper's model of a move gives the numbers that stand in the paper's text."""

from __future__ import annotations

import pytest

from sterna.measure.papers.migration.model import PAPER, Latencies, Prediction, messages, predict

COMPARED = 80.0
"""From the beginning of a move to the moment the brokers compare: 40 + 4 * 10."""


def at(delta: float, qos: int) -> Prediction:
    """With a target that is so far ahead when the brokers compare; the paper varies the target's delay around 500."""
    found = predict(qos, source_delay=500.0, target_delay=500.0 + COMPARED - delta)
    assert found.delta == pytest.approx(delta)
    return found


def test_the_shortest_move_takes_120_ms_and_needs_brokers_that_are_synced() -> None:
    assert PAPER.shortest == 120
    for qos in (0, 1, 2):
        assert at(0, qos).move == 120
        assert (at(0, qos).sync, at(0, qos).state) == (0, "synced")


def test_the_script_has_other_latencies_than_the_text() -> None:
    assert Latencies(50, 50, 100, 50).shortest == 300


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_target_that_is_behind_waits_as_long_as_it_is_behind(qos: int) -> None:
    assert at(-120, qos).state == "behind"
    assert (at(-120, qos).sync, at(-120, qos).move) == (120, 240)
    assert (at(-800, qos).sync, at(-800, qos).move) == (800, 920)


def test_a_target_that_is_ahead_fetches_at_qos_1_and_2_and_not_at_qos_0() -> None:
    assert (at(121, 0).sync, at(800, 0).move, at(800, 0).state) == (0, 120, "ahead")
    for qos in (1, 2):
        assert at(1, qos).move == at(120, qos).move == 200  # from the source's store
        assert at(120, qos).sync == 40
        assert at(320, qos).move == 400  # what is not there yet has to be waited for
        assert at(320, qos).sync == 240


def test_a_target_that_is_told_late_has_seen_more_by_then() -> None:
    """The paper's own experiments: moves of about 500 ms, a message every 100 ms."""
    slow = Latencies(200.0, 200.0, 200.0, 75.0)
    assert messages(predict(0, 2000.0, 0.0, slow).loss, 100) == pytest.approx(24.7, abs=0.5)
    assert abs(predict(1, 0.0, 500.0, slow).delta) < 100


def test_what_is_lost_at_qos_0_is_what_the_target_is_ahead() -> None:
    assert [at(delta, 0).loss for delta in (-500, 0, 120, 500)] == [0, 0, 120, 500]
    assert messages(at(500, 0).loss, 10) == 50


def test_what_comes_twice_at_qos_1() -> None:
    assert at(-120, 1).duplication == 360
    assert at(0, 1).duplication == 120
    assert at(40, 1).duplication == 160
    assert at(120, 1).duplication == at(700, 1).duplication == 80


def test_what_is_stored_at_qos_2() -> None:
    assert at(-120, 2).storage == 240
    assert at(0, 2).storage == 120
    assert at(120, 2).storage == at(700, 2).storage == 80


def test_messages_come_earlier_from_a_broker_that_is_nearer() -> None:
    assert predict(0).arrival_shift == -30
    assert predict(0, target_delay=30.0).arrival_shift == 0


def test_the_first_message_of_the_target_waits_only_if_it_is_behind_and_may_not_repeat() -> None:
    assert [at(-200, qos).first_from_target for qos in (0, 1, 2)] == [280, 80, 280]
    assert [at(200, qos).first_from_target for qos in (0, 1, 2)] == [80, 80, 80]


def test_links_may_be_slower_in_one_direction() -> None:
    slow = Latencies(target_to_source=2000.0)
    assert slow.shortest == 40 + 40 + 2000
    assert predict(0, 2000.0, 0.0, slow).move == 2080
    assert predict(1, 2000.0, 0.0, slow).move == 2080 + 2000 + 40  # fetched from the store: asked, answered
    there = Latencies(source_to_target=2000.0)
    assert predict(1, 0.0, 2000.0, there).delta == 40  # the word of the move came as late as the messages
