"""Signs of life, acknowledgements, back-pressure and what is counted."""

from __future__ import annotations

from random import Random

import pytest
from pipe import Pipe, Side, World, linked, pair, settings

from sterna.overlay.batches import DEFLATE_BYTES_MAX, FRAME_HEAD_BYTES, HEAD_BYTES, MAC_BYTES

SMALL = {"resend_bytes": 4000, "frame_bytes": 1000, "batch_bytes": 500, "ack_bytes": 500}


def noted(pipe: Pipe, *, near: bool = True) -> list[int]:
    """Sizes of what is written from now on, by the dialler's end or the other."""
    writes: list[int] = []

    def note(at: int, data: bytes) -> bytes:
        writes.append(len(data))
        return data

    (pipe.near if near else pipe.far).tamper = note
    return writes


def test_a_quiet_link_says_an_empty_batch_each_keep_alive() -> None:
    world, a, b, pipe = linked()
    before = len(pipe.near.written)
    world.run(10)
    assert len(pipe.near.written) - before == 10 * HEAD_BYTES
    assert a.link("b").connected
    assert b.got[b.link("a").session_id] == []


def test_a_link_that_sends_needs_no_keep_alive() -> None:
    world, a, b, pipe = linked()
    writes = noted(pipe)
    for _ in range(20):
        a.link("b").send(1, b"x")
        world.run(0.5)
    assert len(writes) == len(b.got[b.link("a").session_id]) == 20


def test_a_silent_connection_is_dropped_and_then_the_session_ends() -> None:
    world, a, b, pipe = linked()
    pipe.silent = True
    world.run(2.9)
    assert a.link("b").connected
    world.run(1.1)
    assert pipe.dialled.is_closed
    assert not a.link("b").connected
    assert a.reported("link lost") == ["nothing was heard for 3 s"]
    world.run(2)
    assert a.reasons == b.reasons == ["no connection for 2 s"]


def test_a_batch_that_never_ends_is_no_sign_of_life() -> None:
    """A length that was tampered with must not make us wait as long as keep-alives trickle in."""
    world, _, b, pipe = linked()
    pipe.accepted.feed(b"\x80\x80\x80\x04\x00")  # 2 MiB
    world.run(3.5)
    assert pipe.accepted.is_closed
    assert b.reported("link lost") == ["nothing was heard for 3 s"]


def test_a_large_frame_over_a_slow_line_is_a_sign_of_life() -> None:
    world = World()
    a, b = Side(world, settings("a")), Side(world, settings("b"))
    pipe = Pipe(a, b)
    world.run(0.1)
    a.link("b").send(1, b"x" * 100_000)
    pipe.near.stalled = True
    world.flush()
    held, pipe.near.held = pipe.near.held, b""
    for at in range(0, len(held), 4096):
        pipe.accepted.feed(held[at : at + 4096])
        world.run(0.9)
    assert pipe.accepted.is_open
    assert b.got[b.link("a").session_id] == [(1, b"x" * 100_000)]


def test_acknowledgements_ride_on_batches() -> None:
    world, a, b, pipe = linked()
    a.link("b").send(1, b"x")
    world.run(0.02)
    writes = noted(pipe, near=False)
    assert a.link("b").unacknowledged_bytes == FRAME_HEAD_BYTES + 1
    b.link("a").send(2, b"y")
    world.run(0.02)
    assert a.link("b").unacknowledged_bytes == 0
    assert len(writes) == len(a.got[a.link("b").session_id]) == 1


def test_much_is_acknowledged_at_once() -> None:
    world, a, _, _ = linked()
    for _ in range(300):
        a.link("b").send(1, b"x" * 1000)
    world.run(0.05)
    assert a.link("b").unacknowledged_bytes < 100_000


def test_a_turn_leaves_as_one_batch_and_one_write() -> None:
    world, a, b, pipe = linked()
    writes = noted(pipe)
    for number in range(100):
        a.link("b").send(number, b"1234567890" * 3)
    world.run(0.1)
    payload = 100 * (FRAME_HEAD_BYTES + 30)
    assert payload > DEFLATE_BYTES_MAX
    assert writes == [HEAD_BYTES + 1 + payload], "a length of two bytes"
    assert len(b.got[b.link("a").session_id]) == 100


def test_small_batches_that_are_alike_cost_little_after_the_first() -> None:
    world, a, b, pipe = linked()
    writes = noted(pipe)
    body = Random(1).randbytes(100)
    for _ in range(10):
        a.link("b").send(1, body)
        world.run(0.01)
    assert writes[0] >= HEAD_BYTES + FRAME_HEAD_BYTES + 100
    assert max(writes[1:]) <= HEAD_BYTES + 10
    assert b.got[b.link("a").session_id] == [(1, body)] * 10


def test_a_congested_link_says_so_at_half_and_is_relieved_when_there_is_room() -> None:
    world, a, b, pipe = linked(**SMALL)
    link = a.link("b")
    pipe.near.stall()
    for _ in range(2):
        link.send(1, b"x" * 900)
    world.run(0.01)
    assert not link.congested
    link.send(1, b"x" * 900)
    assert link.congested
    link.send(1, b"taken all the same")
    world.run(0.5)
    assert a.relieved == 0
    pipe.near.unstall()
    world.run(0.1)
    assert a.relieved == 1
    assert not link.congested
    assert [len(body) for _, body in b.got[link.session_id]] == [900, 900, 900, 18]
    assert a.told == [("started", link.session_id)]


@pytest.mark.parametrize("connected", [True, False])
def test_a_link_that_is_full_gives_its_session_up_and_starts_afresh(connected: bool) -> None:
    world, a, b, pipe = linked(**SMALL)
    link = a.link("b")
    if connected:
        pipe.near.stall()
    else:
        pipe.cut()
    for _ in range(6):
        link.send(1, b"x" * 900)
    assert link.unacknowledged_bytes == 0
    assert link.given_up is not None
    world.run(0.1)
    assert a.told == [("started", link.session_id), ("ended", link.session_id)]
    assert a.reasons == ["4515 bytes were not acknowledged in time"]
    Pipe(a, b)
    world.run(0.1)
    assert a.link("b").session_id == b.link("a").session_id != link.session_id
    assert b.told == [*a.told[:2], ("started", a.link("b").session_id)]
    assert not a.link("b").congested


def test_what_waits_for_a_slow_transport_is_kept_once() -> None:
    world, a, b, pipe = linked(**SMALL)
    pipe.near.stall()
    for number in range(3):
        a.link("b").send(number, b"x" * 900)
        world.run(0.01)
    assert pipe.near.held == b"", "a transport that is full is given no more"
    pipe.near.unstall()
    world.run(0.1)
    assert [kind for kind, _ in b.got[b.link("a").session_id]] == [0, 1, 2]


def test_a_stalled_peer_does_not_hold_up_another() -> None:
    world, a, b, pipe = linked(**SMALL)
    c = Side(world, settings("c", **SMALL))
    Pipe(a, c)
    world.run(0.1)
    pipe.near.stall()
    for number in range(50):
        if not a.link("b").congested:
            a.link("b").send(1, b"x" * 900)
        a.link("c").send(number, b"x" * 900)
        world.run(0.05)
    assert len(c.got[c.link("a").session_id]) == 50
    assert b.got[b.link("a").session_id] == []
    assert a.link("b").unacknowledged_bytes <= 4000


def test_the_smaller_frame_limit_of_both_holds() -> None:
    world = World()
    a, b = Side(world, settings("a", frame_bytes=5000)), Side(world, settings("b", frame_bytes=3000))
    Pipe(a, b)
    world.run(0.1)
    assert a.link("b").frame_bytes == b.link("a").frame_bytes == 3000
    session = a.link("b").session_id
    a.link("b").send(1, b"x" * 3000)
    world.run(0.1)
    a.link("b").send(1, b"x" * 3001)
    world.run(0.1)
    assert len(b.got[session]) == 1
    assert a.reasons == ["a frame of 3001 bytes; 3000 is the most both sides take"]


def test_a_batch_beyond_the_limit_is_refused_by_its_length_alone() -> None:
    _, _, b, pipe = linked()
    pipe.accepted.feed(b"\xfc\xff\xff\xff\x1f" + b"x" * 24)
    assert pipe.accepted.is_closed
    assert b.reported("link broken") == [f"a batch of {2**31 - 1} bytes; {3 * 1024 * 1024 + 7} is the most"]


def test_the_largest_batch_anybody_may_make_is_taken() -> None:
    world, a, b, pipe = linked(batch_bytes=1024 * 1024)
    writes = noted(pipe)
    first, second = b"x" * (1024 * 1024 - 1 - 7), b"y" * (2 * 1024 * 1024)
    a.link("b").send(1, first)
    a.link("b").send(2, second)
    world.run(0.1)
    assert writes == [4 + 1 + MAC_BYTES + 3 * 1024 * 1024 - 1 + 7]
    assert b.got[b.link("a").session_id] == [(1, first), (2, second)]


def test_counters_add_up_over_connections_and_sessions() -> None:
    world, a, b = pair()
    pipes = [Pipe(a, b)]
    world.run(0.1)
    for _ in range(3):
        a.link("b").send(1, b"x" * DEFLATE_BYTES_MAX)
    world.run(1.5)
    pipes[-1].cut()
    pipes.append(Pipe(b, a))
    world.run(0.1)
    a.links.close("b", "enough")
    world.run(0.1)
    pipes.append(Pipe(a, b))
    world.run(0.1)
    ends = [(pipes[0].near, pipes[0].far), (pipes[1].far, pipes[1].near), (pipes[2].near, pipes[2].far)]
    counters = a.links.counters["b"]
    assert counters.bytes_sent == sum(len(near.written) for near, _ in ends)
    assert counters.bytes_received == sum(len(far.written) for _, far in ends)
    assert (counters.messages, counters.sessions, counters.resumptions, counters.resends) == (3, 2, 1, 0)
    assert counters.bytes_sent - counters.control_bytes == 3 * (FRAME_HEAD_BYTES + DEFLATE_BYTES_MAX)


@pytest.mark.parametrize("body", [b"alike" * 60, b"alike" * 6000], ids=["deflated", "as it is"])
def test_control_counts_as_what_it_took_on_the_way(body: bytes) -> None:
    world, a, _, pipe = linked()
    link = a.link("b")
    before = len(pipe.near.written)
    assert link.counters.control_bytes == link.counters.bytes_sent == before
    link.note_control(FRAME_HEAD_BYTES + len(body))
    link.send(1, body)
    world.run(0.1)
    assert link.counters.control_bytes == link.counters.bytes_sent == len(pipe.near.written) > before
    link.note_control(FRAME_HEAD_BYTES + len(body))
    link.send(1, body)
    link.send(2, body)
    control, sent = link.counters.control_bytes, link.counters.bytes_sent
    world.run(0.1)
    control, sent = link.counters.control_bytes - control, link.counters.bytes_sent - sent
    head = HEAD_BYTES if len(body) < DEFLATE_BYTES_MAX else HEAD_BYTES + 2
    assert control == head + (sent - head) // 2
