"""Reports to the operator: events of clients, denied topics, sessions that begin to lose messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from sterna.broker.access.access_control import AccessControl
from sterna.broker.session.connection import Connection
from sterna.mqtt.topics import is_reserved
from sterna.vocabulary.throttle import Throttle, ThrottledKind

#: Bytes of a topic that a report shows.
TOPIC_SHOWN_BYTES: Final = 200


class OperatorReports:
    __slots__ = ("_access", "_denials", "tell")

    def __init__(self, tell: Callable[[str, dict[str, Any]], None], access: AccessControl) -> None:
        #: Report an event with these fields.
        self.tell = tell
        self._access = access
        self._denials = Throttle()

    def report(self, event: str, connection: Connection | None = None, **fields: Any) -> None:
        if connection is not None:
            fields["address"] = connection.peer.address
            if connection.session is not None:
                fields["client"] = connection.session.name()
            elif connection.connect is not None and connection.connect.client_id:
                fields["client"] = connection.connect.client_id.decode()  # who it says it is
        self.tell(event, fields)

    def denied(self, event: str, connection: Connection, topic: bytes, access: Literal["publish", "subscribe"]) -> None:
        """A client may not publish to this topic, or subscribe to this filter.  Each client is reported a few times a
        minute; `denied_more` sums up the rest."""
        session = connection.session
        assert session is not None
        if not self._denials.admits(ThrottledKind(event, session.name())):
            return
        reason = f"topics that begin with {topic[:1].decode()} are the node's own"
        if access == "subscribe" or not is_reserved(topic):
            reason = self._access.rules.explain(session.user, session.name(), topic, access)
        shown = topic[:TOPIC_SHOWN_BYTES].decode("utf-8", "replace")
        self.report(event, connection, user=session.user, topic=shown, reason=reason)

    def denied_more(self, now: float) -> None:
        """Report how many denials were not reported one by one."""
        for kind, count in self._denials.turn_over(now):
            self.tell(kind.event, {"client": kind.who, "more": count, "reason": f"and {count:,} more"})

    def losing(self, who: str, reason: str) -> None:
        self.tell("messages are dropped: too many wait already", {"waiting_for": who, "reason": reason})
