"""The simulator finds what breaks promises when clients move: each of these networks has one fault in one line of the
migration, and is caught at it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sterna.broker.delivery.barriers import Barriers
from sterna.broker.session.offset_queue import OffsetQueue
from sterna.broker.session.session import Session
from sterna.broker.transfer import session_transfer
from sterna.migration.arrival import Arrival
from sterna.migration.departure import Departure
from sterna.migration.messages import Item, MigSync
from sterna.migration.publisher_order import PublisherOrder
from sterna.migration.session_pages import Pages, State
from sterna.simulation.chaos import Chaos, StormPlan

pytestmark = pytest.mark.slow

SEEDS = range(1, 31)
STRATEGY = "subscription-flooding"

Plant = Callable[[pytest.MonkeyPatch], None]


def is_broken(claim: str, *faults: str) -> bool:
    """In one of the scenarios; publishers follow where they are sent."""
    for seed in SEEDS:
        plan = StormPlan(
            *(seed, 3, 12.0),
            strategy=STRATEGY,
            faults=faults,
            fault_pause_s=0.5,
            roamers=3,
            gateways=1,
            server_references=True,
        )
        if any(violation.claim == claim for violation in Chaos(plan).run().violations):
            return True
    return False


def barrier_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Barriers, "raise_for", lambda barriers, session: None)


def heard_messages_dropped(patch: pytest.MonkeyPatch) -> None:
    """Those that came to the new node while the session was on its way."""
    complete = session_transfer.complete

    def complete_without_heard(broker: Any, session: Session, came: Any, node: str) -> None:
        session.queue = OffsetQueue()
        complete(broker, session, came, node)

    patch.setattr(session_transfer, "complete", complete_without_heard)


def heard_messages_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Those that the old node had served come again."""
    complete = session_transfer.complete

    def complete_without_vector(broker: Any, session: Session, came: Any, node: str) -> None:
        own = {origin: stamp for origin, stamp in came.vector.items() if origin == came.source}
        complete(broker, session, came._replace(vector=own), node)

    patch.setattr(session_transfer, "complete", complete_without_vector)


def message_left_out_of_a_page(patch: pytest.MonkeyPatch) -> None:
    honest = Pages.next

    def next_without_one(pages: Pages) -> tuple[list[Item], list[State], bool]:
        items, states, is_last = honest(pages)
        return items[1:], states, is_last

    patch.setattr(Pages, "next", next_without_one)


def page_put_down_twice(patch: pytest.MonkeyPatch) -> None:
    honest = Arrival._written

    def written_twice(arrival: Arrival, page: MigSync, staged: Any, safe: bool) -> None:
        honest(arrival, page, [*staged, *(one for one in staged if not one.packet_id)], safe)

    patch.setattr(Arrival, "_written", written_twice)


def pages_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    honest = Arrival._written

    def written_backwards(arrival: Arrival, page: MigSync, staged: Any, safe: bool) -> None:
        honest(arrival, page, staged[::-1], safe)

    patch.setattr(Arrival, "_written", written_backwards)


def vector_taken_too_late(patch: pytest.MonkeyPatch) -> None:
    """It covers messages that nobody has delivered."""
    honest = Departure._with_session

    def with_more(departure: Departure, page: MigSync) -> MigSync:
        departure._ours = {
            origin: stamp._replace(sequence=stamp.sequence + 3) for origin, stamp in departure._ours.items()
        }
        return honest(departure, page)

    patch.setattr(Departure, "_with_session", with_more)


def old_owner_keeps_the_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session_transfer, "end_moved", lambda broker, session, node, number: None)


def publishers_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PublisherOrder, "holds_up", lambda order, client: False)
    patch.setattr(PublisherOrder, "first_unread", lambda order, start, have: None)
    patch.setattr(PublisherOrder, "told", lambda order, after, entries: None)


PLANTED: list[tuple[Plant, str]] = [
    (heard_messages_dropped, "lost"),
    (heard_messages_not_compared, "duplicated"),
    (message_left_out_of_a_page, "lost"),
    (page_put_down_twice, "duplicated"),
    (pages_in_the_wrong_order, "reordered"),
    (vector_taken_too_late, "lost"),
    (old_owner_keeps_the_session, "two owners"),
]
OUT_OF_STEP: list[tuple[Plant, str]] = [
    (barrier_off, "duplicated"),
    (publishers_not_waited_for, "reordered"),
]
"""Faults that show only if one node has read further than another."""


@pytest.mark.parametrize(("plant", "claim"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_fault_in_a_move_is_caught(monkeypatch: pytest.MonkeyPatch, plant: Plant, claim: str) -> None:
    plant(monkeypatch)
    assert is_broken(claim)


@pytest.mark.parametrize(("plant", "claim"), OUT_OF_STEP, ids=[plant.__name__ for plant, _ in OUT_OF_STEP])
def test_a_fault_is_caught_when_links_break(monkeypatch: pytest.MonkeyPatch, plant: Plant, claim: str) -> None:
    plant(monkeypatch)
    assert is_broken(claim, "link-break", "partition")
