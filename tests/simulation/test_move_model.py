"""All states of a small move: one node serves the session, one can always be reached, and nothing is dropped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sterna.migration.tables import ARRIVING, LEAVING, ArrivalState, DepartureState, Do, On, Row, Table
from sterna.simulation.move_model import ModelLetter, ModelNode, ModelWorld, MoveBounds, MoveModel
from sterna.simulation.state_explorer import Exploration, Step, explore

STATES_MAX = 600_000
SMALL = MoveBounds(nodes=2, crashes=1, moves=1, visits=0, losses=0, messages=1, wire=2, numbers=2, is_eager=True)


def explored(bounds: MoveBounds, leaving: Table = LEAVING, arriving: Table = ARRIVING) -> Exploration[ModelWorld]:
    return explore(MoveModel(bounds, leaving, arriving), STATES_MAX)


@pytest.mark.parametrize(
    "bounds",
    [
        SMALL,
        replace(SMALL, crashes=0, losses=1, is_patient=True),
        replace(SMALL, crashes=0, visits=1, is_patient=True),
        replace(SMALL, outlive=True, is_patient=True),
    ],
    ids=["a crash", "a loss", "a client that comes", "a crash that letters outlive"],
)
def test_a_move_keeps_its_promises_in_every_state(bounds: MoveBounds) -> None:
    found = explored(bounds)
    assert (found.problem, found.trace) == ("", [])
    assert found.is_complete
    assert found.states > 1000


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "bounds",
    [
        replace(SMALL, is_eager=False),
        replace(SMALL, visits=1, numbers=3, is_patient=True),
        replace(SMALL, outlive=True, wire=3),
        replace(SMALL, crashes=2, outlive=True, is_patient=True),
        replace(SMALL, nodes=3, crashes=2, is_patient=True),
        MoveBounds(nodes=3, crashes=0, moves=2, visits=0, losses=0, messages=1, wire=2, numbers=3, is_patient=True,
                   is_eager=True),
    ],
    ids=[
        "every step apart",
        "a crash and a client that comes",
        "a crash that letters said twice outlive",
        "two crashes that letters outlive",
        "three nodes and two crashes",
        "three nodes and two moves",
    ],
)  # fmt: skip
def test_a_move_keeps_its_promises_in_more_states(bounds: MoveBounds) -> None:
    found = explored(bounds)
    assert (found.problem, found.trace) == ("", [])
    assert found.is_complete


def row(then: DepartureState | ArrivalState, *does: Do) -> Row:
    return Row(does, then)


TWO_SERVE, LOST, NOBODY, STUCK = "serve the session", "without messages", "nobody has", "no good state"
ASKED = {(DepartureState.IN_DOUBT, On.RETRY), (DepartureState.IN_DOUBT, On.GIVE_UP), (ArrivalState.SERVING, On.RETRY)}
FAULTS: dict[str, tuple[str, Table, Table]] = {
    "goes on serving while the other may have it": (
        TWO_SERVE,
        {**LEAVING, (DepartureState.IN_DOUBT, On.GIVE_UP): row(DepartureState.STAYING, Do.THAW, Do.END)},
        ARRIVING,
    ),
    "forgets it before the other has said that it has it": (
        NOBODY,
        {**LEAVING, (DepartureState.IN_DOUBT, On.RETRY): row(DepartureState.FORGETTING, Do.NOTE_MOVED)},
        ARRIVING,
    ),
    "refuses what it has taken": (
        TWO_SERVE,
        LEAVING,
        {**ARRIVING, (ArrivalState.SERVING, On.MIGABORT): row(ArrivalState.SERVING, Do.SEND_MIGREFUSE)},
    ),
    "never asks again how it stands": (
        STUCK,
        {key: one for key, one in LEAVING.items() if key not in ASKED},
        {key: one for key, one in ARRIVING.items() if key not in ASKED},
    ),
    "takes it without listening": (
        LOST,
        LEAVING,
        {**ARRIVING, (ArrivalState.AWAITING, On.MIGTO): row(ArrivalState.EXPECTING, Do.SEND_MIGTOACK)},
    ),
    "does not stop before it sends it": (
        TWO_SERVE,
        {**LEAVING, (DepartureState.FREEZING, On.FROZEN): row(DepartureState.SENDING, Do.THAW, Do.NEXT_PAGE)},
        ARRIVING,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_table_is_found(fault: str) -> None:
    wrong, leaving, arriving = FAULTS[fault]
    found = explored(SMALL, leaving, arriving)
    assert wrong in found.problem
    assert found.trace, "how it came about is told"


class TakesWhatWasSaidToItsLastStart(MoveModel):
    def _is_said_to(self, letter: ModelLetter, node: ModelNode) -> bool:
        return True


def test_a_node_that_takes_what_was_said_to_its_last_start_is_found() -> None:
    """A node that has started again takes an answer to its last start for its own: it listens, or it has refused."""
    found = explore(TakesWhatWasSaidToItsLastStart(replace(SMALL, outlive=True, is_patient=True)), STATES_MAX)
    assert LOST in found.problem or TWO_SERVE in found.problem


def test_an_action_that_the_model_does_not_know_is_named() -> None:
    class Another(str):
        name = "DANCE"

    arriving = {**ARRIVING, (ArrivalState.AWAITING, On.MIGTO): Row((Another(),), ArrivalState.LISTENING)}  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="DANCE"):
        explored(SMALL, LEAVING, arriving)


class Walk:
    """Numbers up to ten, from which nobody comes back after seven."""

    def first(self) -> list[int]:
        return [0]

    def steps(self, state: int) -> list[Step[int]]:
        back = [Step("back", 0)] if state <= 7 else []
        return [*back, *([Step("on", state + 1, is_fault=True)] if state < 10 else [])]

    def wrong(self, state: int) -> str:
        return ""

    def is_good(self, state: int) -> bool:
        return state == 0


def test_a_state_from_which_nothing_good_can_be_reached_is_found() -> None:
    found = explore(Walk(), 100)
    assert found.problem == "no good state can be reached any more"
    assert found.trace[:-1] == ["on"] * 8
    assert not explore(Walk(), 5).is_complete
