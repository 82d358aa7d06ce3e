"""The order of a turn: commit, clients, other nodes, clients, commit; and when each of them waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from broker.lone_node import LoneNode
from sterna.journal.settings import JournalSettings
from sterna.mqtt.message import Message
from sterna.node.committing import RETRY_S, Committing, Step, Write
from sterna.node.driver import QUIET_LINKS_S, Driver
from sterna.node.write_pacing import BUSY_WRITES, WINDOW_S
from sterna.vocabulary.errors import JournalError

NOW = 100.0
INTERVAL_S = 0.002


class Alarm:
    def __init__(self, instant: float, action: Callable[[float], None]) -> None:
        self.instant = instant
        self.action = action
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class World:
    """A node with clients that listen, on timers that the test rings.  `done` tells what was done in which order, each
    with the number of writes to clients before it."""

    def __init__(self, clients: int = 1, *, networked: bool = True) -> None:
        settings = JournalSettings(group_commit_ms=INTERVAL_S * 1000)
        lone = LoneNode(settings=settings)
        self.store, self.node, self.broker = lone.store, lone.node, lone.broker
        self.clients = [lone.join(f"c{number}") for number in range(clients)]
        for client in self.clients:
            client.subscribe("t")
        lone.settle()
        self._written_before = sum(client.wire.writes for client in self.clients)
        self.node.network = cast(Any, self) if networked else None
        self.done: list[tuple[str, int]] = []
        self.steps: list[Step] = []
        self.round_ends: list[Callable[[], None]] = []
        self.alarms: list[Alarm] = []
        #: Other nodes send something at QoS 0 when they are flushed, and something that has to be written.
        self.nodes_send = False
        self.committing = Committing(self.node, settings)
        self.driver = Driver(self.node, self.committing, self.perform, networked=networked)
        self.driver.begin(self)

    @property
    def writes(self) -> int:
        return sum(client.wire.writes for client in self.clients) - self._written_before

    def flush(self) -> None:
        """As the network of the node."""
        self.done.append(("nodes", self.writes))
        if self.nodes_send:
            self.publish(0)
            self.publish(1)

    def perform(self, step: Step) -> None:
        self.done.append(("commit", self.writes))
        self.steps.append(step)

    def finish(self, result: JournalError | None = None) -> None:
        (step,) = self.steps
        self.steps.clear()
        assert isinstance(step, Write)
        self.committing.written(step, result or self.store.write(step.group), self.broker.now)

    def soon(self, action: Callable[[], None]) -> None:
        self.round_ends.append(action)

    def later(self, seconds: float, action: Callable[[float], None]) -> Alarm:
        return self.at(self.broker.now + seconds, action)

    def at(self, instant: float, action: Callable[[float], None]) -> Alarm:
        self.alarms.append(Alarm(instant, action))
        return self.alarms[-1]

    def publish(self, qos: int) -> None:
        self.broker.ingress.publish(Message(b"t", b"", qos))

    def work(self, now: float) -> list[tuple[str, int]]:
        self.broker.at(now)
        self.done = []
        self.driver.after_work()
        return self.done

    def end_of_round(self) -> list[tuple[str, int]]:
        self.done = []
        (action,) = self.round_ends
        self.round_ends.clear()
        action()
        return self.done

    @property
    def waiting(self) -> list[float]:
        return sorted(alarm.instant for alarm in self.alarms if not alarm.is_cancelled)

    def ring(self, instant: float) -> list[tuple[str, int]]:
        (alarm,) = [alarm for alarm in self.alarms if not alarm.is_cancelled and alarm.instant == instant]
        self.alarms.remove(alarm)
        self.done = []
        alarm.action(instant)
        return self.done


def test_a_turn_commits_sends_to_clients_to_nodes_to_clients_again_and_commits_what_came_of_it() -> None:
    world = World()
    world.publish(0)
    world.nodes_send = True
    assert world.work(NOW) == [("nodes", 1), ("commit", 2)]
    assert world.writes == 2
    world.finish()
    world.nodes_send = False
    world.publish(1)
    assert world.work(NOW + 1) == [("commit", 2), ("nodes", 3)]


def test_a_node_by_itself_has_no_links_to_flush() -> None:
    world = World(networked=False)
    world.publish(0)
    assert world.work(NOW) == []
    assert world.writes == 1


def test_links_are_flushed_once_in_a_round_of_the_loop_if_they_were_a_moment_ago() -> None:
    world = World()
    assert world.work(NOW) == [("nodes", 0)]
    assert world.work(NOW + QUIET_LINKS_S / 2) == []
    assert world.work(NOW + QUIET_LINKS_S / 2) == []
    assert world.end_of_round() == [("nodes", 0)]
    assert world.work(NOW + 2 * QUIET_LINKS_S) == [("nodes", 0)]
    assert world.round_ends == []


def test_under_load_clients_are_sent_to_when_a_window_is_over() -> None:
    world = World(BUSY_WRITES, networked=False)
    world.publish(0)
    world.work(NOW)
    assert world.writes == BUSY_WRITES
    window = NOW + WINDOW_S
    assert window in world.waiting
    world.publish(0)
    world.publish(0)
    world.work(NOW + WINDOW_S / 2)
    assert world.writes == BUSY_WRITES
    world.ring(window)
    assert world.writes == 2 * BUSY_WRITES, "one write for both"
    assert world.waiting[0] == window + WINDOW_S, "so much was sent that another window begins"
    world.ring(window + WINDOW_S)
    world.publish(0)
    world.work(window + 2 * WINDOW_S)
    assert world.writes == 3 * BUSY_WRITES, "after a quiet window nothing waits"


def test_a_group_that_waits_for_its_interval_is_written_when_that_is_over_also_under_load() -> None:
    world = World(BUSY_WRITES, networked=False)
    world.publish(1)
    assert world.work(NOW) == [("commit", 0)]
    world.finish()
    world.publish(1)
    world.work(NOW + 0.0005)
    wake = world.committing.wake_at
    assert wake == pytest.approx(NOW + INTERVAL_S)
    assert wake in world.waiting
    assert [what for what, _ in world.ring(wake)] == ["commit"]
    assert wake not in world.waiting


def test_a_timer_that_is_not_needed_any_more_is_cancelled() -> None:
    world = World(networked=False)
    world.publish(1)
    world.work(NOW)
    world.finish()
    world.publish(1)
    world.work(NOW + 0.0005)
    wake = world.committing.wake_at
    assert wake in world.waiting
    assert [what for what, _ in world.work(NOW + 0.01)] == ["commit"]
    assert wake not in world.waiting


def test_a_journal_that_cannot_be_written_is_tried_again_when_its_time_has_come() -> None:
    world = World(networked=False)
    world.node.journal.note(b"a session event")
    world.work(NOW)
    world.finish(JournalError("the disk is full"))
    world.work(NOW)
    assert NOW + RETRY_S in world.waiting
    assert [what for what, _ in world.ring(NOW + RETRY_S)] == ["commit"]


def test_the_next_deadline_has_a_timer_and_an_earlier_one_takes_its_place() -> None:
    world = World(networked=False)
    reached: list[str] = []
    world.broker.deadlines.at(NOW + 5, lambda: reached.append("late"))
    world.work(NOW)
    world.broker.deadlines.at(NOW + 3, lambda: reached.append("early"))
    world.work(NOW)
    assert NOW + 3 in world.waiting
    assert NOW + 5 not in world.waiting
    world.ring(NOW + 3)
    assert reached == ["early"]
    assert NOW + 5 in world.waiting
