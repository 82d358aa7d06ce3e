"""A journal on a store, driven the way the world drives it; and messages to put in."""

from __future__ import annotations

from typing import Any

from sterna.journal.journal import Journal
from sterna.journal.memory_store import MemoryStore
from sterna.journal.recovery import Damage, RecoveredEvents, RecoveredMessages, Recovery, recover
from sterna.journal.settings import JournalSettings
from sterna.journal.store import BEGINNING, Group, Position, Store
from sterna.mqtt.message import Message

SETTINGS = JournalSettings()

#: By name, because a compiled class does not tell its slots.
_CONTENT = (
    "topic",
    "payload",
    "qos",
    "retain",
    "properties",
    "expires_at",
    "publisher",
    "received_at",
    "offset",
    "identity",
    "shares",
)


def message(number: int, payload: bytes | None = None) -> Message:
    return Message(
        topic=b"plant/%d" % (number % 3),
        payload=b"payload %d" % number if payload is None else payload,
        qos=1 + number % 2,
        retain=number % 5 == 0,
        properties=b"\x01\x01" if number % 2 else b"",
        expires_at=1_800_000_000.25 if number % 4 == 0 else 0.0,
        publisher=b"client-%d" % number,
        received_at=1_700_000_000.5 + number,
    )


def content(one: Message | None) -> tuple[Any, ...] | None:
    """All a message says, for comparing."""
    return None if one is None else tuple(getattr(one, name) for name in _CONTENT)


def commit(journal: Journal, store: Store) -> Group:
    group = journal.close_group()
    assert group is not None
    journal.committed(group, store.write(group))
    return group


def filled(groups: int, per_group: int = 3, settings: JournalSettings = SETTINGS) -> tuple[Journal, MemoryStore]:
    """A journal of committed groups, each of `per_group` messages and one event."""
    store = MemoryStore(settings, "node-1")
    journal = Journal(store, settings, epoch=1)
    for _ in range(groups):
        for _ in range(per_group):
            journal.append(message(journal.next_offset))
        journal.note(b"event before %d" % journal.next_offset)
        commit(journal, store)
    return journal, store


class Replay:
    """A finished recovery and what it replayed."""

    def __init__(self, store: Store, since: Position = BEGINNING) -> None:
        self.recovery: Recovery = recover(store, since)
        self.frames: list[RecoveredMessages | RecoveredEvents] = list(self.recovery)

    @property
    def offsets(self) -> list[int]:
        return [one.offset for frame in self.frames if isinstance(frame, RecoveredMessages) for one in frame.messages]

    @property
    def events(self) -> list[bytes]:
        return [event for frame in self.frames if isinstance(frame, RecoveredEvents) for event in frame.events]

    @property
    def damage(self) -> list[Damage]:
        return self.recovery.damage
