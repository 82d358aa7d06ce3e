"""A restarted node hears who owns which session before it lets in clients that it does not know.

Sessions may have begun elsewhere while the node was away, and it may have forgotten what it could not write down.  So
such clients wait until a neighbour has told what it knows; not for ever, as there may be nobody.  Clients whose
sessions are here do not wait, unless they may have new sessions elsewhere: because this node was away for long, or
because they would have forgotten then what is in flight to them here.  Clients that ask for a clean start do not wait.
A node that has forgotten all others gives new sessions to the clients that it lets in before it meets one: that one may
have their old sessions, and names them before its messages come (`NewSessions.named`).
"""

from __future__ import annotations

from collections.abc import Callable

from sterna.migration.move_host import MoveHost

#: How long a node that finds nobody keeps clients waiting that it does not know, if they may have a second session.
MEET_S = 2.0


class RestartGrace:
    def __init__(self, host: MoveHost, then: Callable[[], None], *, is_first_start: bool, silent_s: float) -> None:
        """`then`: those who wait may come in.  `silent_s`: since the node last wrote something down."""
        self._host = host
        self._then = then
        self._is_first = self.is_over = is_first_start
        #: It is told by others what it may have forgotten.
        self.has_met = self.is_over
        self._gives_new_sessions = host.settings.owner_unreachable == "new-session"
        #: As far as the journal tells; others may have missed it for longer.
        self._was_away = silent_s >= host.settings.owner_absent_s / 2
        #: Nobody waits for longer.
        self._latest = host.now + host.settings.owner_absent_s
        if not self.is_over:
            host.later(MEET_S if self._gives_new_sessions else host.settings.owner_absent_s, self._give_up)

    def keeps_waiting(self, *, has_in_flight: bool) -> bool:
        """May the client of a session that is here have a new one since?  Then it would get something twice from what
        is here, or what it sends again be published twice."""
        return not self.is_over and self._gives_new_sessions and (self._was_away or has_in_flight)

    @property
    def has_forgotten(self) -> bool:
        """It was started before, and does not know a single other node yet.

        A neighbour that was lost at once may have told nothing: it counts as met only while it is there.
        """
        host = self._host
        if self._is_first or (self.has_met and host.router.paths.origins):
            return False
        return all(origin == host.node for origin in host.router.streams.vector)

    def link_started(self) -> None:
        """It is told of differences before it answers: links keep the order."""
        if not self.has_met:
            self._host.router.when_heard(self._heard)

    def _heard(self) -> None:
        # By then it is known where those are that own something, too, and whether the neighbour stays.
        self._host.later(self._host.settings.retry_s / 5, self._met)

    def _met(self) -> None:
        if self._host.router.paths.origins:
            self.has_met = True
            self._end()
        elif self._host.router.has_links:
            self._heard()  # it has yet to say who is there

    def _give_up(self) -> None:
        """There is nobody; unless somebody has just been found, and is about to tell."""
        if not self.is_over and self._host.router.has_links and self._host.now < self._latest:
            self._host.later(self._host.settings.retry_s / 5, self._give_up)
        else:
            self._end()

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._then()
