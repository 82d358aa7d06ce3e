"""What a session promises: exactly once and in order, whatever happens to connections; and how sessions end."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipe import DELAY_S, Pipe, Side, World, linked, pair, settings

from sterna.overlay.link import Link


def test_a_session_goes_on_over_the_next_connection() -> None:
    world, a, b, pipe = linked()
    session = a.link("b").session_id
    a.link("b").send(1, b"one")
    world.flush()
    assert a.interrupted == []
    pipe.cut()
    assert not a.link("b").connected
    assert a.interrupted == ["b"], "told at once, long before the session ends"
    a.link("b").send(1, b"two")
    world.run(1.0)
    Pipe(b, a)
    world.run(0.1)
    assert a.link("b").session_id == b.link("a").session_id == session
    assert b.got[session] == [(1, b"one"), (1, b"two")]
    assert a.told == b.told == [("started", session)]
    assert (a.link("b").counters.resumptions, a.link("b").counters.resends) == (1, 1)
    assert a.link("b").unacknowledged_bytes > 0
    world.run(1.1)
    assert a.link("b").unacknowledged_bytes == 0


def test_a_session_nobody_resumes_in_time_ends_on_both_sides() -> None:
    world, a, b, pipe = linked()
    session, link = a.link("b").session_id, a.link("b")
    pipe.cut()
    world.run(1.9)
    assert a.links.links
    world.run(0.2)
    assert a.told == b.told == [("started", session), ("ended", session)]
    assert a.reasons == ["no connection for 2 s"]
    assert a.links.links == b.links.links == {}
    link.send(1, b"too late")
    world.run(0.1)
    Pipe(a, b)
    world.run(0.1)
    assert a.link("b").session_id not in (session, 0)
    assert b.got[b.link("a").session_id] == []


def test_a_session_only_one_side_still_holds_is_replaced() -> None:
    world = World()
    a, b = Side(world, settings("a", resume_s=10)), Side(world, settings("b", resume_s=1))
    pipe = Pipe(a, b)
    world.run(0.1)
    session = a.link("b").session_id
    pipe.cut()
    a.link("b").send(1, b"of the old session")
    world.run(2)
    Pipe(a, b)
    world.run(0.1)
    assert a.told[:2] == b.told[:2] == [("started", session), ("ended", session)]
    assert a.told[2:] == b.told[2:] == [("started", a.link("b").session_id)]
    assert a.reasons == ["it could not be resumed"]
    assert b.got[b.link("a").session_id] == []


def _converse(cut_after: int, *, piece: int = 0) -> None:
    """Twenty frames each way over connections of which the first breaks after so many bytes."""
    world, a, b = pair(batch_bytes=64, resume_s=60)
    first = pipe = Pipe(a, b, cut_after=cut_after, piece=piece)
    sent: dict[str, list[tuple[int, bytes]]] = {"a": [], "b": []}
    sessions: list[int] = []

    def say(number: int) -> None:
        for side, peer in ((a, "b"), (b, "a")):
            link = side.links.links.get(peer)
            if link is not None and link.session_id in sessions:
                frame = (number % 256, Random(f"{side.name}{number}").randbytes(8 * (number % 7)))
                sent[side.name].append(frame)
                link.send(*frame)

    for number in range(20):
        say(number)
        world.run(0.005)
        if pipe.dialled.is_closed or pipe.accepted.is_closed:
            pipe = Pipe(b, a) if number % 2 else Pipe(a, b)
        if not sessions and "b" in a.links.links and "a" in b.links.links:
            sessions.append(a.link("b").session_id)
    world.run(0.1)
    assert first.dialled.is_closed
    assert first.accepted.is_closed
    if pipe.dialled.is_closed or pipe.accepted.is_closed:
        Pipe(a, b)
    world.run(3)
    assert a.told[-1] == b.told[-1], "both are in the same session at last"
    session = a.link("b").session_id
    assert session == b.link("a").session_id
    if sessions == [session]:
        assert b.got[session] == sent["a"]
        assert a.got[session] == sent["b"]
        assert sent["a"]
        assert a.link("b").unacknowledged_bytes == 0


def test_a_cut_after_any_byte_loses_nothing() -> None:
    for cut_after in range(620):
        _converse(cut_after)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), piece=st.sampled_from([0, 1, 7, 50]))
def test_random_sends_and_cuts_deliver_exactly_once_and_in_order(seed: int, piece: int) -> None:
    dice = Random(seed)
    world, a, b = pair(batch_bytes=200, resume_s=1000, handshake_s=1, dead_after_s=2)
    sent: dict[str, list[tuple[int, bytes]]] = {"a": [], "b": []}
    pipes = [Pipe(a, b)]
    world.run(0.1)
    session = a.link("b").session_id
    for _ in range(60):
        for side, peer in ((a, "b"), (b, "a")):
            for _ in range(dice.randrange(4)):
                frame = (dice.randrange(256), dice.randbytes(dice.choice([0, 3, 90, 400])))
                sent[side.name].append(frame)
                side.link(peer).send(*frame)
        what = dice.random()
        if what < 0.2:
            pipes[-1].cut()
        elif what < 0.25:
            pipes[-1].silent = True
        elif what < 0.6:
            sides = [a, b]
            dice.shuffle(sides)
            cut_after = dice.choice([-1, dice.randrange(2000)])
            pipes.append(Pipe(*sides, delay_s=dice.choice([0.001, 0.05]), piece=piece, cut_after=cut_after))
        world.run(dice.choice([0.0, 0.002, 0.03, 0.5]))
    for pipe in pipes:
        pipe.cut()
    Pipe(a, b)
    world.run(3)
    assert a.told == b.told == [("started", session)]
    assert b.got[session] == sent["a"]
    assert a.got[session] == sent["b"]


@pytest.mark.slow
@given(seed=st.integers(0, 2**32))
def test_whatever_becomes_of_sessions_each_delivers_a_beginning_of_what_was_sent_in_it(seed: int) -> None:
    dice = Random(seed)
    small = {"batch_bytes": 200, "resume_s": 0.3, "handshake_s": 0.5, "keep_alive_s": 0.2, "dead_after_s": 0.5}
    world, a, b = pair(**small, resend_bytes=6000, frame_bytes=1000, ack_bytes=1000)
    sent: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    pipes = [Pipe(a, b)]
    for _ in range(80):
        for side, peer in ((a, "b"), (b, "a")):
            link = side.links.links.get(peer)
            for _ in range(dice.randrange(4)):
                frame = (dice.randrange(256), dice.randbytes(dice.choice([0, 3, 90, 400])))
                if link is not None:
                    sent.setdefault((peer, link.session_id), []).append(frame)
                    link.send(*frame)
            if link is not None and dice.random() < 0.03:
                link.restart("at a whim")
            if dice.random() < 0.02:
                side.links.close(peer, "at a whim")
        what, pipe = dice.random(), dice.choice(pipes[-3:])
        if what < 0.1:
            pipe.cut()
        elif what < 0.15:
            pipe.silent = True
        elif what < 0.5:
            sides = dice.sample([a, b], 2)
            pipes.append(Pipe(*sides, delay_s=dice.choice([0.001, 0.05]), cut_after=dice.choice([-1, 700])))
        world.run(dice.choice([0.0, 0.002, 0.03, 0.3]))
    for pipe in pipes:
        pipe.cut()
    Pipe(a, b)
    world.run(1)
    for side in (a, b):
        for session, got in side.got.items():
            assert got == sent.get((side.name, session), [])[: len(got)]
        assert len(side.told) == 2 * len(side.got) - 1, "all sessions but the last have ended"
    assert a.link("b").session_id == b.link("a").session_id


class Flip:
    """Flips one bit of what passes."""

    def __init__(self, position: int, bit: int) -> None:
        self.position = position
        self.bit = bit
        self.done = False

    def __call__(self, at: int, data: bytes) -> bytes:
        index = self.position - at
        if not 0 <= index < len(data):
            return data
        self.done = True
        return data[:index] + bytes([data[index] ^ 1 << self.bit]) + data[index + 1 :]


def _flip(position: int, bit: int, *, near: bool) -> bool:
    """A conversation in which one bit is flipped, by the dialler's end or the other; whether it came to that."""
    world, a, b = pair(batch_bytes=100)
    flip = Flip(position, bit)
    pipe = Pipe(a, b, near=flip if near else None, far=None if near else flip)
    sent: dict[str, list[tuple[int, bytes]]] = {"a": [], "b": []}
    for number in range(12):
        for side, peer in ((a, "b"), (b, "a")):
            link = side.links.links.get(peer)
            if link is not None and not flip.done:
                sent[side.name].append((number, Random(f"{side.name}{number}").randbytes(25)))
                link.send(*sent[side.name][-1])
        world.run(0.01)
    flip.position = -1
    world.run(9)
    assert flip.done == (pipe.dialled.is_closed and pipe.accepted.is_closed)
    for side, other in ((a, "b"), (b, "a")):
        for got in side.got.values():
            assert got == sent[other][: len(got)]
        assert not side.links.links or not flip.done
    return flip.done


@pytest.mark.parametrize("near", [True, False])
def test_a_flipped_bit_ends_the_connection_and_delivers_nothing_wrong(near: bool) -> None:
    assert [_flip(position, position % 8, near=near) for position in range(450)] == [True] * 450


@pytest.mark.slow
@given(position=st.integers(0, 900), bit=st.integers(0, 7), near=st.booleans())
def test_whichever_bit_is_flipped_the_connection_ends(position: int, bit: int, near: bool) -> None:
    _flip(position, bit, near=near)


def test_a_batch_of_an_earlier_connection_is_worth_nothing_on_the_next() -> None:
    world, a, b, pipe = linked()
    a.link("b").send(1, b"once")
    before = len(pipe.near.written)
    world.flush()
    old = pipe.near.written[before:]
    world.run(0.1)
    pipe.cut()
    again = Pipe(a, b)
    world.run(0.1)
    assert again.accepted.is_open
    again.accepted.feed(old)
    assert again.accepted.is_closed
    assert b.reported("link broken") == ["a batch with a wrong MAC"]
    assert b.got[b.link("a").session_id] == [(1, b"once")]


@pytest.mark.parametrize("changes", [{"epoch": 2}, {}], ids=["later epoch", "same epoch, the old process silent"])
def test_a_peer_started_again_gets_a_fresh_session_and_the_old_one_ends(changes: dict[str, object]) -> None:
    world, a, b, pipe = linked()
    old = a.link("b").session_id
    pipe.silent = True
    world.sides.remove(b)
    world.run(2.5)
    again = Side(world, settings("b", **changes), seed=2)
    Pipe(again, a)
    world.run(0.1)
    assert a.told == [("started", old), ("ended", old), ("started", again.link("a").session_id)]
    assert a.reasons == ["node b was started again"]
    assert a.link("b").peer_epoch == changes.get("epoch", 1)
    world.run(10)
    assert a.link("b").connected


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_second_node_with_the_name_of_a_living_one_is_refused(epoch: int) -> None:
    world, a, b, _ = linked()
    other = Side(world, settings("b", epoch=epoch), seed=3)
    for pipe in (Pipe(other, a), Pipe(a, other)):
        world.run(0.1)
        assert pipe.dialled.refusal == "another node named b is linked to node a; rename one"
    assert a.link("b").session_id == b.link("a").session_id
    assert other.told == []


@pytest.mark.parametrize("lead_s", [0.0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.05])
@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("slower", [1.0, 3.0, 0.2])
def test_of_two_connections_made_at_once_exactly_one_survives(lead_s: float, first: str, slower: float) -> None:
    world, a, b = pair()
    sides = (a, b) if first == "a" else (b, a)
    pipes = [Pipe(*sides)]
    world.run(lead_s)
    pipes.append(Pipe(sides[1], sides[0], delay_s=DELAY_S * slower))
    world.run(4)
    for side in (a, b):
        assert [event for event, _ in side.told] == ["started"]
    assert a.told == b.told
    surviving = [pipe for pipe in pipes if pipe.dialled.is_open]
    assert [pipe.accepted.is_open for pipe in surviving] == [True]
    [loser] = [pipe for pipe in pipes if pipe not in surviving]
    assert loser.dialled.is_closed
    assert loser.accepted.is_closed
    assert loser.dialled.redundant
    if lead_s == 0.0 and slower == 1.0:
        assert surviving[0].dialled.peer == "b", "the one the smaller name dialled"
    assert a.events == b.events == []


def test_a_new_connection_takes_over_from_a_half_dead_one() -> None:
    world, a, b, pipe = linked()
    session = a.link("b").session_id
    pipe.silent = True
    pipe.far.is_closed = True
    pipe.accepted.lost()
    a.link("b").send(1, b"into the void")
    world.run(0.5)
    again = Pipe(b, a)
    world.run(0.1)
    assert pipe.dialled.is_closed
    assert again.dialled.is_open
    assert b.got == {session: [(1, b"into the void")]}
    assert a.told == [("started", session)]
    world.run(10)
    assert a.link("b").connected


def test_closing_tells_the_peer_and_both_sessions_end_at_once() -> None:
    world, a, b, pipe = linked()
    session = a.link("b").session_id
    a.link("b").send(1, b"last words")
    world.flush()
    a.links.close("b", "no neighbour any more")
    assert a.told[-1] == ("ended", session)
    assert a.reasons == ["no neighbour any more"]
    world.run(0.1)
    assert b.got[session] == [(1, b"last words")]
    assert b.reasons == ["node a ended it: no neighbour any more"]
    assert a.links.links == b.links.links == {}
    assert pipe.dialled.is_closed
    assert pipe.accepted.is_closed
    a.links.close("b", "nothing to close is fine")
    assert len(a.reasons) == 1


def test_a_user_may_end_the_session_over_a_frame() -> None:
    world, a, b, _ = linked()

    def refuse(link: Link, frames: list[tuple[int, bytes]]) -> None:
        b.links.close("a", "nonsense")

    b.on_frames = refuse
    for number in range(3):
        a.link("b").send(number, b"")
        world.flush()
    session = a.link("b").session_id
    world.run(0.1)
    assert b.got[session] == [(0, b"")]
    assert a.reasons == ["node b ended it: nonsense"]


def test_what_a_user_sends_on_hearing_of_an_end_leaves_in_the_same_turn() -> None:
    world, a, b, _ = linked()
    c = Side(world, settings("c"))
    Pipe(a, c)
    world.run(0.1)
    a.on_end = lambda link: a.link("c").send(9, link.peer.encode())
    a.link("b").restart("out of step")
    a.links.flush()
    world.sides.remove(a)
    world.run(0.1)
    assert c.got[c.link("a").session_id] == [(9, b"b")]
    assert b.reasons == ["node a ended it: out of step"]


def test_a_session_given_up_ends_at_the_next_flush_and_the_next_connection_starts_afresh() -> None:
    world, a, b, _ = linked()
    link = a.link("b")
    link.send(1, b"never arrives")
    link.restart("out of step")
    link.send(1, b"nor does this")
    assert a.told == [("started", link.session_id)]
    world.run(0.1)
    assert (a.reasons, b.reasons) == (["out of step"], ["node b ended it: out of step".replace("b", "a", 1)])
    assert link.ended
    Pipe(b, a)
    world.run(0.1)
    assert a.link("b") is not link
    assert b.got == {link.session_id: [], a.link("b").session_id: []}
    assert a.link("b").counters.sessions == 2
