"""Beacons: what is sealed is opened again; whatever else comes is None, and nothing is raised."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.overlay.coordinates import DIMENSIONS, Coordinate
from sterna.overlay.datagrams import (
    DATAGRAM_BYTES_MAX,
    INTRODUCED_MAX,
    Advert,
    Beacon,
    RootIdentity,
    Seal,
    introductions,
)

BEACON = Beacon("b", "b:1", 7, 1, 2.5, Advert(RootIdentity(9.0, "a", 3), 17, 1200, "a"))
KEYED = Seal("home", b"secret")

names = st.text(min_size=1, max_size=30).filter(lambda text: len(text.encode()) <= 128)
numbers = st.integers(0, 2**64 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
adverts = st.builds(
    Advert, st.builds(RootIdentity, finite, names, numbers), numbers, st.integers(0, 2**32 - 1), st.just("") | names
)
distances = st.floats(-9, 9, width=32)
places = st.builds(
    Coordinate, st.tuples(*[distances] * DIMENSIONS), st.floats(0, 9, width=32), st.floats(0, 1.5, width=32)
)
beacons = st.builds(
    Beacon,
    name=names,
    address=st.just("") | names,
    boot=numbers,
    counter=numbers,
    capability=finite,
    advert=adverts,
    ask=st.none() | numbers,
    echo=st.none() | numbers,
    discover=st.booleans(),
    leaving=st.booleans(),
    group=st.booleans(),
    introduced=st.lists(st.just("host:7883"), max_size=20).map(tuple),
    missing=st.just("") | names,
    edition=st.integers(0, 2**16 - 1),
    coordinate=st.none() | places,
)


@given(beacons)
def test_what_is_sealed_is_opened_again(beacon: Beacon) -> None:
    data = KEYED.close(beacon)
    assert len(data) <= DATAGRAM_BYTES_MAX
    assert KEYED.open(data) == beacon


@given(st.binary(max_size=1300))
def test_junk_is_nothing(data: bytes) -> None:
    assert KEYED.open(data) is None
    assert KEYED.open(b"STO\x02" + data) is None


def test_every_flipped_bit_is_noticed() -> None:
    data = KEYED.close(BEACON)
    for position in range(len(data) * 8):
        bad = bytearray(data)
        bad[position // 8] ^= 1 << position % 8
        assert KEYED.open(bytes(bad)) is None
    assert KEYED.other_version is None


def test_every_cut_is_noticed() -> None:
    data = KEYED.close(BEACON)
    assert [KEYED.open(data[:length]) for length in range(len(data))] == [None] * len(data)
    assert KEYED.open(data + b"\0") is None


@pytest.mark.parametrize("other", [Seal("home", b"another"), Seal("elsewhere", b"secret"), Seal("home", b"")])
def test_another_key_or_another_network_is_not_heard(other: Seal) -> None:
    assert other.open(KEYED.close(BEACON)) is None


def test_a_long_key_counts_wholly() -> None:
    assert Seal("home", b"k" * 1000).open(Seal("home", b"k" * 1000).close(BEACON)) == BEACON
    assert Seal("home", b"k" * 1000).open(Seal("home", b"k" * 1001).close(BEACON)) is None


def authentic(seal: Seal, content: bytes) -> bytes:
    """What somebody with the key but another program could send."""
    return content + blake2b(content, key=seal.key, digest_size=16).digest()


def test_an_authentic_datagram_of_another_version_is_noted_and_not_read() -> None:
    seal = Seal("home", b"secret")
    content = b"STO\x01" + seal.close(BEACON)[4:-16]
    assert seal.open(authentic(seal, content)) is None
    assert seal.other_version == 1


@given(st.binary(max_size=300))
def test_authentic_junk_is_nothing_or_a_beacon_and_raises_nothing(body: bytes) -> None:
    opened = KEYED.open(authentic(KEYED, b"STO\x02" + body))
    assert opened is None or KEYED.open(KEYED.close(opened)) == opened


@given(st.integers(0, 200), st.integers(0, 255))
def test_an_authentic_beacon_with_a_wrong_byte_raises_nothing(position: int, value: int) -> None:
    content = bytearray(KEYED.close(replace(BEACON, introduced=("c:1", "d:2")))[:-16])
    content[4 + position % (len(content) - 4)] = value
    opened = KEYED.open(authentic(KEYED, bytes(content)))
    assert opened is None or isinstance(opened, Beacon)


@pytest.mark.parametrize("capability", [float("nan"), float("inf"), float("-inf")])
def test_a_capability_that_is_no_number_is_refused(capability: float) -> None:
    assert KEYED.open(KEYED.close(replace(BEACON, capability=capability))) is None


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e9, -1.0])
def test_a_coordinate_that_makes_no_sense_is_left_out(number: float) -> None:
    opened = KEYED.open(KEYED.close(replace(BEACON, coordinate=Coordinate(height=number))))
    assert opened == BEACON


def test_introductions_come_in_portions_that_fit() -> None:
    addresses = [f"a-host-with-a-long-name-{number}.example:7883" for number in range(256)]
    portions = introductions(BEACON, addresses)
    assert [address for portion in portions for address in portion] == addresses
    for portion in portions:
        assert 0 < len(portion) <= INTRODUCED_MAX
        assert len(KEYED.close(replace(BEACON, introduced=portion))) <= DATAGRAM_BYTES_MAX
    assert introductions(BEACON, []) == []
