"""When a node writes its journal and saves its checkpoints: each rule of `Committing` by itself, step by step."""

from __future__ import annotations

import math
from typing import Any

import pytest

from broker.lone_node import LoneNode
from sterna.journal.memory_store import MemoryStore
from sterna.journal.settings import Durability, JournalSettings
from sterna.mqtt.message import Message
from sterna.node.committing import GROUPS_MAX, RETRY_S, Committing, Save, Step, Write
from sterna.vocabulary.errors import JournalError

FULL = JournalError("the disk is full")
INTERVAL_S = 0.002


class Desk:
    """A node, its `Committing`, and a disk that does what the test says."""

    def __init__(self, durability: Durability = "fsync") -> None:
        settings = JournalSettings(durability=durability, group_commit_ms=INTERVAL_S * 1000)
        self.store = MemoryStore(settings)
        self.node = LoneNode(settings=settings, store=self.store).node
        self.broker = self.node.broker
        while self.broker.commitments.pending:  # what the start noted
            commit = self.broker.commitments.close()
            self.broker.committed(commit, None if commit.group is None else self.store.write(commit.group))
        self.core = Committing(self.node, settings)
        self.kept: list[str] = []

    def publish(self, name: str = "") -> None:
        self.broker.ingress.publish(Message(b"t", b"", 1))
        self.promise(name)

    def promise(self, name: str) -> None:
        self.broker.commitments.promise(lambda: self.kept.append(name))

    def write(self, step: Step | None, now: float) -> Step | None:
        assert isinstance(step, Write)
        return self.core.written(step, self.store.write(step.group), now)

    def fail(self, step: Step | None, now: float) -> None:
        assert isinstance(step, Write)
        assert self.core.written(step, FULL, now) is None

    @property
    def pending(self) -> bool:
        return self.broker.commitments.pending


def begun(step: Step | None) -> Write:
    assert isinstance(step, Write)
    return step


def test_nothing_is_written_if_nothing_is_pending() -> None:
    desk = Desk()
    assert desk.core.turn(1.0) is None
    assert desk.core.wake_at == math.inf
    assert desk.core.settled


def test_a_group_is_kept_when_it_is_written_and_not_before() -> None:
    desk = Desk()
    desk.publish("a")
    step = desk.core.turn(1.0)
    assert desk.kept == []
    assert desk.write(step, 1.1) is None
    assert desk.kept == ["a"]


def test_one_group_is_written_at_a_time_and_the_next_fills_meanwhile() -> None:
    desk = Desk()
    desk.publish("a")
    step = desk.core.turn(1.0)
    desk.publish("b")
    desk.publish("c")
    assert desk.core.turn(1.5) is None
    assert desk.core.wake(1.5) is None
    desk.write(step, 1.6)
    assert desk.kept == ["a"]
    desk.write(desk.core.turn(1.6), 1.7)
    assert desk.kept == ["a", "b", "c"]


def test_two_syncs_begin_a_group_commit_interval_apart() -> None:
    desk = Desk()
    desk.publish()
    desk.write(desk.core.turn(1.0), 1.0005)
    desk.publish()
    assert desk.core.turn(1.001) is None
    assert desk.core.wake_at == pytest.approx(1.0 + INTERVAL_S)
    begun(desk.core.wake(desk.core.wake_at))
    assert desk.core.wake_at == math.inf


def test_a_backlog_that_holds_up_clients_is_written_at_once() -> None:
    desk = Desk()
    desk.publish()
    desk.write(desk.core.turn(1.0), 1.0005)
    desk.broker.ingress.publish(Message(b"t", bytes(64 * 1024 * 1024), 1))
    assert desk.broker.overloaded()
    begun(desk.core.turn(1.001))


def test_promises_that_need_no_disk_are_kept_in_the_same_turn() -> None:
    desk = Desk()
    desk.promise("a")
    assert desk.core.turn(1.0) is None
    assert desk.kept == ["a"]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_promises_that_lead_to_others_for_ever_leave_a_turn_to_other_work(durability: Durability) -> None:
    desk = Desk(durability)
    count = 0

    def again() -> None:
        nonlocal count
        count += 1
        desk.broker.commitments.promise(again)

    desk.broker.commitments.promise(again)
    assert desk.core.turn(1.0) is None
    assert count == GROUPS_MAX
    assert desk.core.wake_at == 1.0
    assert desk.core.wake(1.0) is None
    assert count == 2 * GROUPS_MAX


def test_in_place_the_next_group_follows_in_the_same_turn_a_few_times() -> None:
    desk = Desk("os")
    desk.publish()
    step, groups = desk.core.turn(1.0), 0
    while step is not None:
        groups += 1
        desk.publish()
        step = desk.write(step, 1.0)
    assert groups == GROUPS_MAX
    assert desk.pending
    assert desk.core.wake_at == 1.0, "the rest goes on in the next turn"


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_journal_that_could_not_be_written_is_left_alone_for_a_while(durability: Durability) -> None:
    desk = Desk(durability)
    desk.node.journal.note(b"a session event")
    desk.fail(desk.core.turn(1.0), 1.5)
    assert desk.core.trouble == "the disk is full"
    assert desk.pending, "what was noted is not given up"
    assert desk.core.turn(1.6) is None
    assert desk.core.wake_at == 1.5 + RETRY_S
    step = desk.core.wake(2.5)
    desk.fail(step, 2.6)
    assert desk.core.wake_at == 2.6 + RETRY_S
    desk.write(desk.core.wake(3.6), 3.7)
    assert desk.core.trouble is None
    assert desk.core.settled
    assert b"a session event" in desk.store.read(1, 0, 10_000)


def test_trouble_is_over_if_nothing_is_left_to_write() -> None:
    desk = Desk()
    desk.node.journal.append(Message(b"t", b"nobody waits for it"))
    desk.fail(desk.core.turn(1.0), 1.5)
    assert not desk.pending
    assert desk.core.wake(2.5) is None
    assert desk.core.trouble is None
    desk.publish()
    begun(desk.core.turn(2.6))


def test_a_checkpoint_is_saved_after_the_group_that_was_open_when_it_was_taken() -> None:
    desk = Desk()
    desk.publish("a")
    step = desk.core.checkpoint(1.0)
    assert begun(step).changes is not None
    assert desk.core.checkpointing
    save = desk.write(step, 1.1)
    assert desk.kept == ["a"]
    assert isinstance(save, Save)
    assert desk.core.saved(save, None, 1.2) is None
    assert not desk.core.checkpointing


def test_a_checkpoint_waits_for_the_group_under_way_however_busy_the_node_is() -> None:
    desk = Desk()
    desk.publish()
    step = desk.core.turn(1.0)
    assert desk.core.checkpoint(1.0) is None
    desk.publish()
    step = desk.write(step, 1.1)
    assert begun(step).changes is not None, "not one group more before it"
    assert isinstance(desk.write(step, 1.2), Save)


def test_a_checkpoint_does_not_wait_for_the_interval_between_groups() -> None:
    desk = Desk()
    desk.publish()
    desk.write(desk.core.turn(1.0), 1.0005)
    desk.publish()
    assert desk.core.turn(1.001) is None
    begun(desk.core.checkpoint(1.001))
    assert desk.core.wake_at == math.inf


def test_groups_are_written_while_a_checkpoint_is_saved() -> None:
    desk = Desk()
    save = desk.core.checkpoint(1.0)
    assert isinstance(save, Save)
    desk.publish("a")
    desk.write(desk.core.turn(1.1), 1.2)
    assert desk.kept == ["a"]
    assert desk.core.checkpoint(1.3) is None, "one at a time"
    desk.core.saved(save, None, 1.4)
    assert isinstance(desk.core.checkpoint(1.5), Save)


@pytest.mark.parametrize("waits", [True, False])
def test_a_checkpoint_is_given_up_if_its_group_cannot_be_written(waits: bool) -> None:
    desk = Desk()
    desk.publish()
    step = desk.core.turn(1.0) if waits else None
    asked = desk.core.checkpoint(1.0)
    desk.fail(step or asked, 1.1)
    assert not desk.core.checkpointing
    assert desk.core.checkpoint(1.2) is None, "not while writing fails"
    assert not desk.core.checkpointing


def test_what_a_failed_checkpoint_held_is_in_the_next() -> None:
    desk = Desk()
    desk.broker.retained.changed[b"topic"] = None
    first = desk.core.checkpoint(1.0)
    assert isinstance(first, Save)
    desk.core.saved(first, FULL, 1.1)
    second = desk.core.checkpoint(2.0)
    assert isinstance(second, Save)
    assert first.changes.retained_gone == second.changes.retained_gone == [b"topic"]
    desk.core.saved(second, None, 2.1)
    third = desk.core.checkpoint(3.0)
    assert isinstance(third, Save)
    assert third.changes.retained_gone == []


def test_a_failed_group_leaves_a_checkpoint_alone_that_is_being_saved() -> None:
    desk = Desk()
    save = desk.core.checkpoint(1.0)
    assert isinstance(save, Save)
    desk.publish()
    desk.fail(desk.core.turn(1.0), 1.1)
    assert desk.core.checkpointing
    desk.core.saved(save, None, 1.2)
    assert not desk.core.checkpointing


def test_settling_writes_without_a_pause_and_comes_to_an_end() -> None:
    desk = Desk()
    desk.publish()
    step: Any = desk.core.turn(1.0)
    assert desk.core.settle(1.0) is None, "a group is under way"
    groups = 0
    while desk.core.settling:
        desk.publish()
        step = desk.write(step, 1.0)
        groups += 1
    assert groups == GROUPS_MAX + 1
    assert not desk.core.settled


def test_settling_tries_again_though_the_last_write_failed_and_gives_up_if_that_fails() -> None:
    desk = Desk()
    desk.node.journal.note(b"a session event")
    desk.fail(desk.core.turn(1.0), 1.1)
    desk.fail(desk.core.settle(1.2), 1.3)
    assert not desk.core.settling
    assert not desk.core.settled
    desk.write(desk.core.settle(1.4), 1.5)
    assert desk.core.settled
    assert not desk.core.settling


def test_settling_with_nothing_to_write_leaves_the_next_attempt_where_it_was() -> None:
    desk = Desk()
    desk.node.journal.append(Message(b"t", b"nobody waits for it"))
    desk.fail(desk.core.turn(1.0), 1.1)
    assert desk.core.settle(1.2) is None
    assert not desk.core.settling
    assert desk.core.wake_at == 1.1 + RETRY_S


def test_settling_goes_on_when_a_checkpoint_under_way_is_saved() -> None:
    desk = Desk()
    desk.publish()
    step = desk.core.checkpoint(1.0)
    assert desk.core.settle(1.0) is None
    save = desk.write(step, 1.1)
    desk.publish("late")
    assert isinstance(save, Save)
    desk.write(desk.core.saved(save, None, 1.2), 1.3)
    assert desk.kept[-1] == "late"
    assert desk.core.settled
