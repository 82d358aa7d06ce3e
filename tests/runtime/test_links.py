"""Links over real sockets on loopback: dialled until they stand, resumed when cut, encrypted when asked to be."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from live.certificates import Authority
from runtime.link_towns import LASTING, NETWORK, Relay, Town, are_linked, leave, run, time_to_dial, turns, two, until
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.settings import NetworkTable, NetworkTls
from sterna.vocabulary.errors import ConfigurationError


def test_frames_go_both_ways_over_a_socket() -> None:
    async def test() -> None:
        a, b = await two()
        a.send("b", b"hello", b"world")
        b.send("a", b"yes")
        await until(lambda: len(b.got) == 2 and a.got, "frames")
        assert (a.got, b.got) == ([b"yes"], [b"hello", b"world"])
        assert a.sessions == b.sessions
        assert a.world.dialled() == {b.address: "linked with node b"}
        await leave(a, b)

    run(test)


def test_more_than_sockets_and_buffers_hold_arrives_whole_and_in_order() -> None:
    async def test() -> None:
        a, b = await two()
        bodies = [number.to_bytes(4, "big") * 4000 for number in range(2000)]
        for body in bodies:
            await until(lambda: not a.links.links["b"].congested, "room")
            a.send("b", body)
        await until(lambda: len(b.got) == len(bodies), "all of it")
        assert b.got == bodies
        assert (len(a.sessions), a.ended) == (1, [])
        await leave(a, b)

    run(test)


def test_a_node_that_is_not_there_yet_is_dialled_until_it_is() -> None:
    async def test() -> None:
        a, b = await Town("a").open(), await Town("b").open()
        address = b.address
        await b.world.close()
        a.world.dial(address)
        await until(lambda: a.world.dialled()[address] == "Connection refused", "a failure")
        b = await Town("b", replace(NETWORK, bind=Bind.parse(address))).open()
        await until(lambda: a.connected("b"), "a link at last")
        await leave(a, b)

    run(test)


def test_a_node_that_has_been_away_for_long_is_still_dialled_once_a_second() -> None:
    """By the defaults: the pauses grow, and however long it was away it is linked a second after it is back."""
    came: list[float] = []

    def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(time.monotonic())
        writer.close()

    async def test() -> None:
        defaults = NetworkTable(name="n", bind=Bind("127.0.0.1", 0), key="a key long enough")
        a = await Town("a", defaults).open()
        somebody = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = somebody.sockets[0].getsockname()[1]
        a.world.dial(f"127.0.0.1:{port}")
        # Pauses of 0.1, 0.2, 0.4 and 0.8 s at most come first; those after them are the longest there are.  A busy
        # machine makes some of them longer, and none shorter.
        await until(lambda: any(after - before < 1.5 for before, after in pairwise(came[7:])), "a pause of a second")
        somebody.close()
        await leave(a)

    run(test)


def test_a_link_that_is_cut_is_resumed_and_nothing_is_lost() -> None:
    async def test() -> None:
        a, b = await Town("a", LASTING).open(), await Town("b", LASTING).open()
        relay = Relay(b.address)
        a.world.dial(await relay.open())
        await until(lambda: a.connected("b") and b.connected("a"), "a link")
        for number in range(40):
            if number % 10 == 5:
                await until(partial(are_linked, a, b, number // 10), "the link stands again")
            a.send("b", b"%d" % number)
            b.send("a", b"%d" % number)
            if number % 10 == 5:
                relay.cut()
            await turns(5)
        expected = [b"%d" % number for number in range(40)]
        await until(lambda: len(a.got) == len(b.got) == 40, "everything")
        assert a.got == b.got == expected
        assert a.sessions == b.sessions
        assert (len(a.sessions), a.ended) == (1, [])
        assert a.links.counters["b"].resumptions == 4
        relay.server.close()
        await leave(a, b)

    run(test)


def test_nodes_that_dial_each_other_have_one_link_and_leave_it_alone() -> None:
    async def test() -> None:
        a, b = await Town("a").open(), await Town("b").open()
        relays = Relay(a.address), Relay(b.address)
        b.world.dial(await relays[0].open())
        a.world.dial(await relays[1].open())
        await until(lambda: a.connected("b") and b.connected("a"), "a link")
        await time_to_dial()
        assert a.sessions == b.sessions
        assert len(a.sessions) == 1
        assert sum(relay.connections for relay in relays) <= 4, "nobody keeps trying"
        states = [*a.world.dialled().values(), *b.world.dialled().values()]
        assert sorted(state.replace("node a", "node b") for state in states) == [
            "linked with node b",
            "linked with node b, which made the connection",
        ]
        for relay in relays:
            relay.cut()
        await until(lambda: a.links.counters["b"].resumptions == 1 and a.connected("b"), "a new connection")
        assert a.sessions == b.sessions
        for relay in relays:
            relay.server.close()
        await leave(a, b)

    run(test)


def test_an_address_no_longer_held_is_left_and_the_node_there_is_told() -> None:
    async def test() -> None:
        a, b = await two()
        c = await Town("c").open()
        a.world.hold_links({"c": c.address})
        await until(lambda: a.connected("c") and b.ended, "another neighbour")
        assert b.ended == ["node a ended it: no neighbour any more"]
        assert a.ended == ["no neighbour any more"]
        assert list(a.links.links) == ["c"]
        a.world.hold_links({"b": b.address, "c": c.address})
        await until(lambda: a.connected("b"), "the first neighbour again")
        assert a.connected("c")
        assert c.ended == []
        await leave(a, b, c)

    run(test)


def test_a_link_that_stands_by_is_not_dialled_again_and_again_and_serves_when_it_is_needed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A healthy ring used to warn at both ends of its spare link every few seconds."""

    class Spare(Town):
        spare: str | None = "node b is reached through node c: this link stands by"

        def stands_by(self, peer: str) -> str | None:
            return self.spare

    async def test() -> None:
        a, b = Spare("a"), await Town("b").open()
        relay = Relay(b.address)
        address = await relay.open()
        a.world.dial(address)
        await until(lambda: a.world.dialled() == {address: Spare.spare}, "it stands by")
        await time_to_dial()
        assert relay.connections == 1
        assert a.reports == b.reports == []
        assert [record.levelname for record in caplog.records if "stands by" in record.message] == ["INFO"]
        a.spare = None
        await until(lambda: a.connected("b"), "the link is made")
        relay.server.close()
        await leave(a, b)

    caplog.set_level("INFO")
    run(test)


def test_a_refusal_is_shown_and_does_not_stop_the_dialling() -> None:
    async def test() -> None:
        a = await Town("a").open()
        b = await Town("b", replace(NETWORK, strategy="advertisement")).open()
        a.world.dial(b.address)
        refusal = "node a routes by subscription-flooding, the other node does not; a network uses one strategy"
        await until(lambda: a.world.dialled()[b.address] == refusal, "the refusal")
        address = b.address
        await leave(b)
        b = await Town("b", replace(NETWORK, bind=Bind.parse(address))).open()
        await until(lambda: a.connected("b"), "a link once the mistake is mended")
        await leave(a, b)

    run(test)


def test_addresses_that_are_none_and_strangers_at_the_door_do_no_harm() -> None:
    async def test() -> None:
        a = await Town("a").open()
        for address in ("nonsense", "unix:/tmp/none", "no..such..name:1", "127.0.0.1:1"):
            a.world.dial(address)
        host, _, port = a.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        b = await Town("b").open()
        b.world.dial(a.address)
        await until(lambda: a.connected("b"), "a link all the same")
        await leave(a, b)

    run(test)


def test_a_door_that_cannot_be_opened_says_so() -> None:
    async def test() -> None:
        a = await Town("a").open()
        with pytest.raises(ConfigurationError, match=r"cannot listen on .*: Address already in use; set another bind"):
            await Town("b", replace(NETWORK, bind=Bind.parse(a.address))).open()
        await leave(a)

    run(test)


def _tls(authority: Authority, name: str, **changes: bool) -> NetworkTls:
    certificate, key = authority.issue(name)
    return NetworkTls(certificate=certificate, key=key, ca=authority.file, **changes)


def test_nodes_with_certificates_of_one_authority_link_over_tls(tmp_path: Path) -> None:
    async def test() -> None:
        authority = Authority(tmp_path, "ours")
        a = await Town("a", replace(NETWORK, tls=_tls(authority, "a"))).open()
        b = await Town("b", replace(NETWORK, tls=_tls(authority, "b"))).open()
        a.world.dial(b.address)
        await until(lambda: a.connected("b") and b.connected("a"), "a link")
        body = bytes(range(256)) * 4000
        a.send("b", body)
        await until(lambda: b.got, "a large frame")
        assert b.got == [body]
        a.world.undial(b.address)
        await until(lambda: b.ended, "the end of it")
        assert b.ended == ["node a ended it: no neighbour any more"]
        await leave(a, b)

    run(test)


def test_a_certificate_of_another_authority_opens_no_door(tmp_path: Path) -> None:
    async def test() -> None:
        ours, theirs = Authority(tmp_path / "ours", "ours"), Authority(tmp_path / "theirs", "theirs")
        a = await Town("a", replace(NETWORK, tls=_tls(ours, "a"))).open()
        stranger = await Town("s", replace(NETWORK, tls=_tls(theirs, "s"))).open()
        plain = await Town("p").open()
        stranger.world.dial(a.address)
        plain.world.dial(a.address)
        a.world.dial(stranger.address)
        text = "its certificate is not accepted: "
        await until(lambda: a.world.dialled()[stranger.address].startswith(text), "the complaint")
        await until(lambda: stranger.world.dialled()[a.address].startswith(text), "the complaint of the other")
        await time_to_dial()
        assert a.links.links == stranger.links.links == plain.links.links == {}
        await leave(a, stranger, plain)

    run(test)


def test_a_certificate_must_name_the_host_unless_told_otherwise(tmp_path: Path) -> None:
    async def test() -> None:
        authority = Authority(tmp_path, "ours")
        b = await Town("b", replace(NETWORK, bind=Bind("127.0.0.2", 0), tls=_tls(authority, "b"))).open()
        a = await Town("a", replace(NETWORK, tls=_tls(authority, "a"))).open()
        a.world.dial(b.address)
        await until(lambda: "IP address mismatch" in a.world.dialled()[b.address], "the complaint")
        c = await Town("c", replace(NETWORK, tls=_tls(authority, "c", check_names=False))).open()
        c.world.dial(b.address)
        await until(lambda: c.connected("b"), "a link")
        await leave(a, b, c)

    run(test)


def test_a_node_bears_the_name_that_is_in_its_certificate(tmp_path: Path) -> None:
    """Mallory has the network's key and a certificate of its authority, and calls itself by another node's name."""

    async def test() -> None:
        authority = Authority(tmp_path, "ours")
        a = await Town("a", replace(NETWORK, tls=_tls(authority, "a"))).open()
        mallory = await Town("b", replace(NETWORK, tls=_tls(authority, "mallory"))).open()
        text = "the certificate of node b names localhost, mallory, not b"
        mallory.world.dial(a.address)
        await until(lambda: text in mallory.world.dialled()[a.address], "the refusal where it connects")
        a.world.dial(mallory.address)
        await until(lambda: text in a.world.dialled()[mallory.address], "the refusal where it is called")
        several = await Town("c", replace(NETWORK, tls=_tls(authority, "mallory"), connections=3)).open()
        several.world.dial(a.address)
        await until(lambda: "names localhost, mallory" in several.world.dialled()[a.address], "that of a bundle")
        assert a.links.links == {}
        lax = await Town("l", replace(NETWORK, tls=_tls(authority, "l", check_nodes=False))).open()
        mallory.world.dial(lax.address)
        await until(lambda: lax.connected("b"), "a link where names are not checked")
        await leave(a, mallory, several, lax)

    run(test)
