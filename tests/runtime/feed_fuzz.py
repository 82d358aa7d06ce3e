"""A process that reads hostile pieces of a feed: mutated Arrow bodies under right checksums, cuts whose lengths lie.

Run by tests in a process of its own, as what goes wrong here may end it: `python feed_fuzz.py SEED MUTATIONS`.
"""

from __future__ import annotations

import random
import struct
import sys
import zlib
from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from sterna.journal.audit_columns import DELIVERY_SCHEMA
from sterna.journal.columns import to_batch
from sterna.journal.filter_set import FilterSet
from sterna.journal.frames import ENDS_GROUP, HEADER_BYTES, STARTS_GROUP, message_frame
from sterna.mqtt.message import Message
from sterna.node.feed_pieces import AS_IT_LIES, CUT, FeedQuestion, table_of, unpack
from sterna.node.feed_records import RECORDS, unpack_records
from sterna.vocabulary.errors import JournalCorrupt
from sterna.vocabulary.identity import Identity

_HEADER = struct.Struct("<IBBHIIQQIII")
_ODD = (0, 1, 7, 8, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)


def messages(rng: random.Random, count: int, *, elsewhere: bool) -> list[Message]:
    made = []
    for number in range(count):
        one = Message(
            b"plant/%d" % (number % 3), rng.randbytes(rng.randrange(40)), qos=1, publisher=b"c",
            received_at=1.7e9 + number, expires_at=1.8e9 if number % 2 else 0.0,
            properties=b"\x26\x00\x01k\x00\x01v" if number % 3 else b"",
        )  # fmt: skip
        if elsewhere and number % 2:
            one.identity = Identity("other", 7, number)
        made.append(one)
    return made


def frames(rng: random.Random) -> list[bytearray]:
    made = []
    for _ in range(rng.choice((1, 1, 3))):
        some = messages(rng, rng.choice((1, 5, 300)), elsewhere=rng.random() < 0.3)
        made.append(bytearray(b"".join(bytes(part) for part in message_frame(some, 5, 1, STARTS_GROUP | ENDS_GROUP))))
    return made


def mutated(rng: random.Random, data: bytearray) -> bytearray:
    for _ in range(rng.choice((0, 1, 1, 2, 8))):
        place = rng.randrange(len(data))
        how = rng.randrange(6)
        if how == 0:
            data[place] ^= 1 << rng.randrange(8)
        elif how == 1:
            data[place] = rng.randrange(256)
        elif how in (2, 3):
            size = rng.choice((2, 4, 8))
            value = (rng.choice(_ODD) & (1 << 8 * size) - 1).to_bytes(size, "little")
            place -= place % size
            data[place : place + size] = value
        elif how == 4:
            del data[place : place + rng.choice((1, 8, 64))]
        else:
            data[place:place] = rng.randbytes(rng.choice((1, 8, 64)))
        if not data:
            data += b"\0"
    return data


def sealed(header: bytes, body: bytes, items: int | None = None) -> bytes:
    """The frame with checksums that hold."""
    words = list(_HEADER.unpack(header))
    words[8], words[9] = len(body), zlib.crc32(body)
    if items is not None:
        words[5] = items
    head = _HEADER.pack(*words[:-1], 0)[:-4]
    return head + zlib.crc32(head).to_bytes(4, "little") + body


def as_it_lies(rng: random.Random) -> bytes:
    made = []
    for frame in frames(rng):
        items = rng.choice(_ODD) & 0xFFFFFFFF if rng.random() < 0.1 else None
        made.append(sealed(bytes(frame[:HEADER_BYTES]), bytes(mutated(rng, frame[HEADER_BYTES:])), items))
    return bytes((AS_IT_LIES,)) + b"".join(made)


def cuts(rng: random.Random) -> bytes:
    body = bytearray(to_batch(messages(rng, 4, elsewhere=False)).serialize().to_pybytes())
    if rng.random() < 0.5:
        body = mutated(rng, body)
    places = array("I", [0, 2, 5, 9]).tobytes()
    sizes = [len(places), len(body)]
    if rng.random() < 0.7:
        sizes[rng.randrange(2)] = rng.choice((*_ODD[:10], -8, 15, 17, 10**6))
    head = msgspec.msgpack.encode((rng.choice((0, 5, 2**62)), 1, rng.random() < 0.1, *sizes))
    return bytes((CUT,)) + struct.pack("<H", len(head)) + head + places + bytes(body)


def records(rng: random.Random) -> bytes:
    rows = pa.RecordBatch.from_pylist([{"client": b"c", "at": 5}] * 4, DELIVERY_SCHEMA)
    body = mutated(rng, bytearray(rows.serialize().to_pybytes()))
    header = _HEADER.pack(0x4E525453, 4, STARTS_GROUP | ENDS_GROUP, 0, 1, 4, 0, 0, 0, 0, 0)
    return bytes((RECORDS,)) + (0).to_bytes(8, "big") + sealed(header, bytes(body))


def read_messages(piece: bytes) -> None:
    for question in (FeedQuestion(0, 1 << 62), FeedQuestion(6, 9, FilterSet([b"plant/1"]), since_us=5)):
        for rows in unpack(memoryview(piece), 8192):
            made = table_of(rows, question, "node")
            if made is not None:
                use(made)


def read_records(piece: bytes) -> None:
    for _, made in unpack_records(memoryview(piece), "deliveries", "node"):
        use(made)


def use(batch: Any) -> None:
    """As Spark does: all of it is copied elsewhere, row by row."""
    batch.take(pa.array(range(batch.num_rows), pa.int64())).serialize()


KINDS: tuple[tuple[Callable[[random.Random], bytes], Callable[[bytes], None]], ...] = (
    (as_it_lies, read_messages),
    (cuts, read_messages),
    (records, read_records),
)


def main(seed: int, mutations: int) -> None:
    rng = random.Random(seed)
    whole = refused = 0
    for number in range(mutations):
        make, read = KINDS[number % 5 % 3]
        try:
            read(make(rng))
            whole += 1
        except JournalCorrupt:
            refused += 1
    assert whole > mutations / 10, "hardly anything gets past the first look: this tries nothing"
    print(whole, "read,", refused, "refused")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
