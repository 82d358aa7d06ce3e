"""Shared subscriptions (section 4.8.2 of MQTT 5): a message goes to one member of the group.

Members take turns, skipping those that cannot take more.  What nobody can take now waits with the share, not with a
member, and what a lost member had not acknowledged at QoS 1 comes back to the front of that queue.
"""

from __future__ import annotations

from sterna.broker.queue import OffsetQueue
from sterna.broker.session import Session
from sterna.broker.subscriptions import Grant


class Share:
    __slots__ = ("_turn", "key", "members", "queue")

    def __init__(self, key: bytes) -> None:
        #: `$share/group/filter`
        self.key = key
        #: client id -> member, in order of joining
        self.members: dict[bytes, tuple[Session, Grant]] = {}
        self.queue: OffsetQueue[None] = OffsetQueue()
        self._turn = 0

    def join(self, session: Session, grant: Grant) -> None:
        self.members[session.client_id] = (session, grant)

    def leave(self, session: Session) -> None:
        self.members.pop(session.client_id, None)

    @property
    def lasting(self) -> bool:
        """Has it a member whose session outlives a crash?"""
        return any(session.expiry_s for session, _ in self.members.values())

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
