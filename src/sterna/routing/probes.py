"""Has everybody heard?  A probe goes out over all links behind the interest it asks about, and its echo comes back
once every node has passed on what lay before it.

A subscriber is told that its subscription stands when the echo is back, so every message published anywhere after that
reaches it.  Links keep the order, so all that a node had acknowledged when it heard the probe is here before its echo:
a retained value that was replaced or cleared anywhere before the subscription is not found by it.  A probe covers all
that waited when it left, and while it is under way the next one waits for it, but not for long: it may be on its way to
somebody who is dead.  Time is bounded.  Origins behind links it has not come back from are then read anew: they may
pass over what this node wants until they hear of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from sterna.routing.link_frames import EchoFrame, Frame, ProbeFrame, encode
from sterna.vocabulary.identity import Stamp, VersionVector

#: Probes of other nodes being passed on at once; past this the oldest is answered as it stands.
PASSING_MAX = 4096
#: Nodes an echo can speak of.
FRONTIERS_MAX = 4096

#: So many probes leave one after the other while the first of them may still come back.
AT_ONCE = 10

#: This node among those a probe has not come back from; no link has this name.
HERE = ""

Action = Callable[[], None]


class Answers(NamedTuple):
    """Of the nodes that a probe came back from."""

    frontiers: VersionVector
    """How far their own messages had come when they passed it."""
    readers: set[str]
    """Those that had all of ours that went before it: safe, or of no use to them."""


class ProbeUser(Protocol):
    def links(self) -> list[str]: ...
    def send_control(self, link: str, kind: int, body: bytes) -> bool: ...
    def in_turn(self, action: Action) -> None:
        """Do this once what was taken in before it has been sent on."""

    def frontier(self) -> Stamp:
        """The last of our own messages that has been sent to the links."""

    def is_synced(self, origin: str) -> bool:
        """Can nothing of that origin be missing here?"""

    def have_not_heard(self, links: list[str]) -> None:
        """Nodes behind these links may not know yet what we want: messages that we now want may pass there."""


class _Probe:
    """One of our own that is under way."""

    __slots__ = ("actions", "answers", "is_of_interest", "out")

    def __init__(self, actions: list[Action], links: list[str], *, is_of_interest: bool) -> None:
        self.actions = actions
        #: It asks whether everybody knows that we want more.
        self.is_of_interest = is_of_interest
        #: Links it has not come back from.
        self.out = dict.fromkeys(links)
        #: Of everybody who has heard it.
        self.answers = Answers({}, set())


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
        self._is_of_interest = False
        #: When the first of them was asked for.
        self._asked_at = 0.0
        #: Those that want to know how far everybody had come.
        self._curious: list[Callable[[Answers], None]] = []
        #: Our own that are under way, by number, the oldest first.
        self._own: dict[int, _Probe] = {}
        #: When the last of them left, and whether somebody is to look again when the next may.
        self._left_at = -math.inf
        self._looks_again = False
        #: (asker, number) -> the link it came by, the links it has not come back from.
        self._passing: dict[tuple[str, int], tuple[str, dict[str, None]]] = {}
        #: The same -> the answers they brought, of those that were asked for.
        self._brought: dict[tuple[str, int], Answers] = {}
        #: Subscribers told before everybody was heard from.
        self.timed_out = 0

    def when_heard(self, action: Action, *, of_interest: bool = False) -> None:
        """Do this once every node that can be reached has heard what we said so far, or did not answer in time.
        `of_interest`: we want more than before."""
        self._is_of_interest = self._is_of_interest or of_interest
        if not self._waiting:
            self._asked_at = self._now()
        self._waiting.append(action)

    def when_answered(self, action: Callable[[Answers], None]) -> None:
        """The same, and tell what those nodes answered.  A node that is not named did not answer."""
        self._curious.append(action)
        self.when_heard(lambda: None)

    @property
    def waiting(self) -> bool:
        """Is a probe to leave at the next flush?"""
        return bool(self._waiting) and (not self._own or self._now() >= self._next_at())

    def _next_at(self) -> float:
        """When another one may leave, though the last one has not come back."""
        return self._left_at + self._timeout_s / AT_ONCE

    def flush(self) -> None:
        if self.waiting:
            self._leave()
        elif self._waiting and not self._looks_again:
            self._looks_again = True
            self._schedule(self._next_at(), self._look_again)

    def _look_again(self) -> None:
        """The turn in which this is called ends with `flush`."""
        self._looks_again = False

    def _leave(self) -> None:
        actions, self._waiting = self._waiting, []
        curious, self._curious = self._curious, []
        self._number += 1
        number, self._left_at = self._number, self._now()
        probe = self._own[number] = _Probe(actions, self._user.links(), is_of_interest=self._is_of_interest)
        self._is_of_interest = False
        actions += [partial(action, probe.answers) for action in curious]
        body = encode(ProbeFrame(self._node, number, bool(curious)))
        for link in probe.out:
            self._user.send_control(link, Frame.PROBE, body)
        self._schedule(self._asked_at + self._timeout_s, partial(self._give_up, number))
        self._settle(number)

    def _give_up(self, number: int) -> None:
        probe = self._own.get(number)
        if probe is not None:
            self.timed_out += 1
            if probe.is_of_interest:
                self._user.have_not_heard(list(probe.out))
            probe.out.clear()
            self._settle(number)

    def _settle(self, number: int) -> None:
        probe = self._own[number]
        if not probe.out:
            del self._own[number]
            for action in probe.actions:
                action()

    def probed(self, link: str, probe: ProbeFrame) -> None:
        key = (probe.asker, probe.number)
        others = dict.fromkeys(other for other in self._user.links() if other != link)
        if probe.asker == self._node or key in self._passing:
            self._user.send_control(link, Frame.ECHO, encode(EchoFrame(*key)))
            return
        if len(self._passing) >= PASSING_MAX:
            self._answer(next(iter(self._passing)))
        self._passing[key] = (link, {**others, HERE: None})
        if probe.with_frontiers:
            self._brought[key] = Answers({}, set())
        body = encode(probe)
        for other in others:
            self._user.send_control(other, Frame.PROBE, body)
        # Decisions from before the news that are still being written go ahead of the answer.
        self._user.in_turn(partial(self._passed_here, key))

    def _passed_here(self, key: tuple[str, int]) -> None:
        own, readers = [], []
        if key in self._brought:
            own = [(self._node, *self._user.frontier())]
            readers = [self._node] if self._user.is_synced(key[0]) else []
        self.echoed(HERE, EchoFrame(*key, own, readers))

    def _answer(self, key: tuple[str, int]) -> None:
        link, _ = self._passing.pop(key)
        answers = self._brought.pop(key, None) or Answers({}, set())
        brought = [(node, *stamp) for node, stamp in answers.frontiers.items()]
        self._user.send_control(link, Frame.ECHO, encode(EchoFrame(*key, brought, sorted(answers.readers))))

    def echoed(self, link: str, probe: EchoFrame) -> None:
        found = {node: Stamp(epoch, sequence) for node, epoch, sequence in probe.frontiers[:FRONTIERS_MAX]}
        if probe.asker == self._node:
            own = self._own.get(probe.number)
            if own is not None:
                _add(own.answers, found, probe)
                own.out.pop(link, None)
                self._settle(probe.number)
            return
        key = (probe.asker, probe.number)
        passing = self._passing.get(key)
        if passing is not None:
            if key in self._brought:
                _add(self._brought[key], found, probe)
            passing[1].pop(link, None)
            if not passing[1]:
                self._answer((probe.asker, probe.number))

    def link_ended(self, link: str) -> None:
        """Nodes behind it cannot be reached, and need not be waited for."""
        for number, own in list(self._own.items()):
            if link in own.out and number in self._own:
                del own.out[link]
                self._settle(number)
        for key, (came_by, others) in list(self._passing.items()):
            others.pop(link, None)
            if came_by == link:
                del self._passing[key]
                self._brought.pop(key, None)
            elif not others:
                self._answer(key)


def _add(answers: Answers, frontiers: VersionVector, echo: EchoFrame) -> None:
    answers.frontiers.update(frontiers)
    answers.readers.update(echo.readers[:FRONTIERS_MAX])
