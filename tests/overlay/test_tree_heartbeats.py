"""Heartbeats: what is sealed is opened by the one it was meant for, once, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from datagram_world import DEFAULTS, DatagramWorld, Host, Weather
from hypothesis import given
from hypothesis import strategies as st
from tree_shape import settled_after, shortcomings, views_of

from sterna.overlay.heartbeats import (
    HEARTBEAT_BYTES,
    HOLD_S_MAX,
    Acquaintance,
    Heartbeat,
    close_heartbeat,
    open_heartbeat,
    sender_of,
)

KEY = b"k" * 64
OURS, THEIRS = 0x1122334455667788, 0x99AABBCCDDEEFF00
BEAT = Heartbeat(70_000, 3, 65_530, 1_200, ask=True, echo=17, hold_s=0.25)
KNOWN = Acquaintance(OURS, THEIRS, 69_990, 65_500)

beats = st.builds(
    Heartbeat,
    counter=st.integers(0, 2**63),
    edition=st.integers(0, 2**16 - 1),
    round=st.integers(0, 2**63),
    cost_us=st.integers(0, 2**32 - 1),
    ask=st.booleans(),
    echo=st.none() | st.integers(0, 2**16 - 1),
    hold_s=st.floats(0, 3.0),
)


@given(beats, st.integers(-1000, 1000), st.integers(-1000, 1000))
def test_what_is_sealed_is_opened_by_those_who_know_about_where_it_stands(beat: Heartbeat, late: int, off: int) -> None:
    data = close_heartbeat(KEY, beat, OURS, THEIRS)
    known = Acquaintance(OURS, THEIRS, max(-1, beat.counter + late), max(0, beat.round + off))
    opened = open_heartbeat(KEY, data, known)
    assert opened is not None
    assert opened.hold_s == pytest.approx(beat.hold_s, abs=0.0001)
    assert replace(opened, hold_s=beat.hold_s) == beat


def test_a_long_hold_is_told_as_the_longest() -> None:
    opened = open_heartbeat(KEY, close_heartbeat(KEY, replace(BEAT, hold_s=60.0), OURS, THEIRS), KNOWN)
    assert opened is not None
    assert opened.hold_s == pytest.approx(HOLD_S_MAX)


@pytest.mark.parametrize(
    "known",
    [
        replace(KNOWN, receiver_boot=THEIRS + 1),
        replace(KNOWN, sender_boot=OURS + (1 << 32)),
        replace(KNOWN, sender_boot=OURS + 1),
        replace(KNOWN, counter=KNOWN.counter + (1 << 33)),
        replace(KNOWN, round=KNOWN.round + (1 << 17)),
    ],
    ids=["another start of the receiver", "of the sender", "another sender", "counters apart", "rounds apart"],
)
def test_it_is_bound_to_both_starts_and_to_the_full_numbers(known: Acquaintance) -> None:
    assert open_heartbeat(KEY, close_heartbeat(KEY, BEAT, OURS, THEIRS), KNOWN) == BEAT
    assert open_heartbeat(KEY, close_heartbeat(KEY, BEAT, OURS, THEIRS), known) is None


def test_every_flipped_bit_every_cut_and_another_key_are_noticed() -> None:
    data = close_heartbeat(KEY, BEAT, OURS, THEIRS)
    for position in range(len(data) * 8):
        bad = bytearray(data)
        bad[position // 8] ^= 1 << position % 8
        assert open_heartbeat(KEY, bytes(bad), KNOWN) is None
    assert all(open_heartbeat(KEY, data[:size], KNOWN) is None for size in range(len(data)))
    assert open_heartbeat(b"another" * 4, data, KNOWN) is None


@given(st.binary(max_size=100))
def test_junk_is_nothing(data: bytes) -> None:
    sender_of(data)
    assert open_heartbeat(KEY, data, KNOWN) is None
    assert open_heartbeat(KEY, (b"h" + data)[:HEARTBEAT_BYTES], KNOWN) is None


class Tapped(DatagramWorld):
    """A network in which heartbeats are written down."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, weather=Weather())
        self.beats: list[tuple[str, str, bytes]] = []

    def carry(self, source: Host, address: str, data: bytes) -> None:
        if sender_of(data) is not None:
            self.beats.append((source.name, address.removesuffix(":7883"), data))
        super().carry(source, address, data)


def steady_pair() -> Tapped:
    net = Tapped(1)
    net.latency = {("a", "b"): 0.010}
    net.boot("a", 2)
    net.boot("b", 1)
    settled_after(net, 5.0)
    return net


def datagrams(host: Host) -> dict[str, int]:
    told = host.overlay.view()["datagrams"]
    assert isinstance(told, dict)
    return told


def test_recorded_heartbeats_are_counted_and_change_nothing() -> None:
    net = steady_pair()
    recorded = [(sender, data) for sender, target, data in net.beats if target == "a"]
    net.run(0.1)  # the last one may be on its way
    before = datagrams(net.hosts["a"])
    for sender, data in recorded:
        net.hosts["a"].overlay.datagram(f"{sender}:7883", data)
    after = datagrams(net.hosts["a"])
    assert after["repeated"] - before["repeated"] == len(recorded) > 5
    assert after["sent"] == before["sent"]


def test_heartbeats_to_an_earlier_start_mean_nothing_to_the_present_one() -> None:
    net = steady_pair()
    recorded = [data for _, target, data in net.beats if target == "a"]
    net.kill("a")
    net.boot("a", 2)
    settled_after(net, 5.0)
    before = datagrams(net.hosts["a"])
    for data in recorded:
        net.hosts["a"].overlay.datagram("b:7883", data)
    assert datagrams(net.hosts["a"])["refused"] - before["refused"] == len(recorded)


def test_both_sides_measure_though_only_one_asks() -> None:
    net = steady_pair()
    net.latency = {("a", "b"): 0.030}
    net.run(20 * DEFAULTS.ping_s)
    for name, peer in (("a", "b"), ("b", "a")):
        peers = net.hosts[name].overlay.view()["peers"]
        assert isinstance(peers, dict)
        assert peers[peer]["round_trip_ms"] == pytest.approx(63, abs=5)


def test_a_beacon_that_was_lost_is_asked_for() -> None:
    """The word of a new parent never comes; the next heartbeat shows that it is missing."""
    net = DatagramWorld(1, weather=Weather())
    net.latency = {("a", "b"): 0.005, ("a", "c"): 0.005, ("b", "c"): 0.005}
    for name, capability in (("a", 3), ("b", 2), ("c", 1)):
        net.boot(name, capability)
    settled_after(net, 4.0)
    assert views_of(net)["c"]["parent"] == "a"
    c = net.hosts["c"]
    carry = c.send_datagram
    c.send_datagram = lambda address, data: carry(address, data) if sender_of(data) else None  # type: ignore[method-assign]
    net.latency["a", "c"] = 0.1
    net.run(3.0)
    c.send_datagram = carry  # type: ignore[method-assign]
    net.run(3.0)
    assert views_of(net)["c"]["parent"] == "b"
    assert shortcomings(net) == []
    assert views_of(net)["b"]["children"] == ["c"]
