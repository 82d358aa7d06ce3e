"""A message that is in the journal and cannot be read just now stays where it waits."""

from __future__ import annotations

import errno

from broker.lone_node import LoneNode
from sterna.journal.memory_store import MemoryStore
from sterna.journal.settings import JournalSettings
from sterna.vocabulary.errors import JournalError


class Disk(MemoryStore):
    lacks_descriptors = False

    def read(self, serial: int, start: int, length: int) -> bytes:
        if self.lacks_descriptors:
            raise JournalError("too many open files") from OSError(errno.EMFILE, "too many open files")
        return super().read(serial, start, length)


def test_a_disk_that_cannot_be_read_just_now_costs_no_message() -> None:
    disk = Disk(JournalSettings(durability="os"))
    node = LoneNode(store=disk)
    writer = node.join("writer")
    reader = node.resume("reader")
    reader.subscribe("t", 1)
    reader.leave()
    for number in range(3):
        writer.publish("t", b"%d" % number, qos=1)
    node = LoneNode(store=disk)  # what came before its start it has to read from the disk
    disk.lacks_descriptors = True
    assert node.resume("reader").farewell() == 0x88
    disk.lacks_descriptors = False
    assert node.resume("reader").payloads() == [b"0", b"1", b"2"]
    assert node.dropped("retention") == 0
