"""The disk of a simulated machine: what is synced stays, what was being written may be there in part."""

from __future__ import annotations

from random import Random

import pytest

from sterna.journal.journal import Journal
from sterna.journal.recovery import RecoveredMessages, recover
from sterna.journal.settings import JournalSettings
from sterna.journal.store import Group
from sterna.mqtt.message import Message
from sterna.node.node import Changes
from sterna.simulation.disk import Disk, DiskStore
from sterna.vocabulary.errors import JournalError

SETTINGS = JournalSettings(segment_bytes=4096)


def store(seed: int = 1) -> DiskStore:
    return DiskStore(SETTINGS, "node", Random(seed))


def close_group(journal: Journal, payload: bytes) -> Group:
    journal.append(Message(b"t", payload, 1))
    group = journal.close_group()
    assert group is not None
    return group


def kept(disk: DiskStore) -> list[bytes]:
    recovery = recover(disk)
    pieces = [piece for piece in recovery if isinstance(piece, RecoveredMessages)]
    assert not recovery.damage
    return [message.payload for piece in pieces for message in piece.messages]


def write_some(disk: DiskStore, count: int) -> Journal:
    journal = Journal(disk, SETTINGS, epoch=1)
    for number in range(count):
        group = close_group(journal, b"%d" % number)
        journal.committed(group, disk.write(group))
    return journal


@pytest.mark.parametrize("seed", range(30))
def test_a_crash_keeps_what_was_synced_and_a_torn_group_wholly_or_not_at_all(seed: int) -> None:
    disk = store(seed)
    journal = write_some(disk, 10)
    disk.crash(close_group(journal, b"under way"))
    synced = [b"%d" % number for number in range(10)]
    assert kept(disk) in (synced, [*synced, b"under way"])


def test_tearing_leaves_every_kind_of_remains() -> None:
    sizes = set()
    for seed in range(30):
        disk = store(seed)
        journal = write_some(disk, 3)
        before = disk.bytes
        disk.crash(close_group(journal, b"under way"))
        sizes.add(disk.bytes - before)
    assert len(sizes) > 20


def test_a_full_disk_refuses_and_keeps_nothing_of_it() -> None:
    disk = store()
    journal = write_some(disk, 2)
    disk.full = True
    with pytest.raises(JournalError):
        disk.write(close_group(journal, b"refused"))
    disk.crash(None)
    assert kept(disk) == [b"0", b"1"]


def test_after_a_crash_a_new_segment_is_begun() -> None:
    disk = store()
    write_some(disk, 2)
    disk.crash(None)
    write_some(disk, 1)
    assert [segment.serial for segment in disk.segments()] == [1, 2]


def test_rot_is_found_and_reported() -> None:
    disk = store()
    write_some(disk, 50)
    assert disk.rot() is not None
    recovery = recover(disk)
    for _ in recovery:
        pass
    assert recovery.damage or recovery.cuts


def changes(number: int) -> Changes:
    position = Journal(store(), SETTINGS, epoch=1).position._replace(serial=number)
    return Changes(position, 0, {"a": b"%d" % number}, [], {b"t": b"%d" % number}, [])


def test_a_checkpoint_under_way_is_there_wholly_or_not_at_all() -> None:
    found = set()
    for seed in range(20):
        disk = Disk(SETTINGS, "node", Random(seed))
        disk.checkpoints.checkpoint(changes(1))
        disk.crash(None, changes(2))
        saved = disk.checkpoints.load()
        found.add((saved.position.serial, saved.sessions["a"], saved.retained[b"t"]))
    assert found == {(1, b"1", b"1"), (2, b"2", b"2")}


def test_epochs_only_grow_and_need_room() -> None:
    disk = Disk(SETTINGS, "node", Random(1))
    assert disk.checkpoints.next_epoch(0) == 1
    assert disk.checkpoints.next_epoch(5) == 6
    disk.full = True
    with pytest.raises(JournalError):
        disk.checkpoints.next_epoch(0)
