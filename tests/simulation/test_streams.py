"""Byte streams between hosts: in order, with back-pressure, and every way they can end."""

from __future__ import annotations

import pytest

from sterna.simulation.kernel import Kernel
from sterna.simulation.network import Path, SimulatedNetwork
from sterna.simulation.streams import End, StreamSettings


class User:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.data = b""
        self.losses = 0
        self.words: list[str] = []

    def received(self, data: bytes) -> None:
        assert not self.losses, "bytes after the end"
        self.data += data

    def lost(self) -> None:
        self.losses += 1

    def congested(self) -> None:
        self.words.append("congested")

    def writable(self) -> None:
        self.words.append("writable")


class Pair:
    """Two hosts and a stream between them."""

    def __init__(self, path: Path | None = None, **settings: float) -> None:
        self.kernel = Kernel(3)
        self.network = SimulatedNetwork(self.kernel, path, StreamSettings(**settings))  # type: ignore[arg-type]
        self.a, self.b = User(), User()
        ends: list[End] = []
        self.network.listen("b:1", ends.append)
        self.network.dial("a", "b:1", self._made)
        self.kernel.run_until(0.1)
        self.b_end = ends[0]
        self.b_end.user = self.b

    def _made(self, end: End | None) -> None:
        assert end is not None
        self.a_end = end
        end.user = self.a

    def run(self, seconds: float = 1.0) -> None:
        self.kernel.run_until(self.kernel.now + seconds)


def test_bytes_arrive_in_order_whatever_each_piece_takes() -> None:
    pair = Pair(Path(jitter_s=0.05), split=0.5)
    sent = [b"%d," % number for number in range(200)]
    for piece in sent:
        pair.a_end.write(piece)
    pair.run(5)
    assert pair.b.data == b"".join(sent)


def test_latency_and_bandwidth_take_their_time() -> None:
    pair = Pair(Path(latency_s=0.1, jitter_s=0.0, bytes_per_s=1000.0), split=0.0)
    pair.kernel.run_until(1.0)
    pair.a_end.write(bytes(500))
    pair.kernel.run_until(1.59)
    assert pair.b.data == b""
    pair.kernel.run_until(1.61)
    assert len(pair.b.data) == 500


def test_a_reader_that_pauses_congests_the_writer_and_relieves_it_later() -> None:
    pair = Pair(window_bytes=1000, buffer_bytes=2000)
    pair.b_end.pause_reading()
    for _ in range(40):
        pair.a_end.write(bytes(100))
    pair.run()
    assert pair.a.words == ["congested"]
    assert pair.a_end.get_write_buffer_size() == 3000
    pair.b_end.resume_reading()
    pair.run()
    assert pair.a.words == ["congested", "writable"]
    assert len(pair.b.data) == 4000
    assert pair.a_end.get_write_buffer_size() == 0


def test_closing_delivers_what_was_written_and_then_the_end() -> None:
    pair = Pair()
    pair.a_end.write(b"last words")
    pair.a_end.close()
    pair.run()
    assert (pair.b.data, pair.a.losses, pair.b.losses) == (b"last words", 1, 1)


def test_aborting_tells_the_other_side() -> None:
    pair = Pair()
    pair.a_end.abort()
    pair.run()
    assert (pair.a.losses, pair.b.losses) == (1, 1)


def test_a_break_loses_what_is_under_way_and_both_hear_of_it() -> None:
    pair = Pair()
    pair.a_end.write(b"lost")
    assert pair.network.sever("a", "b", silently=False) == 1
    pair.run()
    assert (pair.b.data, pair.a.losses, pair.b.losses) == (b"", 1, 1)


def test_a_silent_break_is_noticed_by_who_writes_and_late() -> None:
    pair = Pair(timeout_s=5.0)
    pair.network.sever("a", "b", silently=True)
    pair.a_end.write(b"hello?")
    pair.run(4)
    assert (pair.a.losses, pair.b.losses) == (0, 0)
    pair.run(3)
    assert (pair.a.losses, pair.b.losses) == (1, 0)


def test_a_short_partition_only_delays() -> None:
    pair = Pair(timeout_s=5.0)
    heal = pair.network.partition([["a"], ["b"]])
    pair.a_end.write(b"one ")
    pair.run()
    assert pair.b.data == b""
    heal()
    pair.a_end.write(b"two")
    pair.run()
    assert pair.b.data == b"one two"


def test_a_long_partition_breaks_streams_in_use() -> None:
    pair = Pair(timeout_s=2.0)
    pair.network.partition([["a"], ["b"]])
    pair.a_end.write(b"one ")
    pair.run(5)
    assert (pair.a.losses, pair.b.losses) == (1, 1)


def test_a_cut_works_in_one_direction() -> None:
    pair = Pair()
    pair.network.cut("a", "b")
    pair.a_end.write(b"into the void")
    pair.b_end.write(b"heard")
    pair.run(0.5)
    assert (pair.b.data, pair.a.data) == (b"", b"heard")


def test_a_killed_process_resets_its_streams() -> None:
    pair = Pair()
    pair.network.process_ended("b", power=False)
    pair.run()
    assert (pair.a.losses, pair.b.losses) == (1, 0)


def test_without_power_nobody_is_told_until_the_machine_is_back() -> None:
    pair = Pair(timeout_s=60.0)
    pair.network.process_ended("b", power=True)
    pair.a_end.write(b"hello?")
    pair.run(5)
    assert pair.a.losses == 0
    pair.network.host("b").up = True
    pair.run(2)
    assert pair.a.losses == 1


@pytest.mark.parametrize("reason", ["nobody listens", "no power", "cut"])
def test_dialling_in_vain_ends(reason: str) -> None:
    kernel = Kernel(1)
    network = SimulatedNetwork(kernel)
    network.host("b").up = reason != "no power"
    if reason == "cut":
        network.cut("b", "a")
    answers: list[End | None] = []
    network.dial("a", "b:1", answers.append)
    kernel.run_until(10.0)
    assert answers == [None]


def test_datagrams_are_lost_doubled_and_overtake_each_other() -> None:
    kernel = Kernel(1)
    network = SimulatedNetwork(kernel, Path(loss=0.2, duplication=0.2, jitter_s=0.01))
    got: list[int] = []
    network.open_mailbox("b:1", lambda _, data: got.append(int(data)))
    for number in range(200):
        kernel.at(number / 1000, network.send_datagram, "a:1", "b:1", b"%d" % number)
    kernel.run_until(5.0)
    assert 0 < len(set(got)) < 200, "some are lost"
    assert len(got) > len(set(got)), "some come twice"
    assert got != sorted(got), "some overtake"


def test_discovery_reaches_everybody_else_but_not_through_a_cut() -> None:
    kernel = Kernel(1)
    network = SimulatedNetwork(kernel, Path(loss=0.0, duplication=0.0))
    got: list[str] = []
    for name in ("a", "b", "c"):
        network.open_mailbox(f"{name}:1", lambda sender, _, me=name: got.append(f"{sender}>{me}"))  # type: ignore[misc]
    network.cut("a", "c")
    network.send_to_all("a:1", b"anybody?")
    kernel.run_until(1.0)
    assert got == ["a:1>b"]
