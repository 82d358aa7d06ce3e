"""Several connections as one stream: whatever order their bytes come in, whoever stops, whatever strangers say."""

from __future__ import annotations

from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipe import KEY, pair

from sterna.overlay.bundle import (
    CHUNK_BYTES_MAX,
    COUNT_MAX,
    PIECE_COST_BYTES,
    PREAMBLE_BYTES,
    BrokenBundle,
    Bundle,
    Preamble,
    may_be_preamble,
)
from sterna.overlay.handshake import HELLO, UNAUTHENTICATED_BYTES_MAX, LinkHandshake, first_message

NAME = bytes(range(16))


class Wire:
    """One connection of a bundle as its owner sees it; what was written waits until it is taken."""

    def __init__(self) -> None:
        self.waiting = b""
        self.backlog = 0
        self.paused = False
        self.ended = ""

    def write(self, data: bytes) -> None:
        assert not self.ended
        self.waiting += data

    def take(self, size: int | None = None) -> bytes:
        data = self.waiting[:size]
        self.waiting = self.waiting[len(data) :]
        return data

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return self.backlog + len(self.waiting)


def bundle(count: int, *, first: int = 0, waiting_bytes_max: int = 1 << 20) -> tuple[Bundle, list[Wire]]:
    made = Bundle(count, first=first, waiting_bytes_max=waiting_bytes_max)
    wires = [Wire() for _ in range(count)]
    for index, wire in enumerate(wires):
        made.join(index, count, wire)
    return made, wires


def chunk(number: int, data: bytes) -> bytes:
    return pack(">IH", number, len(data)) + data


def feed(receiver: Bundle, index: int, data: bytes) -> bytes:
    return receiver.feed(index, data, believed=True)


# -- the stream --


@given(st.data())
def test_any_interleaving_of_the_members_gives_the_stream(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 5), label="count")
    first = data.draw(st.sampled_from([0, (1 << 32) - 3]), label="number of the first chunk")
    limit = data.draw(st.sampled_from([0, 300, 3000, 1 << 20]), label="what may wait")
    sender, wires = bundle(count, first=first)
    receiver, doors = bundle(count, first=first, waiting_bytes_max=limit)
    sizes = st.integers(1, 40) | st.sampled_from([CHUNK_BYTES_MAX, 2 * CHUNK_BYTES_MAX + 1])
    sent = got = b""
    for number, size in enumerate(data.draw(st.lists(sizes, min_size=1, max_size=12), label="writes")):
        written = bytes([number]) * size
        wires[data.draw(st.integers(0, count - 1), label="who gets busier")].backlog += size
        sender.write(written)
        sent += written
    sender.close()
    while True:
        ready = [index for index in range(count) if wires[index].waiting and not doors[index].paused]
        if not ready:
            break
        index = data.draw(st.sampled_from(ready), label="who is read from")
        part = data.draw(st.sampled_from([1, 2, 5]), label="how much of what is there")
        got += feed(receiver, index, wires[index].take(-(-len(wires[index].waiting) // part)))
        assert sent.startswith(got)
    assert got == sent
    assert not any(wire.waiting for wire in wires), "nobody is left paused"


def test_a_chunk_goes_to_whom_has_least_to_do_and_equals_take_turns() -> None:
    sender, wires = bundle(3)
    for wire, backlog in zip(wires, (9, 5, 7), strict=True):
        wire.backlog = backlog
    sender.write(b"x")
    assert [bool(wire.waiting) for wire in wires] == [False, True, False]
    sender, wires = bundle(3)
    turns = []
    for _ in range(6):
        sender.write(b"x")
        turns += [index for index, wire in enumerate(wires) if wire.take()]
    assert turns == [0, 1, 2, 0, 1, 2]


def test_a_large_write_is_spread() -> None:
    sender, wires = bundle(4)
    sender.write(bytes(8 * CHUNK_BYTES_MAX))
    assert {len(wire.waiting) for wire in wires} == {2 * len(chunk(0, bytes(CHUNK_BYTES_MAX)))}


def test_the_beginning_of_the_next_chunk_does_not_wait_for_its_end() -> None:
    receiver, _ = bundle(2)
    assert feed(receiver, 1, chunk(1, b"later")[:8]) == b""
    assert feed(receiver, 0, chunk(0, b"first")[:9]) == b"fir"
    assert feed(receiver, 0, b"st") == b"stla"
    assert feed(receiver, 1, b"ter") == b"ter"


def test_nothing_is_passed_on_before_everybody_is_there() -> None:
    receiver = Bundle(2)
    receiver.join(1, 2, Wire())
    assert receiver.feed(1, chunk(0, b"hello"), believed=False) == b""
    receiver.join(0, 2, Wire())
    assert receiver.feed(0, b"", believed=False) == b"hello"


# -- flow --


def test_those_beyond_a_gap_are_paused_when_too_much_waits_and_read_again_when_it_is_filled() -> None:
    receiver, wires = bundle(3, waiting_bytes_max=1000)
    feed(receiver, 1, chunk(1, bytes(500)))
    assert not any(wire.paused for wire in wires)
    feed(receiver, 2, chunk(2, bytes(500)))
    assert [wire.paused for wire in wires] == [False, True, True]
    assert len(feed(receiver, 0, chunk(0, b"gap"))) == 1003
    assert not any(wire.paused for wire in wires)


def test_a_paused_member_that_may_have_what_is_missing_is_read_from_again() -> None:
    receiver, wires = bundle(3, waiting_bytes_max=1000)
    feed(receiver, 1, chunk(1, b"x"))
    feed(receiver, 2, chunk(3, bytes(2000)))
    assert [wire.paused for wire in wires] == [False, True, True]
    feed(receiver, 0, chunk(0, b"x"))
    assert [wire.paused for wire in wires] == [False, False, True]


def test_small_pieces_count_for_what_they_cost() -> None:
    receiver, wires = bundle(2, waiting_bytes_max=10 * PIECE_COST_BYTES)
    for number in range(1, 11):
        assert not wires[1].paused
        feed(receiver, 1, chunk(number, b"x"))
    assert wires[1].paused


def test_a_channel_that_pauses_pauses_everybody_and_a_gap_outlasts_it() -> None:
    receiver, wires = bundle(2, waiting_bytes_max=1000)
    receiver.pause_reading()
    assert all(wire.paused for wire in wires)
    feed(receiver, 1, chunk(1, bytes(2000)))
    receiver.resume_reading()
    assert [wire.paused for wire in wires] == [False, True]
    feed(receiver, 0, chunk(0, b"x"))
    assert not wires[1].paused


def test_a_bundle_is_congested_when_all_of_it_is() -> None:
    sender, wires = bundle(2)
    assert not sender.congested(0)
    assert sender.congested(1)
    assert sender.writable(0)
    assert not sender.writable(1)
    for wire in wires:
        wire.backlog = 7
    assert sender.get_write_buffer_size() == 14


# -- the end --


def test_one_member_lost_is_all_lost() -> None:
    receiver, wires = bundle(3)
    assert receiver.lost(1)
    receiver.abort()
    assert [wire.ended for wire in wires] == ["aborted", "", "aborted"]


def test_a_bundle_that_is_closed_ends_member_by_member_and_all_of_it_arrives() -> None:
    sender, wires = bundle(2)
    sender.write(b"last words")
    sender.close()
    assert [wire.ended for wire in wires] == ["closed", "closed"]
    receiver, doors = bundle(2)
    feed(receiver, 1, wires[1].take())
    assert not receiver.lost(1)
    receiver.write(b"nobody listens")
    assert not any(door.waiting for door in doors)
    assert feed(receiver, 0, wires[0].take()) == b"last words"
    assert receiver.lost(0)


def test_what_is_closed_writes_reads_and_gathers_no_more() -> None:
    sender, wires = bundle(2)
    sender.abort()
    sender.write(b"x")
    sender.pause_reading()
    assert not any(wire.waiting or wire.paused for wire in wires)
    sender = Bundle(2)
    sender.abort()
    with pytest.raises(BrokenBundle, match="closed"):
        sender.join(0, 2, Wire())
    assert not sender.lost(0)


# -- those who do not keep to it --


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([(0, chunk(0, b"x")), (1, chunk(0, b"x"))], "came before"),
        ([(0, chunk(1, b"x")), (1, chunk(1, b"x"))], "came before"),
        ([(0, chunk(2, b"x")), (0, chunk(1, b"x"))], "came before"),
        ([(0, chunk(1 << 31, b"x"))], "came before"),
        ([(0, chunk(1, b"x")), (1, chunk(2, b"x"))], "left out"),
        ([(0, chunk(0, b"")), (1, chunk(1, b"x"))], "left out"),
        ([(0, chunk(0, b"")), (0, chunk(0, b"x"))], "after the end"),
        ([(0, chunk(0, b"")), (0, chunk(0, b""))], "after the end"),
    ],
)
def test_chunks_that_make_no_stream_break_the_bundle(said: list[tuple[int, bytes]], reason: str) -> None:
    receiver, _ = bundle(2)
    *before, last = said
    for index, data in before:
        feed(receiver, index, data)
    with pytest.raises(BrokenBundle, match=reason):
        feed(receiver, *last)


@pytest.mark.parametrize("size", [1, 50, CHUNK_BYTES_MAX])
def test_who_has_proved_nothing_cannot_make_us_keep_much(size: int) -> None:
    receiver = Bundle(COUNT_MAX)
    for index in range(2):
        receiver.join(index, COUNT_MAX, Wire())
    fed = 0
    with pytest.raises(BrokenBundle, match="proved nothing"):  # noqa: PT012 the bomb has to be fed until it bursts
        for number in range(1, UNAUTHENTICATED_BYTES_MAX):
            receiver.feed(number % 2, chunk(number, bytes(size)), believed=False)
            fed += size + PIECE_COST_BYTES
    assert fed <= UNAUTHENTICATED_BYTES_MAX


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=60)), max_size=20))
def test_whatever_the_bytes_they_are_taken_or_break_the_bundle(said: list[tuple[int, bytes]]) -> None:
    receiver, _ = bundle(3)
    passed = 0
    with suppress(BrokenBundle):
        for index, data in said:
            passed += len(feed(receiver, index, data))
    assert passed <= sum(len(data) for _, data in said)


# -- preambles --


def test_a_preamble_says_which_member_of_which_bundle_it_is() -> None:
    preamble = Preamble(NAME, 3, 4)
    data = preamble.encode()
    assert len(data) == PREAMBLE_BYTES
    assert Preamble.decode(data + b"more") == preamble
    assert all(may_be_preamble(data[:size]) for size in range(1, len(data) + 1))


def test_no_hello_looks_like_a_preamble() -> None:
    _, a, _ = pair()
    hello = LinkHandshake(KEY, is_dialler=True).say(HELLO, a.links.terms())
    assert first_message(hello) is not None
    assert not any(may_be_preamble(hello[:size]) for size in range(1, len(hello)))
    assert not may_be_preamble(b"\x04")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (Preamble(NAME, 4, 4).encode(), "fits into no bundle"),
        (Preamble(NAME, 0, 0).encode(), "fits into no bundle"),
        (Preamble(NAME, 0, COUNT_MAX + 1).encode(), "fits into no bundle"),
        (b"bundle\x02" + NAME + b"\x00\x02", "version 2 of bundles, the other version 1; run the same release"),
    ],
)
def test_a_preamble_that_makes_no_sense_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(BrokenBundle, match=reason):
        Preamble.decode(data)


def test_a_place_is_taken_once_and_all_agree_how_many_there_are() -> None:
    receiver = Bundle(3)
    receiver.join(0, 3, Wire())
    with pytest.raises(BrokenBundle, match="same place"):
        receiver.join(0, 3, Wire())
    with pytest.raises(BrokenBundle, match="disagree"):
        receiver.join(1, 4, Wire())
