"""Datagrams on real sockets: nodes that know no address of each other meet in a multicast group; and the figures that a
node gives of its machine.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
from contextlib import closing
from pathlib import Path

import pytest

from sterna.runtime.config.schema import Bind
from sterna.runtime.config.settings import Mobile, NetworkTable, Tree
from sterna.runtime.links.hello_sockets import HelloSockets
from sterna.runtime.links.network_sockets import Datagrams, memory_mib, processor_mhz

GROUP = "239.255.83.99"
IP_RECVTTL = 12
"""Of Linux; Python does not name it."""
PATIENCE_S = 60.0


def free_port() -> int:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def table(group: Bind | None) -> NetworkTable:
    return NetworkTable(name="n", bind=Bind("127.0.0.1", 0), overlay="spanning-tree", tree=Tree(multicast=group))


class Ear:
    """All that one pair of sockets heard."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    def __call__(self, sender: str, data: bytes) -> None:
        self.heard.put_nowait((sender, data))

    async def next(self) -> tuple[str, bytes]:
        async with asyncio.timeout(PATIENCE_S):
            return await self.heard.get()


async def two(group: Bind | None) -> tuple[Datagrams, Ear, Datagrams, Ear]:
    one, other = Ear(), Ear()
    return await Datagrams.open(table(group), one), one, await Datagrams.open(table(group), other), other


def test_a_call_into_the_group_reaches_all_who_joined_and_says_where_it_came_from() -> None:
    async def story() -> None:
        caller, _, joined, ear = await two(Bind(GROUP, free_port()))
        try:
            caller.send_discovery(b"is anybody there?")
            assert await ear.next() == (str(caller.bind), b"is anybody there?")
            joined.send(str(caller.bind), b"yes")
        finally:
            caller.close()
            joined.close()

    asyncio.run(story())


def test_what_a_stranger_sends_into_the_group_is_heard_so_the_group_was_joined() -> None:
    async def story() -> None:
        port = free_port()
        ear = Ear()
        joined = await Datagrams.open(table(Bind(GROUP, port)), ear)
        try:
            with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as stranger:
                stranger.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
                stranger.sendto(b"hello", (GROUP, port))
            assert (await ear.next())[1] == b"hello"
        finally:
            joined.close()

    asyncio.run(story())


def test_what_is_sent_into_the_group_leaves_so_a_stranger_that_joined_hears_it() -> None:
    async def story() -> None:
        port = free_port()
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            stranger.bind((GROUP, port))
            member = struct.pack("4s4s", socket.inet_aton(GROUP), socket.inet_aton("127.0.0.1"))
            stranger.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            stranger.settimeout(PATIENCE_S)
            caller = await Datagrams.open(table(Bind(GROUP, port)), Ear())
            try:
                caller.send_discovery(b"call")
                assert await asyncio.to_thread(stranger.recv, 100) == b"call"
            finally:
                caller.close()

    asyncio.run(story())


def of_nodes_that_move(bind: str, group: Bind) -> NetworkTable:
    return NetworkTable(name="n", bind=Bind(bind, 0), overlay="mobile", mobile=Mobile(multicast=group))


def test_a_hello_goes_no_further_than_the_link() -> None:
    """A router would pass nothing on that has one hop left."""

    async def story() -> None:
        group = Bind(GROUP, free_port())
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            stranger.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
            stranger.bind((group.host, group.port))
            member = struct.pack("4s4s", socket.inet_aton(GROUP), socket.inet_aton("127.0.0.1"))
            stranger.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            stranger.settimeout(PATIENCE_S)
            caller = await HelloSockets.open(of_nodes_that_move("127.0.0.1", group), Ear())
            try:
                caller.send_discovery(b"hello")
                data, told, *_ = await asyncio.to_thread(stranger.recvmsg, 100, 100)
            finally:
                caller.close()
        assert data == b"hello"
        assert told == [(socket.IPPROTO_IP, socket.IP_TTL, struct.pack("@i", 1))]

    asyncio.run(story())


def test_neither_does_one_by_ipv6() -> None:
    """Loopback carries no groups of IPv6, so the socket is asked."""

    async def story() -> None:
        caller = await HelloSockets.open(of_nodes_that_move("::1", Bind("ff02::5399", free_port())), Ear())
        try:
            assert caller._mouth.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS) == 1
        finally:
            caller.close()

    asyncio.run(story())


def test_without_a_group_nothing_is_called_and_addresses_work() -> None:
    async def story() -> None:
        caller, _, joined, ear = await two(None)
        try:
            caller.send_discovery(b"nobody")
            caller.send(str(joined.bind), b"you")
            assert (await ear.next())[1] == b"you"
            assert ear.heard.empty()
        finally:
            caller.close()
            joined.close()

    asyncio.run(story())


def test_an_address_that_makes_no_sense_raises_nothing() -> None:
    async def story() -> None:
        caller = await Datagrams.open(table(None), Ear())
        try:
            for address in ("nonsense", "127.0.0.1:0", "127.0.0.1:99999", "[::1]:7"):
                caller.send(address, b"x")
        finally:
            caller.close()

    asyncio.run(story())


def test_the_memory_of_a_machine_is_what_its_kernel_says() -> None:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total_mib = int(lines["MemTotal"].split()[0]) / 1024
    assert memory_mib() == pytest.approx(total_mib, rel=0.05)
    assert memory_mib() > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_the_processors_of_a_machine_count_all_together() -> None:
    found = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("cpu MHz")]
    assert processor_mhz() >= 100 * max(1, len(found))
