"""Counting packets by arithmetic.

At saturation a Python object per message would measure the generator, not the broker.  All packets of a stream have
known sizes, so strided slices (one C loop each) check the first two bytes of every packet and lift out the packet ids.
A stream that does not line up ends the run: a count that might be wrong is worth nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import unpack_from
from typing import NamedTuple

from sterna.measure.errors import MeasurementError
from sterna.measure.load.packets import ACKNOWLEDGEMENT_BYTES, PUBLISH


class FixedStream:
    """A stream of equal PUBLISH packets, cut anywhere by the kernel."""

    __slots__ = ("_phase", "messages", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.messages = 0
        self._phase = 0

    def take(self, buffer: bytearray, end: int) -> range:
        """Count what `buffer[:end]` adds; return the places of the packets that lie in it whole."""
        size = self.size
        first = -self._phase % size
        _all_equal(buffer[first:end:size], PUBLISH[0], "first byte")
        _all_equal(buffer[first + 1 : end : size], size - 2, "remaining length")
        whole, self._phase = divmod(self._phase + end, size)
        self.messages += whole
        return range(first, end - size + 1, size)


class SequenceSample:
    """Looks into some of the buffers of one subscriber for messages lost, repeated or out of order.

    Each publisher numbers its messages 0, 1, ... `cycle` - 1, 0, ...; of these the subscriber gets every `step`-th.
    """

    def __init__(self, payload_offset: int, cycle: int, step: int) -> None:
        self._payload_offset = payload_offset
        self._cycle = cycle
        self._step = step
        self.checked = 0

    def check(self, buffer: bytearray, places: range) -> None:
        last: dict[int, int] = {}
        for place in places:
            publisher, sequence = unpack_from(">HH", buffer, place + self._payload_offset)
            before = last.get(publisher)
            if before is not None and sequence != (before + self._step) % self._cycle:
                raise MeasurementError(f"publisher {publisher}: message {sequence} came after {before}")
            last[publisher] = sequence
        self.checked += len(places)


class PacketRun(NamedTuple):
    """`packets` packets of equal size with the same first byte, one after the other."""

    header: int
    start: int
    packets: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.packets * self.size

    def column(self, buffer: bytearray, offset: int) -> bytearray:
        """The byte at `offset` of every packet of the run."""
        return buffer[self.start + offset : self.end : self.size]


def runs(buffer: bytearray, end: int, sizes: Mapping[int, int]) -> list[PacketRun]:
    """Split `buffer[:end]`, which starts at a packet, into runs; an incomplete last packet is left out."""
    found: list[PacketRun] = []
    place = 0
    while place < end:
        header = buffer[place]
        size = sizes.get(header)
        if size is None:
            raise MeasurementError(f"unexpected packet with first byte 0x{header:02x}")
        whole = (end - place) // size
        if not whole:
            break
        headers = buffer[place : place + whole * size : size]
        # The leading equal bytes are true packet starts: each was reached from the one before by its own size.
        count = whole - len(headers.lstrip(bytes((header,))))
        run = PacketRun(header, place, count, size)
        _all_equal(run.column(buffer, 1), size - 2, "remaining length")
        found.append(run)
        place = run.end
    return found


def answers(run: PacketRun, buffer: bytearray, packet_id_offset: int, header: int) -> bytearray:
    """Acknowledgements with first byte `header` for every packet of the run, in order."""
    written = bytearray(ACKNOWLEDGEMENT_BYTES * run.packets)
    written[0::4] = bytes((header,)) * run.packets
    written[1::4] = b"\x02" * run.packets
    written[2::4] = run.column(buffer, packet_id_offset)
    written[3::4] = run.column(buffer, packet_id_offset + 1)
    return written


def _all_equal(column: bytearray, value: int, what: str) -> None:
    if column.count(value) != len(column):
        raise MeasurementError(f"the stream does not line up: {what} is not 0x{value:02x} in every packet")
