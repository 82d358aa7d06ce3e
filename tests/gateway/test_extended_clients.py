"""A SUBSCRIBE that asks the foreign broker and the node is split, and its answer is put together in order."""

from __future__ import annotations

from random import Random

import pytest

from sterna.gateway.connecting import Wish
from sterna.gateway.extended_client import ExtendedClient
from sterna.gateway.settings import GatewayLimits
from sterna.gateway.watched import WatchedGateway
from sterna.mqtt import packets, wire
from sterna.simulation.client_packets import PacketReader

from .model_client import ModelClient
from .test_watched_clients import WatchedTown

versions = pytest.mark.parametrize("version", [4, 5])


class Companion:
    """The node's own broker, as far as it is asked here."""

    def __init__(self, output: ExtendedClient, version: int) -> None:
        self.output = output
        self._version = version
        self._reader = PacketReader()
        self.filters: list[bytes] = []
        self.requests: list[tuple[int, bytes]] = []

    def feed(self, data: bytes) -> None:
        self.requests += list(self._reader.feed(data))

    def answer(self, codes: bytes) -> None:
        first, body = self.requests.pop(0)
        packet_id = wire.two(body[0] << 8 | body[1])
        properties = b"\0" if self._version == 5 else b""
        words = codes if first >> 4 == packets.SUBSCRIBE or self._version == 5 else b""
        kind = 0x90 if first >> 4 == packets.SUBSCRIBE else 0xB0
        self.output.write(packets.packet(kind, packet_id + properties + words))

    def lost(self) -> None: ...
    def congested(self) -> None: ...
    def writable(self) -> None: ...


class Host:
    def __init__(self) -> None:
        self.companions: list[Companion] = []

    def is_served_here(self, topic_filter: bytes) -> bool:
        return topic_filter.startswith(b"$")

    def has_companion(self, client_id: bytes) -> bool:
        return False

    def is_spoken(self, version: int) -> bool:
        return True

    def open(self, wish: Wish, output: ExtendedClient, *, clean: bool) -> Companion:
        self.companions.append(Companion(output, wish.version))
        return self.companions[-1]

    def open_wholly(self, wish: Wish, output: ExtendedClient) -> Companion:
        raise AssertionError


class ExtendedTown(WatchedTown):
    def __init__(self) -> None:
        self.host = Host()
        super().__init__()

    def new_gateway(self) -> WatchedGateway:
        limits, dice = GatewayLimits(), Random(1)
        return WatchedGateway("g", "a:1", limits, self, self.watcher, self.keeper, dice, lambda: self.now, self.host)


def _request(version: int, *filters: bytes, subscribe: bool = True) -> bytes:
    body = wire.two(77) + (b"\0" if version == 5 else b"")
    body += b"".join(wire.binary(one) + (b"\1" if subscribe else b"") for one in filters)
    return packets.packet(0x82 if subscribe else 0xA2, body)


def _answers(client: ModelClient, kind: int) -> list[bytes]:
    client.pending[77] = "subscribe" if kind == 9 else "unsubscribe"
    client.talk()
    return [body for first, body in client.heard if first >> 4 == kind]


@versions
@pytest.mark.parametrize("node_first", [True, False])
def test_one_answer_to_a_request_for_both(version: int, node_first: bool) -> None:
    town = ExtendedTown()
    client = ModelClient(town, version)
    client.connect(persistent=True)
    client.send(_request(version, b"a", b"$share/g/b", b"c", b"$SUM/d") + b"\xc0\x00")
    companion = town.host.companions[0]
    if node_first:
        companion.answer(b"\x02\x80")
        client.hear()
        assert not [first for first, _ in client.heard if first >> 4 == 9], "half an answer is none"
    client.pending[77] = "subscribe"
    town.pass_time(0.1)
    if not node_first:
        companion.answer(b"\x02\x80")
    assert _answers(client, 9) == [wire.two(77) + (b"\0" if version == 5 else b"") + b"\x01\x02\x01\x80"]
    assert set(town.network.sessions[b"c"].filters) == {b"a", b"c"}


@versions
def test_requests_for_the_node_alone_never_reach_the_broker(version: int) -> None:
    town = ExtendedTown()
    client = ModelClient(town, version)
    client.connect(persistent=True)
    client.send(_request(version, b"$share/g/b"))
    town.host.companions[0].answer(b"\x01")
    assert len(_answers(client, 9)) == 1
    client.send(_request(version, b"$share/g/b", subscribe=False))
    town.host.companions[0].answer(b"\x00")
    assert len(_answers(client, 11)) == 1
    assert not town.network.sessions[b"c"].filters
    assert len(town.host.companions) == 1


@versions
def test_what_follows_a_split_request_does_not_overtake_it(version: int) -> None:
    town = ExtendedTown()
    client = ModelClient(town, version)
    client.connect(persistent=True)
    client.pending[77] = "subscribe"
    both = _request(version, b"down", b"$share/g/b")
    client.send(both + packets.packet(0x30, wire.binary(b"up") + (b"\0" if version == 5 else b"") + b"later"))
    town.host.companions[0].answer(b"\x01")
    client.talk()
    assert set(town.network.sessions[b"c"].filters) == {b"down"}
    assert [payload for _, payload, _ in town.network.accepted] == [b"later"]
