"""The life of a node: nobody is ended who is not empty and drained, and nobody is stuck for want of a row."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from sterna.adaptation.draining import LIFE, DrainAction, DrainEvent, DrainingTuning, Facts, NodeLife
from sterna.adaptation.picture import WorkerNodeState

TUNING = DrainingTuning()
DRAINED = Facts(alive=True, ready=True, probe_back=True, synced=True)


def life(state: WorkerNodeState, since: float = 0.0, **more: object) -> NodeLife:
    return replace(NodeLife(TUNING, state, since), **more)  # type: ignore[arg-type]


def state_of(node: NodeLife) -> WorkerNodeState:
    return node.state


def test_every_state_can_be_reached_and_has_a_way_on() -> None:
    reached = {WorkerNodeState.OFF}
    while new := {row.then for (state, _), row in LIFE.items() if state in reached} - reached:
        reached |= new
    assert reached == set(WorkerNodeState)
    assert {state for state, _ in LIFE} == set(WorkerNodeState)
    assert {action for row in LIFE.values() for action in row.does} == set(DrainAction)
    assert {event for _, event in LIFE} == set(DrainEvent)


def test_from_start_to_stop() -> None:
    node, now = NodeLife(TUNING), 0.0
    steps: list[tuple[str, tuple[DrainAction, ...] | None]] = []

    def step(did: tuple[DrainAction, ...] | None) -> None:
        steps.append((node.state.value, did))

    step(node.ordered(DrainEvent.START_ORDERED, now))
    step(node.look(Facts(alive=True), 1.0))
    step(node.look(Facts(alive=True, ready=True), 2.0))
    step(node.ordered(DrainEvent.STOP_ORDERED, 100.0))
    heard = replace(DRAINED, coordinator_heard_at=100.0)
    step(node.look(replace(heard, sessions=5, movable=3), 101.0))
    step(node.look(replace(heard, sessions=2), 102.0))
    step(node.look(replace(heard, moves=1), 103.0))
    step(node.look(replace(heard, probe_back=False), 104.0))
    step(node.look(replace(heard, probe_back=False), 105.0))
    step(node.look(replace(heard, readers_behind=1), 106.0))
    step(node.look(heard, 107.0))
    step(node.look(Facts(alive=False), 108.0))
    assert steps == [
        ("starting", (DrainAction.START,)),
        ("starting", ()),
        ("serving", (DrainAction.OPEN, DrainAction.REPORT)),
        ("leaving", (DrainAction.CLOSE, DrainAction.REPORT)),
        ("leaving", ()),
        ("leaving", (DrainAction.EVACUATE,)),
        ("leaving", ()),
        ("draining", (DrainAction.PROBE, DrainAction.REPORT)),
        ("draining", ()),
        ("draining", ()),
        ("stopping", (DrainAction.TERMINATE, DrainAction.REPORT)),
        ("off", (DrainAction.REPORT,)),
    ]


@pytest.mark.parametrize(
    "short",
    [{"sessions": 1}, {"remains": 1}, {"moves": 1}, {"probe_back": False}, {"synced": False}, {"readers_behind": 1}],
    ids=str,
)
def test_a_node_that_still_owes_something_is_not_ended(short: dict[str, object]) -> None:
    facts = replace(DRAINED, **short)  # type: ignore[arg-type]
    assert DrainAction.TERMINATE not in life(WorkerNodeState.DRAINING).look(facts, 1.0)
    assert DrainAction.TERMINATE in life(WorkerNodeState.DRAINING).look(DRAINED, 1.0)


def test_by_no_chain_of_events_a_node_is_ended_that_is_not_drained() -> None:
    """Facts and orders at random, 20,000 of them: SIGTERM goes only to a node that is drained now."""
    rng = Random(4)
    node, now = NodeLife(TUNING), 0.0
    ends = 0
    for _ in range(20_000):
        now += rng.choice([0.1, 1.0, 5.0, 70.0])
        facts = Facts(
            alive=rng.random() < 0.97,
            ready=rng.random() < 0.5,
            sessions=rng.choice([0, 0, 0, 2]),
            remains=rng.choice([0, 0, 1]),
            moves=rng.choice([0, 0, 1]),
            probe_back=rng.random() < 0.5,
            synced=rng.random() < 0.5,
            readers_behind=rng.choice([0, 1]),
            coordinator_heard_at=now - rng.choice([0.0] * 9 + [40.0]),
        )
        if rng.random() < 0.2:
            did = (
                node.ordered(
                    rng.choice([DrainEvent.START_ORDERED, DrainEvent.STOP_ORDERED, DrainEvent.RESUME_ORDERED]), now
                )
                or ()
            )
            assert DrainAction.TERMINATE not in did, "an order ends nobody: the facts do"
        else:
            did = node.look(facts, now)
        if DrainAction.TERMINATE in did:
            ends += 1
            assert facts.is_empty
            assert facts.probe_back
            assert facts.synced
    assert ends > 10, "nothing was shown"


def test_a_lost_coordinator_or_an_order_opens_it_again() -> None:
    for state in (WorkerNodeState.LEAVING, WorkerNodeState.DRAINING):
        node = life(state)
        assert node.look(replace(DRAINED, probe_back=False, sessions=1), 31.0) == (DrainAction.OPEN, DrainAction.REPORT)
        assert state_of(node) is WorkerNodeState.SERVING
        node = life(state)
        assert node.ordered(DrainEvent.RESUME_ORDERED, 1.0) == (DrainAction.OPEN, DrainAction.REPORT)


def test_a_node_that_cannot_be_emptied_serves_on() -> None:
    node = life(WorkerNodeState.LEAVING)
    assert node.look(replace(DRAINED, sessions=1, coordinator_heard_at=601.0), 601.0) == (
        DrainAction.OPEN,
        DrainAction.REPORT,
    )


def test_readers_get_their_time_and_those_left_behind_are_counted() -> None:
    node = life(WorkerNodeState.DRAINING)
    behind = replace(DRAINED, readers_behind=1, coordinator_heard_at=601.0)
    assert node.look(replace(behind, coordinator_heard_at=599.0), 600.0) == ()
    assert DrainAction.TERMINATE in node.look(behind, 601.0)
    assert node.readers_left_behind == 1


def test_a_node_that_is_started_for_another_one_waits_until_that_is_linked() -> None:
    """A probe that nobody could get proves nothing: it would end and start for ever, and hand over nothing."""
    away = replace(DRAINED, absent=frozenset({"n"}))
    node = life(WorkerNodeState.OFF, owed={"n"})
    back = Facts(back=frozenset({"n"}))
    assert node.look(back, 1.0) == (DrainAction.START_CLOSED,)
    assert node.look(replace(away, coordinator_heard_at=2.0), 2.0) == ()
    assert node.look(replace(DRAINED, synced=False, coordinator_heard_at=3.0), 3.0) == ()
    assert DrainAction.TERMINATE in node.look(replace(DRAINED, coordinator_heard_at=4.0), 4.0)
    node.look(Facts(), 5.0)
    assert not node.owed
    assert node.look(back, 6.0) == ()


def test_a_node_that_does_not_reach_the_one_it_was_started_for_is_tried_less_and_less_often() -> None:
    node, now, starts = life(WorkerNodeState.OFF, owed={"n"}), 0.0, []
    while now < 3600:
        now += 1.0
        alive = state_of(node) in (WorkerNodeState.DRAINING, WorkerNodeState.STOPPING)
        seen = replace(DRAINED, absent=frozenset({"n"}), coordinator_heard_at=now) if alive else Facts()
        if state_of(node) is WorkerNodeState.STOPPING:
            seen = Facts()
        if node.look(replace(seen, back=frozenset({"n"})), now) == (DrainAction.START_CLOSED,):
            starts.append(now)
        assert node.owed == {"n"}
    assert 3 <= len(starts) <= 8
    assert starts[-1] - starts[-2] > 4 * (starts[1] - starts[0])


def test_a_node_that_is_away_is_owed_or_waited_for() -> None:
    away = replace(DRAINED, absent=frozenset({"n"}))
    assert life(WorkerNodeState.DRAINING, wait_for_absent=True).look(away, 1.0) == ()
    node = life(WorkerNodeState.DRAINING)
    assert DrainAction.TERMINATE in node.look(away, 1.0)
    node.look(Facts(), 2.0)
    assert node.look(Facts(), 3.0) == ()
    assert node.look(Facts(back=frozenset({"n"})), 4.0) == (DrainAction.START_CLOSED,)
    assert state_of(node) is WorkerNodeState.DRAINING
    assert DrainAction.TERMINATE in node.look(DRAINED, 5.0)
    assert node.owed == set()


def test_a_start_that_fails_is_tried_again_after_a_pause_that_doubles() -> None:
    node, pauses, now = NodeLife(TUNING), [], 0.0
    for _ in range(9):
        assert node.ordered(DrainEvent.START_ORDERED, now) == (DrainAction.START,)
        assert DrainAction.BAR in node.look(Facts(alive=False), now + 1.0)
        assert state_of(node) is WorkerNodeState.OFF
        assert node.ordered(DrainEvent.START_ORDERED, now + 2.0) is None
        assert node.look(Facts(), now + 1e6) == (), "it never served: nobody waits for it"
        pauses.append(node.barred_until - (now + 1.0))
        now = node.barred_until
    assert pauses == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    node.ordered(DrainEvent.START_ORDERED, now)
    node.look(Facts(alive=True, ready=True), now + 1)
    assert node.failures == 0


def test_one_that_does_not_end_is_an_operators() -> None:
    node = life(WorkerNodeState.STOPPING, terminated=True)
    assert node.look(Facts(alive=True), 60.0) == ()
    assert node.look(Facts(alive=True), 60.1) == (DrainAction.REPORT,)
    assert state_of(node) is WorkerNodeState.STUCK
    assert node.ordered(DrainEvent.START_ORDERED, 61.0) is None
    assert node.look(Facts(alive=True, ready=True), 61.0) == (), "it was told to end: it is not opened again"
    assert DrainAction.REPORT in node.look(Facts(), 62.0)
    assert state_of(node) is WorkerNodeState.OFF


def test_a_crash_while_it_serves_starts_it_again() -> None:
    for state in (WorkerNodeState.SERVING, WorkerNodeState.LEAVING, WorkerNodeState.DRAINING):
        node = life(state, wanted=True)
        assert node.look(Facts(alive=False, coordinator_heard_at=1.0), 1.0) == (DrainAction.REPORT, DrainAction.START)
        assert state_of(node) is WorkerNodeState.STARTING
        node.look(Facts(alive=False), 2.0)
        assert state_of(node) is WorkerNodeState.OFF, "it crashed again"
        assert node.look(Facts(), 3.0) == ()
        assert node.look(Facts(), node.barred_until) == (DrainAction.START,)


def test_one_that_is_late_is_stuck_until_it_is_ready() -> None:
    node = life(WorkerNodeState.STARTING)
    assert node.look(Facts(alive=True), 60.1) == (DrainAction.REPORT,)
    assert state_of(node) is WorkerNodeState.STUCK
    assert node.look(Facts(alive=True), 61.0) == ()
    assert node.look(Facts(alive=True, ready=True), 62.0) == (DrainAction.OPEN, DrainAction.REPORT)
    assert state_of(node) is WorkerNodeState.SERVING


def test_an_order_that_makes_no_sense_changes_nothing() -> None:
    for state in WorkerNodeState:
        for order in (DrainEvent.START_ORDERED, DrainEvent.STOP_ORDERED, DrainEvent.RESUME_ORDERED):
            node = life(state)
            if (state, order) not in LIFE:
                assert node.ordered(order, 1.0) is None
                assert node.state is state
