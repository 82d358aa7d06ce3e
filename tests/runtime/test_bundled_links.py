"""Several connections to one neighbour over real sockets: one link, whatever becomes of its connections."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from live.certificates import Authority
from runtime.link_towns import LASTING, NETWORK, Relay, Town, are_linked, leave, run, time_to_dial, turns, two, until
from sterna.overlay.bundle import Preamble
from sterna.runtime.config.settings import NetworkTls

FOUR = replace(NETWORK, connections=4)
NAME = bytes(range(16))


async def _through(relay: Relay, a: Town, b: Town) -> None:
    a.world.dial(await relay.open())
    await until(lambda: a.connected("b") and b.connected("a"), "a link")


class Stranger(asyncio.Protocol):
    """A connection to a node that is none of a node's."""

    def __init__(self, words: bytes) -> None:
        self._words = words
        self.answer = b""
        self.is_gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._words)

    def data_received(self, data: bytes) -> None:
        self.answer += data

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_gone = True


def are_gone(strangers: list[Stranger]) -> bool:
    return all(stranger.is_gone for stranger in strangers)


async def _knock(address: str, words: bytes) -> Stranger:
    host, _, port = address.rpartition(":")
    _, stranger = await asyncio.get_running_loop().create_connection(lambda: Stranger(words), host, int(port))
    return stranger


@pytest.mark.parametrize(("connections", "others"), [(4, 1), (1, 4), (16, 2)])
def test_who_dials_says_how_many_connections_there_are(connections: int, others: int) -> None:
    async def test() -> None:
        a = await Town("a", replace(NETWORK, connections=connections)).open()
        b = await Town("b", replace(NETWORK, connections=others)).open()
        relay = Relay(b.address)
        await _through(relay, a, b)
        a.send("b", b"hello", b"world")
        b.send("a", b"yes")
        await until(lambda: len(b.got) == 2 and a.got, "frames")
        assert (a.got, b.got) == ([b"yes"], [b"hello", b"world"])
        assert relay.connections == connections
        several = f" over {connections} connections" if connections > 1 else ""
        assert list(a.world.dialled().values()) == [f"linked with node b{several}"]
        assert not [event for event, _ in (*a.reports, *b.reports) if event != "link resumed"]
        await leave(a, b)
        await relay.close()

    run(test)


def test_connections_that_overtake_each_other_carry_one_stream() -> None:
    async def test() -> None:
        a, b = await Town("a", FOUR).open(), await Town("b").open()
        relay = Relay(b.address, delay_s=0.004)
        await _through(relay, a, b)
        rng = random.Random(1)
        bodies = [number.to_bytes(4, "big") * rng.choice((1, 50, 60_000)) for number in range(150)]
        for body in bodies:
            await until(lambda: not a.links.links["b"].congested, "room")
            a.send("b", body)
            b.send("a", body[:4])
        await until(lambda: len(b.got) == len(a.got) == len(bodies), "all of it")
        assert b.got == bodies
        assert a.got == [body[:4] for body in bodies]
        assert (len(a.sessions), a.ended, a.links.counters["b"].resumptions) == (1, [], 0)
        await leave(a, b)
        await relay.close()

    run(test)


def test_more_than_sockets_and_buffers_hold_arrives_whole_and_in_order() -> None:
    async def test() -> None:
        a, b = await two(FOUR)
        bodies = [number.to_bytes(4, "big") * 4000 for number in range(1000)]
        for number, body in enumerate(bodies):
            if number % 100 == 50:
                b.links.pause_reading()
                asyncio.get_running_loop().call_later(0.01, b.links.resume_reading)
            await until(lambda: not a.links.links["b"].congested, "room")
            a.send("b", body)
        await until(lambda: len(b.got) == len(bodies), "all of it")
        assert b.got == bodies
        assert (len(a.sessions), a.ended, a.links.counters["b"].resumptions) == (1, [], 0)
        await leave(a, b)

    run(test)


def test_one_connection_lost_costs_a_new_bundle_and_nothing_else() -> None:
    async def test() -> None:
        a, b = await Town("a", replace(LASTING, connections=4)).open(), await Town("b", LASTING).open()
        relay = Relay(b.address)
        await _through(relay, a, b)
        for number in range(40):
            if number % 10 == 5:
                await until(partial(are_linked, a, b, number // 10), "the link stands again")
            a.send("b", b"%d" % number)
            b.send("a", b"%d" % number)
            if number % 10 == 5:
                relay.cut(1)
            await turns(5)
        await until(lambda: len(a.got) == len(b.got) == 40, "everything")
        assert a.got == b.got == [b"%d" % number for number in range(40)]
        assert a.sessions == b.sessions
        assert (len(a.sessions), a.ended) == (1, [])
        resumptions = a.links.counters["b"].resumptions
        assert resumptions == 4
        assert relay.connections == 4 * (1 + resumptions)
        await leave(a, b)
        await relay.close()

    run(test)


def test_a_bundle_over_tls_is_told_why_it_ends(tmp_path: Path) -> None:
    async def test() -> None:
        authority = Authority(tmp_path, "ours")
        towns = []
        for name in "ab":
            certificate, key = authority.issue(name)
            tls = NetworkTls(certificate=certificate, key=key, ca=authority.file)
            towns.append(await Town(name, replace(FOUR, tls=tls)).open())
        a, b = towns
        a.world.dial(b.address.replace("127.0.0.1", "localhost"))
        await until(lambda: a.connected("b") and b.connected("a"), "a link")
        body = bytes(range(256)) * 4000
        a.send("b", body)
        await until(lambda: b.got, "a large frame")
        assert b.got == [body]
        a.world.hold_links({})
        await until(lambda: b.ended, "the end of it")
        assert b.ended == ["node a ended it: no neighbour any more"]
        await leave(a, b)

    run(test)


def test_a_refused_bundle_is_told_why() -> None:
    async def test() -> None:
        a = await Town("a", FOUR).open()
        b = await Town("b", replace(NETWORK, strategy="advertisement")).open()
        a.world.dial(b.address)
        told = "node a routes by subscription-flooding, the other node does not; a network uses one strategy"
        await until(lambda: a.world.dialled()[b.address] == told, "the refusal")
        refusal = "node b routes by advertisement, node a by subscription-flooding; a network uses one strategy"
        assert ("link refused", refusal) in b.reports
        await leave(a, b)

    run(test)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([Preamble(NAME, 2, 2).encode()], "a member that fits into no bundle"),
        ([Preamble(NAME, 0, 17).encode()], "a member that fits into no bundle"),
        ([b"bundle\x09" + NAME + b"\x00\x02"], "version 9 of bundles"),
        ([b"bungle" + NAME], "no link of ours"),
        ([Preamble(NAME, 0, 3).encode(), Preamble(NAME, 0, 3).encode()], "claim the same place"),
        ([Preamble(NAME, 0, 3).encode(), Preamble(NAME, 1, 4).encode()], "disagree"),
        ([Preamble(NAME, 0, 3).encode() + b"\x00\x00\x00\x01\xff\xff" + bytes(9000)], "proved nothing"),
        ([Preamble(NAME, 0, 3).encode(), Preamble(NAME, 1, 3).encode()], "took too long"),
        ([Preamble(NAME, 0, 3).encode()[:9]], "took too long"),
        ([Preamble(NAME, index, 2).encode() + b"\x00\x00\x00\x01\x00\x01?" for index in range(2)], "came before"),
    ],
)
def test_strangers_are_hung_up_on_and_it_is_said_once(said: list[bytes], reason: str) -> None:
    async def test() -> None:
        a = await Town("a", replace(NETWORK, handshake_s=0.3)).open()
        strangers = [await _knock(a.address, words) for words in said]
        await until(lambda: all(stranger.is_gone for stranger in strangers), "all hung up on")
        assert not any(stranger.answer for stranger in strangers)
        assert [text for _, text in a.reports if reason in str(text)] == [text for _, text in a.reports]
        assert [event for event, _ in a.reports] == ["link refused"]
        b = await Town("b", FOUR).open()
        b.world.dial(a.address)
        await until(lambda: a.connected("b"), "a link all the same")
        await leave(a, b)

    run(test)


def test_bundles_that_are_never_complete_push_out_each_other_and_no_more_are_kept_than_handshakes() -> None:
    async def test() -> None:
        a = await Town("a", replace(NETWORK, pending_handshakes=3)).open()
        half = [Preamble(bytes([number]) * 16, index, 3).encode() for number in range(5) for index in range(2)]
        strangers = []
        for words in half:
            strangers.append(await _knock(a.address, words))
            await turns()  # each is heard before the next
        await until(lambda: all(stranger.is_gone for stranger in strangers[:4]), "the oldest hung up on")
        assert not any(stranger.is_gone for stranger in strangers[-4:])
        assert set(a.reports) == {("link refused", "too many handshakes at once")}
        b = await Town("b", FOUR).open()
        b.world.dial(a.address)
        await until(lambda: a.connected("b"), "a link all the same")
        for stranger in strangers:
            stranger.transport.abort()
        await leave(a, b)

    run(test)


def test_the_name_of_a_bundle_is_forgotten_when_it_is_over() -> None:
    async def test() -> None:
        a = await Town("a", replace(NETWORK, handshake_s=0.2)).open()
        for attempt in (1, 2):
            strangers = [await _knock(a.address, Preamble(NAME, index, 3).encode()) for index in range(2)]
            await until(partial(are_gone, strangers), "all hung up on")
            assert a.reports == attempt * [("link refused", "the handshake took too long")]
        await leave(a)

    run(test)


def test_who_comes_late_with_the_name_of_a_complete_bundle_does_it_no_harm() -> None:
    async def test() -> None:
        a = await Town("a").open()
        strangers = [await _knock(a.address, Preamble(NAME, index, 2).encode()) for index in (0, 1, 0)]
        await turns()  # all three are heard
        assert (a.reports, [stranger.is_gone for stranger in strangers]) == ([], [False] * 3)
        for stranger in strangers:
            stranger.transport.abort()
        await until(lambda: len(a.reports) == 2, "both over")
        await leave(a)

    run(test)


class Answerer:
    """A door that is no node's."""

    def __init__(self, met: Callable[[int, asyncio.StreamWriter], None]) -> None:
        """`met` is told of every connection, with its number."""
        self._tell = met
        self.met = 0
        self.standing: list[asyncio.StreamWriter] = []

    async def open(self) -> str:
        self.server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.met += 1
        self.standing.append(writer)
        self._tell(self.met, writer)
        with suppress(ConnectionResetError):
            await reader.read()
        self.standing.remove(writer)
        writer.close()


def test_a_bundle_given_up_while_it_is_made_leaves_nothing_behind() -> None:
    async def test() -> None:
        answerer = Answerer(lambda number, _: a.world.undial(address) if number == 2 else None)
        address = await answerer.open()
        a = await Town("a", FOUR).open()
        a.world.dial(address)
        await until(lambda: answerer.met >= 2 and not answerer.standing, "everything hung up")
        await time_to_dial()
        assert answerer.met <= 4
        assert a.world.dialled() == {}
        answerer.server.close()
        await leave(a)

    run(test)


def test_a_bundle_whose_first_connection_is_hung_up_on_leaves_the_others_and_says_so() -> None:
    async def test() -> None:
        answerer = Answerer(lambda number, writer: writer.transport.abort() if number == 1 else None)
        address = await answerer.open()
        a = await Town("a", replace(FOUR, handshake_s=60)).open()
        a.world.dial(address)
        closed = ("the connection was closed", "Connection reset by peer")
        await until(lambda: a.world.dialled()[address] in closed or a.reports, "a word about it")
        a.world.undial(address)
        await until(lambda: not answerer.standing, "everything hung up")
        answerer.server.close()
        await leave(a)

    run(test)
