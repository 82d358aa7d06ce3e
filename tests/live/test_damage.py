"""A disk that gives back other bytes than it was given: what can still be read is kept, the rest is told."""

from __future__ import annotations

from collections.abc import Callable

from sterna.journal.frames import HEADER_BYTES, MESSAGES, SEGMENT_HEADER_BYTES, parse_header

from .conftest import Join
from .nodes import LiveNode


def message_frames(segment: bytes) -> list[int]:
    found, start = [], SEGMENT_HEADER_BYTES
    while header := parse_header(segment[start : start + HEADER_BYTES]):
        if header.kind == MESSAGES:
            found.append(start)
        start += HEADER_BYTES + header.length
    return found


def test_a_flipped_bit_in_a_frame_header_costs_that_frame_and_nothing_that_was_acknowledged_after_it(
    start_node: Callable[[str], LiveNode], join: Join
) -> None:
    node = start_node('[admin]\nbind = "127.0.0.1:0"\n')
    reader = join(node, client_id="reader", persistent=True)
    reader.subscribe("a/#", 1)
    reader.close()
    writer = join(node, client_id="writer")
    for number in range(50):
        assert writer.publish("a/b", str(number), 1) == 0
    node.kill()
    [file] = (node.directory / "data").rglob("*.sterna")
    data = bytearray(file.read_bytes())
    frames = message_frames(bytes(data))
    assert len(frames) == 50
    data[frames[10] + 17] ^= 4
    file.write_bytes(data)
    node.restart()
    assert file.read_bytes() == data
    [damage] = node.events("the journal is damaged")
    assert (damage["level"], damage["stop_offset"] - damage["first_offset"]) == ("error", 1)
    assert node.metric("sterna_journal_lost") == 1
    assert node.events("cut a torn tail off the journal") == []
    again = join(node, client_id="reader", persistent=True)
    assert again.session_present
    assert again.payloads(49) == [b"%d" % number for number in range(50) if number != 10]
