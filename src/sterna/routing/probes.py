"""Has everybody heard?  A probe goes out over all links behind the interest it asks about, and its echo comes back
once every node has passed on what lay before it.

A subscriber is told that its subscription stands when the echo is back, so whatever is published anywhere after that
reaches it.  One probe is under way at a time and covers all that waited when it left; time is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from sterna.routing.control import Echo, Frame, Probe, encode
from sterna.vocabulary.stamps import Stamp, VersionVector

#: Probes of other nodes being passed on at once; past this the oldest is answered as it stands.
PASSING_MAX = 4096
#: Nodes an echo can speak of.
FRONTIERS_MAX = 4096

#: This node among those a probe has not come back from; no link has this name.
HERE = ""

Action = Callable[[], None]


class ProbeUser(Protocol):
    def links(self) -> list[str]: ...
    def send_control(self, link: str, kind: int, body: bytes) -> bool: ...
    def in_turn(self, action: Action) -> None:
        """Do this once what was taken in before it has been sent on."""

    def frontier(self) -> Stamp:
        """The last of our own messages that has been sent to the links."""


class Probes:
    def __init__(
        self,
        node: str,
        user: ProbeUser,
        *,
        timeout_s: float,
        now: Callable[[], float],
        schedule: Callable[[float, Action], None],
    ) -> None:
        self._node = node
        self._user = user
        self._timeout_s = timeout_s
        self._now = now
        self._schedule = schedule
        self._number = 0
        self._waiting: list[Action] = []
        self._covered: list[Action] = []
        #: Those that want to know how far everybody had come.
        self._curious: list[Callable[[VersionVector], None]] = []
        self._frontiers: VersionVector = {}
        #: Links our own probe has not come back from.
        self._out: dict[str, None] = {}
        #: (asker, number) -> the link it came by, the links it has not come back from.
        self._passing: dict[tuple[str, int], tuple[str, dict[str, None]]] = {}
        #: The same -> the frontiers they brought, of those that were asked for.
        self._brought: dict[tuple[str, int], VersionVector] = {}
        #: Subscribers told before everybody was heard from.
        self.timed_out = 0

    def after(self, action: Action) -> None:
        """Do this once every node that can be reached knows what we want now."""
        self._waiting.append(action)

    def ask(self, action: Callable[[VersionVector], None]) -> None:
        """The same, and tell how far the messages of those nodes had come when they heard; whoever is not named has not
        been heard from."""
        self._curious.append(action)
        self._waiting.append(lambda: None)

    @property
    def waiting(self) -> bool:
        """Is a probe to leave at the next flush?"""
        return bool(self._waiting) and not self._covered

    def flush(self) -> None:
        if self.waiting:
            self._covered, self._waiting = self._waiting, []
            self._number += 1
            self._out = dict.fromkeys(self._user.links())
            curious, self._curious = self._curious, []
            found: VersionVector = {}
            self._frontiers = found
            self._covered += [partial(action, found) for action in curious]
            body = encode(Probe(self._node, self._number, bool(curious)))
            for link in self._out:
                self._user.send_control(link, Frame.PROBE, body)
            number = self._number
            self._schedule(self._now() + self._timeout_s, lambda: self._give_up(number))
            self._settle()

    def _give_up(self, number: int) -> None:
        if number == self._number and self._out:
            self.timed_out += 1
            self._out = {}
            self._settle()

    def _settle(self) -> None:
        if not self._out and self._covered:
            actions, self._covered = self._covered, []
            for action in actions:
                action()

    def probed(self, link: str, probe: Probe) -> None:
        key = (probe.asker, probe.number)
        others = dict.fromkeys(other for other in self._user.links() if other != link)
        if probe.asker == self._node or key in self._passing:
            self._user.send_control(link, Frame.ECHO, encode(Echo(*key)))
            return
        if len(self._passing) >= PASSING_MAX:
            self._answer(next(iter(self._passing)))
        self._passing[key] = (link, {**others, HERE: None})
        if probe.with_frontiers:
            self._brought[key] = {}
        body = encode(probe)
        for other in others:
            self._user.send_control(other, Frame.PROBE, body)
        # What was decided before the news, and is still being written, goes ahead of the answer.
        self._user.in_turn(partial(self._passed_here, key))

    def _passed_here(self, key: tuple[str, int]) -> None:
        own = [(self._node, *self._user.frontier())] if key in self._brought else []
        self.echoed(HERE, Echo(*key, own))

    def _answer(self, key: tuple[str, int]) -> None:
        link, _ = self._passing.pop(key)
        brought = [(node, *stamp) for node, stamp in self._brought.pop(key, {}).items()]
        self._user.send_control(link, Frame.ECHO, encode(Echo(*key, brought)))

    def echoed(self, link: str, probe: Echo) -> None:
        found = {node: Stamp(epoch, sequence) for node, epoch, sequence in probe.frontiers[:FRONTIERS_MAX]}
        if probe.asker == self._node:
            if probe.number == self._number:
                self._frontiers.update(found)
                self._out.pop(link, None)
                self._settle()
            return
        key = (probe.asker, probe.number)
        passing = self._passing.get(key)
        if passing is not None:
            if key in self._brought:
                self._brought[key].update(found)
            passing[1].pop(link, None)
            if not passing[1]:
                self._answer((probe.asker, probe.number))

    def link_ended(self, link: str) -> None:
        """Whoever lies behind it cannot be reached, and need not be waited for."""
        if link in self._out:
            del self._out[link]
            self._settle()
        for key, (came_by, others) in list(self._passing.items()):
            others.pop(link, None)
            if came_by == link:
                del self._passing[key]
                self._brought.pop(key, None)
            elif not others:
                self._answer(key)
