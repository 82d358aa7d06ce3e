"""What comes out of a stream of batches is what went in, however it is cut; whatever else comes in breaks it."""

from __future__ import annotations

import zlib
from random import Random

import pytest

from sterna.overlay import batches
from sterna.overlay.batches import (
    DEFLATE_BYTES_MAX,
    DEFLATED,
    FRAME_HEAD_BYTES,
    MAC_BYTES,
    BrokenBatch,
    Opener,
    Sealer,
    Unfolder,
    frame_head,
    read_head,
)

KEY = b"k" * 32
LIMIT = 10_000
Seen = tuple[int, list[tuple[int, bytes]], bytes]


def framed(body: bytes, kind: int = 1) -> bytes:
    return frame_head(kind, len(body)) + body


def opened(data: bytes, piece: int = 0, limit: int = LIMIT) -> list[Seen]:
    opener = Opener(KEY, limit)
    seen: list[Seen] = []
    for at in range(0, len(data), piece or len(data)):
        opener.feed(data[at : at + (piece or len(data))])
        while (batch := opener.next()) is not None:
            seen.append((batch.ack, batch.frames, batch.farewell))
    return seen


def conversation() -> tuple[list[bytes], list[Seen]]:
    """Batches small and large, alike and random, bare acknowledgements and a farewell; as sealed, as to be opened."""
    sealer, dice = Sealer(KEY), Random(1)
    sizes = [0, 1, 200, DEFLATE_BYTES_MAX - FRAME_HEAD_BYTES, DEFLATE_BYTES_MAX - FRAME_HEAD_BYTES + 1, 3000]
    bodies = [body for size in sizes for body in (b"x" * size, dice.randbytes(size))]
    sealed, seen, ack = [], [], 0
    for body in bodies:
        ack += dice.choice([0, 1, 127, 128, 70_000])
        sealed += [sealer.seal(ack, framed(body))[0], sealer.seal(ack + 1, b"")[0]]
        seen += [(ack, [(1, body)], b""), (ack + 1, [], b"")]
        ack += 1
    sealed.append(sealer.seal(ack, b"goodbye", farewell=True)[0])
    return sealed, [*seen, (ack, [], b"goodbye")]


@pytest.mark.parametrize("piece", [0, 1, 2, 7, 1000])
def test_a_stream_is_read_alike_however_it_is_cut(piece: int) -> None:
    sealed, seen = conversation()
    assert opened(b"".join(sealed), piece) == seen


def test_the_head_is_what_goes_before_the_payload() -> None:
    sealer = Sealer(KEY)
    for ack, payload in [(0, b""), (1, framed(b"x")), (300, framed(b"x" * 3000))]:
        data, head = sealer.seal(ack, payload)
        found = read_head(data, 0)
        assert found is not None
        assert head == found[3] + MAC_BYTES == len(data) - found[0]


def test_an_acknowledgement_may_pass_what_32_bits_hold() -> None:
    sealer = Sealer(KEY)
    acks = [2**32 - 1, 2**32 - 1, 2**32, 2**33 + 5]
    data = b"".join(sealer.seal(ack, b"")[0] for ack in acks)
    assert [ack for ack, _, _ in opened(data)] == [ack % 2**32 for ack in acks]


def test_no_flipped_bit_is_ever_taken_for_a_batch() -> None:
    sealer = Sealer(KEY)
    payloads = [framed(b"one"), b"", framed(b"one" * 20), framed(Random(2).randbytes(30)), framed(b"four")]
    data = b"".join(sealer.seal(200 * place, payload)[0] for place, payload in enumerate(payloads))
    whole = opened(data)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        opener, seen = Opener(KEY, LIMIT), 0
        opener.feed(bytes(changed))
        try:
            while (batch := opener.next()) is not None:
                assert (batch.ack, batch.frames, batch.farewell) == whole[seen]
                seen += 1
        except BrokenBatch:
            pass
        assert seen < len(whole)


def test_a_batch_dropped_repeated_or_moved_breaks_the_stream() -> None:
    sealed, _ = conversation()
    for changed in (sealed[1:], [sealed[0], *sealed], [sealed[1], sealed[0], *sealed[2:]]):
        with pytest.raises(BrokenBatch, match="wrong MAC"):
            opened(b"".join(changed))


def test_what_inflates_to_the_limit_is_taken_and_a_byte_more_is_not() -> None:
    for size in (300, 1000, DEFLATE_BYTES_MAX):
        for payload in (framed(b"x" * (size - FRAME_HEAD_BYTES)), framed(Random(3).randbytes(size - FRAME_HEAD_BYTES))):
            data = Sealer(KEY).seal(0, payload)[0]
            room = size + 10  # what cannot be deflated grows a little
            assert opened(data, limit=room) == [(0, [(1, payload[FRAME_HEAD_BYTES:])], b"")]
            found = read_head(data, 0)
            assert found is not None
            assert found[1] == DEFLATED
            deflated = data[-found[0] :]
            assert Unfolder(size).inflate(deflated) == payload
            with pytest.raises(BrokenBatch, match=f"inflates to more than {size - 1} bytes"):
                Unfolder(size - 1).inflate(deflated)


def test_a_few_bytes_that_would_fill_the_memory_are_refused() -> None:
    stream = zlib.compressobj(9, zlib.DEFLATED, -batches.WINDOW_BITS)
    bomb = stream.compress(bytes(10_000_000)) + stream.flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(BrokenBatch, match="inflates to more than 10000 bytes"):
        Unfolder(LIMIT).inflate(bomb)


def test_a_deflated_batch_must_hold_something_and_go_on() -> None:
    stream = zlib.compressobj(9, zlib.DEFLATED, -batches.WINDOW_BITS)
    for data in (b"", stream.compress(framed(b"the end")) + stream.flush(zlib.Z_FINISH)):
        with pytest.raises(BrokenBatch, match="ends its stream"):
            Unfolder(LIMIT).inflate(data)
    with pytest.raises(BrokenBatch, match="cannot be inflated"):
        Unfolder(LIMIT).inflate(b"\xff" * 20)


def test_a_number_without_an_end_is_refused() -> None:
    for data in (b"\xff" * 5, b"\x00" + b"\x80" * 5):
        assert opened(data[:-1]) == []
        with pytest.raises(BrokenBatch, match="a number without an end"):
            opened(data)


def test_without_compression_nothing_is_deflated() -> None:
    payload = b"the same over and over " * 10
    plain = Sealer(KEY, compress=False).seal(0, payload)[0]
    assert payload in plain
    assert len(Sealer(KEY).seal(0, payload)[0]) < len(payload) < len(plain)
