"""Shared subscriptions (section 4.8.2 of MQTT 5): a message goes to one member of the group.

Members take turns, skipping those that cannot take more.  A message that no member can take now waits with the share,
not with a member.  A message that a lost member had not acknowledged at QoS 1 comes back to the front of that queue.
"""

from __future__ import annotations

from collections.abc import Callable

from sterna.broker.counters import Counters
from sterna.broker.limits import Limits
from sterna.broker.session.offset_queue import OffsetQueue
from sterna.broker.session.session import Session
from sterna.broker.session.subscriptions import Grant


class Waiting:
    """Messages that wait in all shares together."""

    __slots__ = ("messages", "shares")

    def __init__(self) -> None:
        self.messages = 0
        self.shares = 0


class SharedQueue(OffsetQueue[None]):
    """One that is counted with the others."""

    __slots__ = ("_waiting",)

    def __init__(self, waiting: Waiting) -> None:
        super().__init__()
        self._waiting = waiting

    def push(self, offset: int, tag: None) -> None:
        super().push(offset, tag)
        self._waiting.messages += 1

    def push_run(self, first: int, count: int, tag: None) -> None:
        super().push_run(first, count, tag)
        self._waiting.messages += count

    def push_block(self, offsets: bytes, codes: bytes, tags: list[None]) -> None:
        super().push_block(offsets, codes, tags)
        self._waiting.messages += len(codes)

    def push_front(self, offset: int, tag: None) -> None:
        super().push_front(offset, tag)
        self._waiting.messages += 1

    def pop(self) -> tuple[int, None]:
        self._waiting.messages -= 1
        return super().pop()

    def remove(self, offset: int) -> None:
        before = len(self)
        super().remove(offset)
        self._waiting.messages -= before - len(self)

    def clear(self) -> None:
        self._waiting.messages -= len(self)
        super().clear()

    def drop_below(self, first_offset: int, unless: Callable[[int], object] = lambda _: False) -> tuple[int, bool]:
        dropped, more = super().drop_below(first_offset, unless)
        self._waiting.messages -= dropped
        return dropped, more


class SharedSubscription:
    __slots__ = ("_turn", "_waiting", "is_losing", "key", "members", "queue")

    def __init__(self, key: bytes, waiting: Waiting) -> None:
        #: `$share/group/filter`
        self.key = key
        #: client id -> member, in order of joining
        self.members: dict[bytes, tuple[Session, Grant]] = {}
        self.queue: OffsetQueue[None] = SharedQueue(waiting)
        #: Its queue has been full, and the operator has been told or is about to be.
        self.is_losing = False
        self._turn = 0
        self._waiting = waiting
        waiting.shares += 1

    def close(self) -> None:
        """The last member has left, and what waited goes with it."""
        self.queue.clear()
        self._waiting.shares -= 1

    def has_room(self, limits: Limits) -> bool:
        """May one more message wait?  Half of what may wait in all shares is for whoever comes first; the other half is
        divided evenly, so that shares nobody empties do not take the place of all others."""
        half = limits.shared_queued // 2
        mine = len(self.queue)
        return mine < limits.queued and (self._waiting.messages < half or mine < half // self._waiting.shares)

    def turn_away(self, counters: Counters) -> None:
        """A message for which there is no room; the operator is told once."""
        counters.dropped("queue-full")
        if not self.is_losing:
            self.is_losing = True
            counters.begins_to_lose(self.key.decode(), "queue-full")

    def join(self, session: Session, grant: Grant) -> None:
        self.members[session.client_id] = (session, grant)

    def leave(self, session: Session) -> None:
        self.members.pop(session.client_id, None)

    @property
    def lasting(self) -> bool:
        """Has it a member whose session outlives a crash?"""
        return any(session.expiry_s for session, _ in self.members.values())

    def lent(self) -> list[int]:
        """Messages sent at QoS 1 to members whose sessions a crash ends, and not acknowledged: a crash must bring them
        back to the share.  (At QoS 2 they belong to the member once sent.)"""
        found: list[int] = []
        for session, _ in self.members.values():
            if session.expiry_s:
                continue
            for entry in session.inflight.values():
                if entry is not None and entry[1].share == self.key and min(entry[0].qos, entry[1].qos) == 1:
                    found.append(entry[0].offset)
        return sorted(found)

    def grant_of(self, session: Session) -> Grant | None:
        member = self.members.get(session.client_id)
        return member[1] if member else None

    def belongs_to_others(self, session: Session, topic: bytes) -> bool:
        """May this member not read the topic, but another one?"""
        if session.permissions.unrestricted or session.permissions.may_receive(topic):
            return False
        return any(member.permissions.may_receive(topic) for member, _ in self.members.values())

    def next_member(self, topic: bytes, *, qos: int) -> tuple[Session, Grant] | None:
        """Whose turn it is, among those who may read the topic and can take a message at this QoS now."""
        members = list(self.members.values())
        for step in range(len(members)):
            index = (self._turn + step) % len(members)
            session, grant = members[index]
            able = session.ready and not session.queue if min(qos, grant.qos) else not session.outbox.congested
            if able and session.permissions.may_receive(topic):
                self._turn = index + 1
                return session, grant
        return None
