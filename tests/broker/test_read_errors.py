"""A message that is in the journal and cannot be read just now stays where it waits."""

from __future__ import annotations

import pytest
from lone_node import LoneNode

from sterna.mqtt.message import Message
from sterna.vocabulary.errors import JournalError


def test_a_disk_that_cannot_be_read_just_now_costs_no_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = LoneNode()
    writer = node.join("writer")
    reader = node.resume("reader")
    reader.subscribe("t", 1)
    reader.leave()
    for number in range(3):
        writer.publish("t", b"%d" % number, qos=1)

    def no_descriptors(_offset: int) -> Message | None:
        raise JournalError("too many open files")

    with monkeypatch.context() as broken:
        broken.setattr(node.broker.journal, "read", no_descriptors)
        assert node.resume("reader").farewell() == 0x88
    assert node.resume("reader").payloads() == [b"0", b"1", b"2"]
    assert node.dropped("retention") == 0
