"""The journal against a plain list: whatever is appended, committed, refused, trimmed and reopened, reads agree."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from journal_making import Replay, content, message

from sterna.journal.journal import BASE_OFFSET_KEY, Journal
from sterna.journal.memory_store import MemoryStore
from sterna.journal.settings import JournalSettings
from sterna.journal.store import BEGINNING, Group, Position
from sterna.mqtt.message import Message

SETTINGS = JournalSettings(segment_bytes=3000, retention_bytes=9000)


class JournalModel(RuleBasedStateMachine):
    @initialize(tail=st.sampled_from([0, 3, 1000]))
    def open(self, tail: int) -> None:
        self.store = MemoryStore(SETTINGS)
        self.tail = tail
        self.epoch = 1
        self.journal = Journal(self.store, SETTINGS, epoch=1, tail_messages=tail)
        #: By offset; None once refused.
        self.model: list[Message | None] = []
        self.durable: dict[int, Message] = {}
        self.written: list[tuple[Position, list[int], list[bytes]]] = []
        self.open_events: list[bytes] = []
        self.writing: list[tuple[Group, list[bytes]]] = []
        self.checkpoint = BEGINNING
        self.first_offset = 0

    @rule(count=st.integers(1, 6), size=st.sampled_from([0, 10, 700]))
    def append(self, count: int, size: int) -> None:
        for _ in range(count):
            one = message(len(self.model), payload=bytes(size))
            assert self.journal.append(one) == len(self.model)
            self.model.append(one)

    @rule(event=st.binary(max_size=20))
    def note(self, event: bytes) -> None:
        self.journal.note(event)
        self.open_events.append(event)

    @rule()
    def close_group(self) -> None:
        group = self.journal.close_group()
        if group is not None:
            self.writing.append((group, self.open_events))
            self.open_events = []

    @precondition(lambda self: self.writing)
    @rule()
    def commit(self) -> None:
        group, events = self.writing.pop(0)
        at = self.store.write(group)
        self.journal.committed(group, at)
        for one in group.messages:
            self.durable[one.offset] = one
        self.written.append((at, [one.offset for one in group.messages], events))

    @precondition(lambda self: self.writing)
    @rule()
    def refuse(self) -> None:
        """The store refuses a group, and with it those that were closed after it."""
        events: list[bytes] = []
        while self.writing:
            group, its_events = self.writing.pop(0)
            self.journal.failed(group)
            events += its_events
            for offset in range(group.base_offset, group.end_offset):
                self.model[offset] = None
        self.open_events[:0] = events

    @rule()
    def take_checkpoint(self) -> None:
        self.checkpoint = self.journal.position

    @rule()
    def trim(self) -> None:
        kept = self.journal.enforce_retention(now=0.0, checkpoint=self.checkpoint)
        assert kept >= self.first_offset
        assert kept <= max(self.checkpoint.offset, self.first_offset)
        self.first_offset = kept

    @rule()
    def crash_and_reopen(self) -> None:
        replay = Replay(self.store, self.checkpoint)
        after = [(offsets, events) for at, offsets, events in self.written if at[:2] >= self.checkpoint[:2]]
        assert replay.offsets == [offset for offsets, _ in after for offset in offsets]
        assert replay.events == [event for _, events in after for event in events]
        assert (replay.recovery.cuts, replay.damage, replay.recovery.since_is_gone) == ([], [], False)
        self.epoch += 1
        self.journal = Journal(
            self.store, SETTINGS, epoch=self.epoch, recovered=replay.recovery, tail_messages=self.tail
        )
        next_offset = max([self.checkpoint.offset, *(offset + 1 for offset in self.durable)])
        assert self.journal.next_offset == next_offset
        self.model = [self.durable.get(offset) for offset in range(next_offset)]
        self.first_offset = self.journal.first_offset
        self.writing, self.open_events = [], []

    @invariant()
    def reads_agree(self) -> None:
        for offset, one in enumerate(self.model):
            expected = one if offset >= self.first_offset else None
            assert content(self.journal.read(offset)) == content(expected)
        assert self.journal.read(len(self.model)) is None

    @invariant()
    def ranges_hold_exactly_what_is_committed(self) -> None:
        found: list[tuple[int, bytes]] = []
        for batch in self.journal.read_range(0, len(self.model)):
            first = int(batch.schema.metadata[BASE_OFFSET_KEY])
            found += zip(range(first, first + batch.num_rows), batch.column("payload").to_pylist(), strict=True)
        kept = [(offset, one.payload) for offset, one in self.durable.items() if offset >= self.first_offset]
        assert found == kept


JournalModel.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestJournalModel = JournalModel.TestCase
