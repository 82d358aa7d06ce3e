"""Replay puts a message into a queue once, by whichever of message and note it hears of it first."""

from __future__ import annotations

from typing import Any

import msgspec

from sterna.broker.access.authorization import AccessList
from sterna.broker.broker_state import BrokerState
from sterna.broker.limits import Limits
from sterna.broker.recovery import Replay
from sterna.broker.session.session_log import SessionEvent
from sterna.broker.session.subscriptions import Grant
from sterna.mqtt.message import Message


def test_a_note_about_a_message_that_waits_already_does_not_queue_it_again() -> None:
    state = BrokerState(Limits())
    replay = Replay(state, AccessList([], "allow"))

    def note(kind: SessionEvent, *fields: Any) -> None:
        replay.events([msgspec.msgpack.encode((kind, b"reader", *fields))])

    note(SessionEvent.OPENED, True, 5, 3600, None, None)
    note(SessionEvent.SUBSCRIBED, b"t/#", 2, False, False, 0)
    note(SessionEvent.QUEUED, 1, Grant(2))
    replay.messages([Message(b"t/a", b"x", 2, offset=5)])
    note(SessionEvent.QUEUED, 5, Grant(2))
    assert [offset for offset, _ in state.sessions[b"reader"].queue] == [1, 5]
