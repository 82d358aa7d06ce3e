"""Everybody has heard: how long a subscriber waits for that, and how many probes it takes."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from sterna.routing.link_frames import EchoFrame, Frame, ProbeFrame, decode
from sterna.routing.probes import AT_ONCE, Probes
from sterna.vocabulary.identity import Stamp

TIMEOUT_S = 1.0


class Node:
    """Its links, its clock and what it sent; a link answers when the test says so."""

    def __init__(self, *links: str) -> None:
        self.now = 100.0
        self.sent: list[tuple[str, ProbeFrame]] = []
        self.read_anew: list[str] = []
        self._links = list(links)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self.probes = Probes("here", self, timeout_s=TIMEOUT_S, now=lambda: self.now, schedule=self._schedule)

    def _schedule(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at, len(self._due), action))

    def links(self) -> list[str]:
        return self._links

    def send_control(self, link: str, kind: int, body: bytes) -> bool:
        assert kind == Frame.PROBE
        self.sent.append((link, decode(body, ProbeFrame)))
        return True

    def in_turn(self, action: Callable[[], None]) -> None:
        action()

    def frontier(self) -> Stamp:
        return Stamp(1, 1)

    def is_synced(self, origin: str) -> bool:
        return True

    def have_not_heard(self, links: list[str]) -> None:
        self.read_anew += links

    def pass_time(self, seconds: float) -> None:
        """Turns end with a flush, as a node's do."""
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            self.now, _, action = heapq.heappop(self._due)
            action()
            self.probes.flush()
        self.now = end
        self.probes.flush()

    def subscribe(self) -> list[float]:
        """Gets the time at which everybody has heard."""
        heard: list[float] = []
        self.probes.when_heard(lambda: heard.append(self.now), of_interest=True)
        self.probes.flush()
        return heard

    def echo(self, link: str) -> None:
        """This neighbour answers all it was asked."""
        for asked, probe in self.sent:
            if asked == link:
                self.probes.echoed(link, EchoFrame(probe.asker, probe.number))
        self.sent = [(asked, probe) for asked, probe in self.sent if asked != link]
        self.probes.flush()


def test_nobody_waits_longer_than_the_time_out_whoever_else_waits_already() -> None:
    """A neighbour is dead, and nobody knows yet: each subscription used to wait for those before it, and then again."""
    node = Node("dead", "alive")
    began: list[float] = []
    waits: list[list[float]] = []
    for _ in range(40):
        began.append(node.now)
        waits.append(node.subscribe())
        node.echo("alive")
        node.pass_time(0.07)
    node.pass_time(TIMEOUT_S)
    assert max(heard - asked for asked, (heard,) in zip(began, waits, strict=True)) <= TIMEOUT_S + 1e-6


def test_those_who_come_at_once_share_a_probe_and_few_are_under_way() -> None:
    node = Node("slow")
    waits = [node.subscribe() for _ in range(100)]
    assert len(node.sent) == 1, "the others wait for the first"
    node.pass_time(TIMEOUT_S / AT_ONCE)
    assert len(node.sent) == 2, "and go together when it takes its time"
    node.echo("slow")
    assert all(len(heard) == 1 for heard in waits)


def test_a_link_that_ends_is_waited_for_by_no_probe() -> None:
    node = Node("dead")
    first = node.subscribe()
    node.pass_time(TIMEOUT_S / AT_ONCE)
    second = node.subscribe()
    node.probes.link_ended("dead")
    assert (len(first), len(second)) == (1, 1)
    assert node.probes.timed_out == 0


def test_origins_behind_links_that_did_not_answer_about_a_subscription_are_read_anew() -> None:
    node = Node("dead", "alive")
    waits = node.subscribe()
    node.echo("alive")
    node.pass_time(TIMEOUT_S - 0.01)
    assert node.read_anew == []
    node.pass_time(0.02)
    assert (len(waits), node.read_anew) == (1, ["dead"])
    node.probes.when_heard(lambda: None)
    node.probes.flush()
    node.pass_time(2 * TIMEOUT_S)
    assert node.probes.timed_out == 2
    assert node.read_anew == ["dead"], "nothing more is wanted"
