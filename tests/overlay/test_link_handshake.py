"""How a link comes about: who is let in, who is refused and told why, and what no attacker gets past."""

from __future__ import annotations

import msgspec
import pytest
from pipe import KEY, End, Pipe, Side, World, linked, pair, settings

from sterna.overlay.handshake import CHALLENGE, HEAD_BYTES, HELLO, PROOF, HandshakeError, LinkHandshake, framed
from sterna.vocabulary.versions import LINK, Versions


def test_both_sides_know_the_session_before_any_frame() -> None:
    world, a, b, _ = linked()
    assert a.link("b").session_id == b.link("a").session_id
    assert a.told == b.told == [("started", a.link("b").session_id)]
    a.link("b").send(7, b"hello")
    b.link("a").send(8, b"")
    world.run(0.1)
    assert b.got[b.link("a").session_id] == [(7, b"hello")]
    assert a.got[a.link("b").session_id] == [(8, b"")]
    assert (a.link("b").peer_epoch, b.link("a").peer) == (1, "a")


def test_every_byte_may_come_alone() -> None:
    world, a, b = pair()
    Pipe(a, b, piece=1)
    world.run(0.1)
    a.link("b").send(1, b"x" * 70_000)
    a.link("b").send(2, b"y")
    world.run(0.1)
    assert b.got[b.link("a").session_id] == [(1, b"x" * 70_000), (2, b"y")]


@pytest.mark.parametrize(
    ("changes", "reason", "told"),
    [
        (
            {"strategy": "publication-flooding"},
            "node b routes by publication-flooding, node a by subscription-flooding; a network uses one strategy",
            "node a routes by subscription-flooding, the other node does not; a network uses one strategy",
        ),
        (
            {"network": "m"},
            "node b belongs to network m, node a to n",
            "node a belongs to network n, the other node to another",
        ),
        ({"key": b"another"}, "the nodes do not have the same network key", ""),
        ({"node": "a"}, "both nodes are named a; rename one", ""),
    ],
)
def test_a_node_that_does_not_fit_is_refused_and_both_sides_can_say_why(
    changes: dict[str, object], reason: str, told: str
) -> None:
    """Whoever has proved nothing yet is told nothing about the other node that it did not say itself."""
    told = told or reason
    world = World()
    a, b = Side(world, settings("a")), Side(world, settings(**({"node": "b"} | changes)), seed=1)
    pipe = Pipe(a, b)
    world.run(0.1)
    assert pipe.dialled.refusal == told
    assert not pipe.dialled.redundant
    assert pipe.dialled.is_closed
    assert pipe.accepted.is_closed
    assert a.links.links == b.links.links == {}
    assert a.reported("link refused") + a.reported("link refused by peer") == [told]
    assert b.reported("link refused") + b.reported("link refused by peer") == [reason]


@pytest.mark.parametrize("version", [LINK.oldest - 1, LINK.newest + 1])
def test_another_version_of_the_protocol_is_refused(version: int) -> None:
    _, a, b = pair()
    stranger = End(Pipe(a, b))
    channel = b.links.accept(stranger, "somewhere")
    channel.feed(framed(HELLO, b"sterna\x00%cwhatever comes in that version" % version))
    assert channel.refusal == (
        f"one node speaks version {version} of the link protocol, the other version {LINK}; "
        "run releases that follow each other on both"
    )
    assert channel.refusal.encode() in stranger.written


@pytest.mark.parametrize(
    ("one", "other", "agreed"),
    [
        (Versions(12, 13), Versions(12, 13), 13),
        (Versions(12, 12), Versions(12, 13), 12),
        (Versions(12, 13), Versions(13, 14), 13),
        (Versions(13, 13), Versions(12, 14), 13),
        (Versions(12, 12), Versions(13, 14), None),
        (Versions(14, 15), Versions(12, 13), None),
    ],
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_a_link_is_of_the_newest_version_that_both_speak(
    one: Versions, other: Versions, agreed: int | None, is_turned: bool
) -> None:
    if is_turned:
        one, other = other, one
    world = World()
    a, b = Side(world, settings("a", speaks=one)), Side(world, settings("b", speaks=other), seed=1)
    pipe = Pipe(a, b)
    world.run(0.1)
    if agreed is None:
        assert pipe.dialled.refusal is not None
        assert pipe.dialled.refusal.endswith("run releases that follow each other on both")
        assert a.links.links == b.links.links == {}
    else:
        assert (a.link("b").version, b.link("a").version) == (agreed, agreed)


def test_terms_without_a_range_are_those_of_the_one_version_they_name() -> None:
    """As the last release said them that knew of no range."""
    mine = LinkHandshake(KEY, is_dialler=False)
    terms = (b"sterna\x00\x0c", "n", "old", "subscription-flooding", 3, b"8" * 8, b"n" * 32, 2048)
    heard = mine.hear_terms(HELLO, terms[0] + msgspec.msgpack.encode(terms[1:]))
    assert (heard.node, heard.newest, mine.version) == ("old", 0, 12)


def test_nobody_between_two_nodes_can_talk_them_into_an_older_version() -> None:
    world = World()
    a, b = Side(world, settings("a")), Side(world, settings("b"), seed=1)
    pipe = Pipe(a, b)
    newest = bytes([LINK.newest])
    pipe.far.tamper = lambda at, data: (
        data[:-32].replace(newest, b"\x0c") + data[-32:] if data[2] == CHALLENGE else data
    )
    world.run(0.1)
    assert a.links.links == b.links.links == {}
    assert pipe.dialled.refusal == "the nodes do not have the same network key"


def test_a_node_does_not_link_to_itself() -> None:
    world = World()
    a = Side(world, settings("a"))
    pipe = Pipe(a, a)
    world.run(0.1)
    assert pipe.dialled.refusal == "a node needs no link to itself"


@pytest.mark.parametrize("refusing", ["a", "b"])
def test_the_user_may_refuse_an_authenticated_peer(refusing: str) -> None:
    world, a, b = pair()
    a.refused, b.refused = ({"b": "not in the tree"}, {}) if refusing == "a" else ({}, {"a": "not in the tree"})
    pipe = Pipe(a, b)
    world.run(0.1)
    assert pipe.dialled.refusal == "not in the tree"
    assert a.told == b.told == []


def test_nobody_is_asked_to_accept_a_peer_without_the_key() -> None:
    world = World()
    a, b = Side(world, settings("a", key=b"guessed")), Side(world, settings("b"))
    b.refused = {"a": "only an authenticated peer would hear this"}
    pipe = Pipe(a, b)
    world.run(0.1)
    assert pipe.dialled.refusal == "the nodes do not have the same network key"


def test_a_proof_without_the_key_is_refused() -> None:
    """The dialler itself would already give up; one that lies on is caught by its proof."""
    world = World()
    a, b = Side(world, settings("a")), Side(world, settings("b"))
    pipe = Pipe(a, b)
    pipe.near.tamper = lambda at, data: data[:-1] + bytes([data[-1] ^ 1]) if data[2] == PROOF else data
    world.run(0.1)
    assert b.reported("link refused") == ["the nodes do not have the same network key"]
    assert b.told == []


def test_a_recorded_dialler_cannot_be_played_back() -> None:
    world, a, b, pipe = linked()
    a.link("b").send(1, b"pay ten")
    world.run(0.1)
    recorded = pipe.near.written
    pipe.cut()
    world.run(10)
    sessions = list(b.told)
    replay = End(pipe)
    channel = b.links.accept(replay, "attacker")
    for at in range(len(recorded)):
        channel.feed(recorded[at : at + 1])
    assert channel.is_closed
    assert channel.refusal == "the nodes do not have the same network key"
    assert b.told == sessions


def test_a_recorded_acceptor_cannot_be_played_back() -> None:
    world, a, _, pipe = linked()
    recorded = pipe.far.written
    pipe.cut()
    world.run(10)
    sessions = list(a.told)
    channel = a.links.dialled(End(pipe), "attacker")
    channel.feed(recorded)
    assert channel.refusal == "the nodes do not have the same network key"
    assert a.told == sessions


def test_a_proof_does_not_hold_in_the_other_direction() -> None:
    """Even if both ends had said the very same words, nobody could be given back its own proof."""
    _, a, b = pair()
    dialler, acceptor, mirror = (LinkHandshake(KEY, is_dialler=is_dialler) for is_dialler in (True, False, False))
    hello = dialler.say(HELLO, a.links.terms())[HEAD_BYTES:]
    acceptor.check(HELLO, hello)
    mirror.check(HELLO, hello)
    challenge = acceptor.say(CHALLENGE, b.links.terms())[HEAD_BYTES:]
    with pytest.raises(HandshakeError, match="the same network key"):
        mirror.check(CHALLENGE, challenge)
    dialler.check(CHALLENGE, challenge)
    assert dialler.keys() == tuple(reversed(acceptor.keys()))
    assert len(set(dialler.keys())) == 2


def test_a_stranger_gets_no_answer_and_little_room() -> None:
    world, _, b = pair()
    for words in (
        b"GET / HTTP/1.1\r\n",
        b"\x10\x0c\x00\x04MQTT\x05",
        framed(HELLO, b"sternb\0\1"),
        b"\0\x20\x07" + b"x" * 32,
    ):
        end = End(Pipe(b, b))
        channel = b.links.accept(end, "stranger")
        channel.feed(words)
        world.run(6)
        assert channel.is_closed, words
        assert end.written == b""
        assert end.is_closed


def test_a_dialler_that_sends_on_without_waiting_is_dropped() -> None:
    _, a, b = pair()
    hello = End(Pipe(a, b))
    a.links.dialled(hello, "b")
    channel = b.links.accept(End(Pipe(a, b)), "flood")
    channel.feed(hello.written)
    channel.feed(b"\x04\x00\x03" + b"x" * 1000)
    assert not channel.is_closed
    channel.feed(b"x" * 5000)
    assert channel.is_closed


def test_a_handshake_has_a_time_limit() -> None:
    world, a, b = pair()
    pipe = Pipe(a, b)
    pipe.silent = True
    world.run(4.9)
    assert not pipe.accepted.is_closed
    world.run(0.2)
    assert pipe.accepted.is_closed
    assert pipe.dialled.is_closed
    assert b.reported("link refused") == ["the handshake took too long"]


def test_a_flood_of_handshakes_drops_the_oldest_and_lets_honest_ones_through() -> None:
    world, a, b = pair(pending_handshakes=8)
    flood = [b.links.accept(End(Pipe(a, b)), "flood") for _ in range(50)]
    assert [channel.is_closed for channel in flood[:40]] == [True] * 40
    pipe = Pipe(a, b)
    flood += [b.links.accept(End(pipe), "flood") for _ in range(3)]
    world.run(0.1)
    assert a.link("b").connected
    assert len(b.reported("link refused")) == 10, "nobody fills a log by knocking"
    assert KEY not in pipe.near.written + pipe.far.written
