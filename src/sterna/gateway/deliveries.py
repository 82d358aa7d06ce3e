"""Messages on their way from the node to the client, by packet identifier, and how far they are acknowledged.

A node that has lost its connection sends again what it believes unacknowledged.  The client never lost anything, so a
repetition must not reach it: while the client has yet to answer, its answer goes to the new connection; when it has
answered already, the gateway repeats the answer itself.

Why a remembered answer is never given for another message.  A node assigns identifiers in a circle, leaving out those
in use, and has at most W messages (`window`) in flight.  The gateway remembers the last 2W final acknowledgements, and
of what it has seen at most W are open, so what it remembers was assigned no more than 4W assignments before the latest
it has seen.  Identifiers that the node assigned since, unseen, are in flight there: at most W, no further than 2W ahead
of the latest seen.  The two cannot meet as long as 6W < 65535 (`WINDOW_MAX`).  2W answers are enough: an answer matters
until the node has had it; those it has not had belong to messages in flight there, and it sends these again before
anything new has taken W more acknowledgements.

The one way back in the circle is a node that crashed: at QoS 1 it may have forgotten its latest assignments.  A node
sends again all that it knows to be in flight before it sends anything new.  So what a connection has not repeated by
its first message without DUP, the node has forgotten, or had the answer to: then the gateway forgets its own answers at
QoS 1, and ends by itself what the client has yet to answer.  If the connection is lost before anything new was seen, it
cannot know, and does the same; at QoS 1 a repetition is allowed.  (At QoS 2 no identifier leaves a node before its
assignment is safe.)

A client can have two sessions for a while, when a node that was away is back, and change between them.  Exchanges at
QoS 2 that a connection has not repeated may be the other session's.  They count against what the client takes at once,
and the node, which does not know of them, waits when that is reached.  If only the other session could end them
(`is_stuck`), the client has to begin anew: should the gateway end them, and then die, the message would come twice.
"""

from __future__ import annotations

from typing import Final

from sterna.mqtt.packets import PUBACK, PUBREC

WINDOW_MAX: Final = 65535 // 6

#: How far an exchange has come: the client was sent the message at QoS 1, or at QoS 2; it said PUBREC; it was sent
#: PUBREL.
SENT_ONCE: Final = 1
SENT_EXACTLY: Final = 2
RECEIVED: Final = 3
RELEASED: Final = 4

#: Verdicts on a packet: pass it on, let it vanish, answer it in the other's place, or wait with it.
PASS: Final = 0
SWALLOW: Final = 1
ANSWER: Final = 2
HOLD: Final = 3


class Deliveries:
    __slots__ = (
        "_acknowledged",
        "_fresh",
        "_memory",
        "_others",
        "_unrepeated",
        "_window",
        "client_window",
        "open",
        "orphans",
        "owed",
        "repeats_first",
    )

    def __init__(self, window: int) -> None:
        self._window = window
        self._memory = 2 * window
        #: Does the node send again what is in flight before anything new?  Brokers of other makes need not.
        self.repeats_first = True
        #: Messages that the client takes before it answers; a node counts those that it knows of.
        self.client_window = 65535
        #: identifier -> how far its exchange has come.
        self.open: dict[int, int] = {}
        #: Exchanges the node no longer knows of; the gateway ends them with the client by itself.
        self.orphans: dict[int, int] = {}
        #: Of these, what the client has yet to be sent PUBREL for.
        self.owed: list[int] = []
        #: Identifiers whose exchange the client has ended, with their QoS, the latest last.
        self._acknowledged: dict[int, int] = {}
        #: Has this connection brought anything new?
        self._fresh = False
        #: Exchanges at QoS 1 that were open when the last connection was lost, and that this one has not repeated.
        self._unrepeated: set[int] = set()
        #: The same at QoS 2: the client's other session may have begun them.
        self._others: set[int] = set()

    # -- what the node says --

    def publish(self, first: int, packet_id: int) -> int:
        """HOT.  PUBLISH at QoS 1 or 2, by its first byte."""
        if not first & 0x08 and not self._fresh:
            self._fresh = True
            if self.repeats_first:
                self._forget_at_qos_1(self._unrepeated)
        if self.orphans and packet_id in self.orphans:
            return HOLD
        stage = self.open.get(packet_id, 0)
        if stage:
            if first & 0x08:
                self._unrepeated.discard(packet_id)
                self._others.discard(packet_id)
                return SWALLOW if stage <= SENT_EXACTLY else ANSWER
            # Another message under an identifier whose answer the node did not wait for: it has forgotten.
            self._orphan(packet_id)
            return HOLD
        if not first & 0x08:
            self._acknowledged.pop(packet_id, 0)
        elif packet_id in self._acknowledged:
            return ANSWER
        if len(self.open) + len(self.orphans) >= self.client_window:
            return HOLD  # some of it the node does not know of
        self.open[packet_id] = SENT_ONCE if first & 0x02 else SENT_EXACTLY
        if len(self.open) - len(self._others) > self._window and self._memory:
            # More in flight than agreed: the reasoning above does not hold, so nothing is answered by memory.
            self._memory = 0
            self._acknowledged.clear()
        return PASS

    def release(self, packet_id: int) -> int:
        """PUBREL."""
        stage = self.open.get(packet_id, 0)
        if stage and self._others:
            self._others.discard(packet_id)
        if stage == RELEASED:
            return SWALLOW
        if not stage and packet_id in self._acknowledged:
            return ANSWER
        if self.orphans and packet_id in self.orphans:
            return SWALLOW
        self.open[packet_id] = RELEASED
        return PASS

    # -- what the client says --

    def acknowledge(self, kind: int, packet_id: int, *, refused: bool) -> int:
        """HOT.  PUBACK, PUBREC or PUBCOMP."""
        if self.orphans and packet_id in self.orphans:
            if kind == PUBREC and not refused:
                self.orphans[packet_id] = RELEASED
                self.owed.append(packet_id)  # no node will send it
            else:
                del self.orphans[packet_id]
            return SWALLOW
        if kind == PUBREC and not refused:
            if self.open.get(packet_id, 0) != RELEASED:
                self.open[packet_id] = RECEIVED
            return PASS
        self.open.pop(packet_id, 0)
        if self._others:
            self._others.discard(packet_id)
        if self._memory:
            acknowledged = self._acknowledged
            acknowledged.pop(packet_id, 0)
            acknowledged[packet_id] = 1 if kind == PUBACK else 2
            if len(acknowledged) > self._memory:
                del acknowledged[next(iter(acknowledged))]
        return PASS

    @property
    def is_stuck(self) -> bool:
        """Does the client wait for a word about all that it has under way?"""
        return bool(self._others) and not self.orphans and all(stage == RECEIVED for stage in self.open.values())

    # -- connections come and go --

    def interrupted(self) -> None:
        """The connection to the node is lost."""
        open_once = {known for known, stage in self.open.items() if stage == SENT_ONCE}
        if not self._fresh:
            self._forget_at_qos_1(open_once)
        self._unrepeated = open_once & self.open.keys()
        self._others = {known for known, stage in self.open.items() if stage != SENT_ONCE}
        self._fresh = False

    def _forget_at_qos_1(self, unrepeated: set[int]) -> None:
        self._acknowledged = {known: qos for known, qos in self._acknowledged.items() if qos == 2}
        for packet_id in unrepeated:
            if self.open.get(packet_id) == SENT_ONCE:
                self._orphan(packet_id)

    def forgotten(self) -> None:
        """The node has lost the session."""
        self._acknowledged.clear()
        self._others.clear()
        for packet_id in list(self.open):
            self._orphan(packet_id)

    def _orphan(self, packet_id: int) -> None:
        stage = self.open.pop(packet_id)
        if stage == RECEIVED:
            self.owed.append(packet_id)
            stage = RELEASED
        self.orphans[packet_id] = stage

    def take_owed(self) -> list[int]:
        """Identifiers for which the client must be sent PUBREL, once."""
        owed, self.owed = self.owed, []
        return owed
