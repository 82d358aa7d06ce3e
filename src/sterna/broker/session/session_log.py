"""The session log: every change of a session is an event in the journal, so that it survives a crash.

An event stands in the same group as the messages of that moment, so one sync covers both.  A checkpoint makes old
events unnecessary, `recovery.py` replays the others.  Sessions that end with their connection leave no trace here.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import msgspec

from sterna.broker.session import stored_session
from sterna.broker.session.session import Session
from sterna.broker.session.shares import SharedSubscription
from sterna.broker.session.subscriptions import Grant, Subscription, subscription_fields
from sterna.journal.session_state import will_fields
from sterna.operators.part_merging import AwayPart
from sterna.vocabulary.identity import Identity, Stamp


class SessionEvent(IntEnum):
    """The events of a session, as they stand in the journal."""

    OPENED = 1
    CLOSED = 2
    ENDED = 3
    SUBSCRIBED = 4
    UNSUBSCRIBED = 5
    ASSIGNED = 6
    ACKNOWLEDGED = 7
    RECEIVED = 8
    ARRIVED = 9
    RELEASED = 10
    RETURNED = 11
    QUEUED = 12
    TAKEN = 13
    SEEN = 14
    SHARED = 15
    COMPUTED = 16
    PART = 17
    LEAVING = 18
    MOVED = 19
    IMPORTED = 20
    OWNER = 21
    STATE = 22
    RESULT = 23
    BEGAN = 24
    WINDOWS = 26
    AWAY = 27
    EVACUATED = 30
    CLOCK = 31
    RUNNING = 32
    GIVEN = 33
    ACCESS = 34
    KEPT = 35


class SessionLog:
    """Notes events.  `touched` also remembers who changed, for the next checkpoint."""

    __slots__ = ("_encode", "_note", "came_or_went", "changed", "enabled", "ended")

    def __init__(self, note: Callable[[bytes], None], *, enabled: bool) -> None:
        #: False when nothing outlives the process (durability = memory).
        self.enabled = enabled
        self._note = note
        self._encode = msgspec.msgpack.Encoder().encode
        #: Persistent sessions that differ from their last snapshot.
        self.changed: dict[bytes, Session] = {}
        #: Sessions whose snapshot has to go.
        self.ended: dict[bytes, None] = {}
        #: How many events said that a session has come here whole, or is here no more.  Counted before they can be on
        #: the disk.
        self.came_or_went = 0

    def _event(self, session: Session, *event: Any) -> None:
        if self.enabled:
            self.changed[session.client_id] = session
            self._note(self._encode(event))

    def seen(self, origin: str, stamp: Stamp) -> None:
        """Messages of another node have been read up to here."""
        if self.enabled:
            self._note(self._encode((SessionEvent.SEEN, origin, stamp.epoch, stamp.sequence)))

    def shared(self, origin: str, shares: list[tuple[bytes, int]]) -> None:
        """Another node has these members of shared subscriptions."""
        if self.enabled:
            self._note(self._encode((SessionEvent.SHARED, origin, shares)))

    def given(self, share_key: bytes, start: int, stop: int, node: str) -> None:
        """Messages of ours in this range of offsets are for members at that node."""
        if self.enabled:
            self._note(self._encode((SessionEvent.GIVEN, share_key, start, stop, node)))

    def access(self, entry: bytes) -> None:
        """A ban, user or access rule was set, or removed."""
        if self.enabled:
            self._note(self._encode((SessionEvent.ACCESS, "", entry)))

    def kept(self, owner: bytes, name: bytes, value: bytes) -> None:
        """This node keeps a value for somebody; an empty one: no longer."""
        if self.enabled:
            self._note(self._encode((SessionEvent.KEPT, "", owner, name, value)))

    def evacuated(self, rate: float) -> None:
        """This node is being emptied, so many clients a second; 0: no longer."""
        if self.enabled:
            self._note(self._encode((SessionEvent.EVACUATED, "", rate)))

    def clock_ahead(self, seconds: float) -> None:
        """The clock of some other node is ahead of ours by so much."""
        if self.enabled:
            self._note(self._encode((SessionEvent.CLOCK, "", seconds)))

    def running(self, running: float, wall: float) -> None:
        """Running clock and wall clock at one moment."""
        if self.enabled:
            self._note(self._encode((SessionEvent.RUNNING, "", running, wall)))

    def computed(self, expression: bytes, offset: int, value: float | None) -> None:
        """The result of a function for the message at `offset` (None: it failed) went into this expression."""
        if self.enabled:
            self._note(self._encode((SessionEvent.COMPUTED, expression, offset, value)))

    def state(self, expression: bytes, snapshot: bytes) -> None:
        """The state of an expression: its subscription follows."""
        if self.enabled:
            self._note(self._encode((SessionEvent.STATE, expression, snapshot)))

    def result(self, expression: bytes, number: int, taken: int, time_us: int, made_of: Identity | None) -> None:
        """It has a result of this number, which is of this time and goes with this group; the last message at QoS 1 and
        2 it had taken by then is at `taken`."""
        if self.enabled:
            self._note(self._encode((SessionEvent.RESULT, expression, number, taken, time_us, made_of)))

    def ended_windows(self, part: bytes, taken: int, upto_us: int) -> None:
        """Windows of a part have ended by the clock; the last message at QoS 1 and 2 it had taken by then is there."""
        if self.enabled:
            self._note(self._encode((SessionEvent.WINDOWS, part, taken, upto_us)))

    def part(self, holder: str, name: bytes, *, is_wanted: bool, since_us: int = 0) -> None:
        """Another node (or, without a name, clients here) wants this part of an expression, or no longer does."""
        if self.enabled:
            self._note(self._encode((SessionEvent.PART, holder, name, is_wanted, since_us)))

    def away(self, part: bytes, away: list[AwayPart]) -> None:
        """These nodes cannot be reached, and said this last of a part."""
        if self.enabled:
            self._note(self._encode((SessionEvent.AWAY, part, away)))

    def touched(self, session: Session) -> None:
        if session.expiry_s and self.enabled:
            self.changed[session.client_id] = session

    def opened(self, session: Session, *, new: bool) -> None:
        """Also noted when a session that was persistent no longer is: after a crash it must not be found."""
        if not self.enabled or not (session.expiry_s or session.logged):
            return
        session.logged = True
        self.ended.pop(session.client_id, None)
        self._event(
            session,
            SessionEvent.OPENED,
            session.client_id,
            new,
            session.version,
            session.expiry_s,
            session.user,
            will_fields(session.will),
            session.life,
            session.number,
            session.opened_wall,
        )

    def closed(self, session: Session) -> None:
        will = will_fields(session.will)
        self._event(session, SessionEvent.CLOSED, session.client_id, session.disconnected_at, session.expiry_s, will)

    def forgotten(self, session: Session) -> None:
        """The session has ended: its snapshot goes with the next checkpoint, its events mean nothing from here on."""
        if session.logged:
            self.changed.pop(session.client_id, None)
            self.ended[session.client_id] = None
            self.came_or_went += 1
            self._note(self._encode((SessionEvent.ENDED, session.client_id)))

    def leaving(self, session: Session) -> None:
        """Another node may own it from here on; or, once that is settled, does not."""
        self._event(session, SessionEvent.LEAVING, session.client_id, session.leaving)

    def moved(self, session: Session, node: str, number: int) -> None:
        """Another node owns it: here it has ended."""
        if self.enabled:
            self.changed.pop(session.client_id, None)
            self.ended[session.client_id] = None
            self.came_or_went += 1
            self._note(self._encode((SessionEvent.MOVED, session.client_id, node, number)))

    def imported(self, session: Session) -> None:
        """It is written down whole: it came from another node, or its messages have changed by more than one event."""
        session.logged = True
        self.ended.pop(session.client_id, None)
        self.came_or_went += 1
        self._event(session, SessionEvent.IMPORTED, session.client_id, stored_session.encode(session))

    def began(self, session: Session) -> None:
        """It may have taken another session's place; or it is known better from where on it hears."""
        if session.expiry_s and session.beginning is not None:
            self._event(session, SessionEvent.BEGAN, session.client_id, session.beginning.state())

    def owner(self, entry: tuple[bytes, str, int, str | None, int, bool]) -> None:
        """Client, the node that owns its session, the number; as which user, since when, and whether that stands."""
        if self.enabled:
            self._note(self._encode((SessionEvent.OWNER, *entry)))

    def subscribed(self, session: Session, subscription: Subscription) -> None:
        self._event(session, SessionEvent.SUBSCRIBED, session.client_id, *subscription_fields(subscription))

    def unsubscribed(self, session: Session, topic_filter: bytes) -> None:
        self._event(session, SessionEvent.UNSUBSCRIBED, session.client_id, topic_filter)

    def assigned(self, session: Session, packet_id: int, offset: int, grant: Grant) -> None:
        self._event(session, SessionEvent.ASSIGNED, session.client_id, packet_id, offset, grant)

    def queued(self, session: Session, offset: int, grant: Grant) -> None:
        """A message waits for the session that replay would not find by itself: it came before the subscription."""
        self._event(session, SessionEvent.QUEUED, session.client_id, offset, grant)

    def taken(self, share: SharedSubscription, offset: int) -> None:
        """A member whose session a crash ends has had a message of a share that a crash does not end."""
        if self.enabled and share.lasting:
            self._note(self._encode((SessionEvent.TAKEN, share.key, offset)))

    def acknowledged(self, session: Session, packet_id: int) -> None:
        if session.expiry_s:
            self._event(session, SessionEvent.ACKNOWLEDGED, session.client_id, packet_id)

    def returned(self, session: Session, packet_id: int) -> None:
        """A message of a shared subscription goes back to the share, for another member."""
        if session.expiry_s:
            self._event(session, SessionEvent.RETURNED, session.client_id, packet_id)

    def received(self, session: Session, packet_id: int) -> None:
        if session.expiry_s:
            self._event(session, SessionEvent.RECEIVED, session.client_id, packet_id)

    def arrived(self, session: Session, packet_id: int) -> None:
        """A QoS 2 publication came in under this identifier."""
        self._event(session, SessionEvent.ARRIVED, session.client_id, packet_id)

    def released(self, session: Session, packet_id: int) -> None:
        self._event(session, SessionEvent.RELEASED, session.client_id, packet_id)
