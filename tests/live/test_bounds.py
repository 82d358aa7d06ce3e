"""Clients cannot fill the memory of a node, starve the others, stay without a word, or take more than allowed.

Memory is what the kernel says is resident.  Every message a client did not get is either waiting for it or counted.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from conformance.packets import Connect, Pingreq, Publish, Subscribe

from .certificates import Authority
from .clients import Refused
from .conftest import Join
from .nodes import LiveNode, wait_until

MIB = 1024 * 1024
ADMIN = '[admin]\nbind = "127.0.0.1:0"\n'
StartNode = Callable[[str], LiveNode]


@dataclass
class Raw:
    """An MQTT 3.1.1 client that reads only when told to."""

    send: Callable[[bytes], object]
    receive: Callable[[int], bytes]
    """Some bytes, at most so many; nothing when the connection has ended."""

    def exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            more = self.receive(size - len(found))
            assert more, "the node closed the connection"
            found += more
        return bytes(found)


@pytest.fixture
def dial() -> Iterator[Callable[..., Raw]]:
    """`dial(port, "a", subscribe=("topic", 1))`: connected and subscribed."""
    with ExitStack() as stack:

        def dial(
            port: int,
            client_id: str,
            subscribe: tuple[str, int] | None = None,
            way: str = "tcp",
            clean: bool = True,
            context: ssl.SSLContext | None = None,
        ) -> Raw:
            made = {"tcp": _socket, "tls": _tls, "websocket": _websocket}[way]
            client = made(stack, port, context)
            client.send(Connect(client_id, clean, keep_alive=0).encode(4))
            assert client.exactly(4)[3] == 0
            if subscribe is not None:
                client.send(Subscribe(1, [subscribe]).encode(4))
                assert client.exactly(5)[4] == subscribe[1]
            return client

        yield dial


def _socket(stack: ExitStack, port: int, _context: ssl.SSLContext | None) -> Raw:
    opened = stack.enter_context(small_socket(port))
    return Raw(opened.sendall, opened.recv)


def small_socket(port: int) -> socket.socket:
    """With a small buffer, so that it is the node's bounds that are met and not the kernel's."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    opened.settimeout(60)
    opened.connect(("127.0.0.1", port))
    return opened


def _tls(stack: ExitStack, port: int, context: ssl.SSLContext | None) -> Raw:
    assert context is not None
    opened = stack.enter_context(context.wrap_socket(small_socket(port), server_hostname="127.0.0.1"))
    return Raw(opened.sendall, opened.recv)


def _websocket(stack: ExitStack, port: int, _context: ssl.SSLContext | None) -> Raw:
    opened = stack.enter_context(
        connect(f"ws://127.0.0.1:{port}", subprotocols=[Subprotocol("mqtt")], compression=None, max_size=None)
    )
    held = bytearray()

    def receive(size: int) -> bytes:
        if not held:
            held.extend(opened.recv(20, decode=False))
        taken = bytes(held[:size])
        del held[:size]
        return taken

    return Raw(opened.send, receive)


class Grown:
    """How much the node's memory has grown since this was made."""

    def __init__(self, node: LiveNode) -> None:
        self._node = node
        self._before = node.resident_bytes
        self.most = 0

    def look(self) -> None:
        self.most = max(self.most, self._node.resident_bytes - self._before)


def test_what_follows_a_burst_of_new_topics_is_delivered(start_node: StartNode, dial: Callable[..., Raw]) -> None:
    """The burst takes several turns, which send by themselves and to many; the next message must not wait for ever."""
    node = start_node(ADMIN)
    subscribers = [dial(node.port, f"s{number}", ("new/#", 0)) for number in range(100)]
    publisher = dial(node.port, "publisher")
    packets = [Publish(f"new/{number:04}", b"x" * 32).encode(4) for number in range(2000)]
    for burst in (b"".join(packets), packets[0]):
        publisher.send(burst)
        assert all(subscriber.exactly(len(burst)) == burst for subscriber in subscribers)


# -- slow readers --


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tcp", "tls", "websocket"])
def test_a_subscriber_that_never_reads_costs_a_bounded_amount_and_what_it_misses_is_counted(
    start_node: StartNode, dial: Callable[..., Raw], way: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority", "authority")
    certificate, key = authority.issue("server")
    listener = '[[listener]]\nbind = "127.0.0.1:0"\n'
    tls = f'{listener}certificate = "{certificate}"\nkey = "{key}"\n'
    node = start_node(f'{ADMIN}{listener}{tls}{listener}transport = "websocket"\n')
    port = node.ports[["tcp", "tls", "websocket"].index(way)]
    sleeper = dial(port, "sleeper", ("flood", 0), way, context=authority.context())
    reader = dial(node.port, "reader", ("flood", 0))
    publisher = dial(node.port, "publisher")
    packet = Publish("flood", bytes(1000)).encode(4)
    batch, batches = 200, 250
    grown = Grown(node)
    for _ in range(batches):
        publisher.send(packet * batch)
        assert reader.exactly(len(packet) * batch) == packet * batch, "the other subscriber misses nothing"
        grown.look()
    sent = batch * batches
    assert sent * len(packet) > 40 * MIB
    assert grown.most < 12 * MIB
    dropped = int(node.metric("sterna_publish_dropped_total", reason="slow-consumer"))
    assert dropped > sent / 2
    # It wakes up: what was not dropped is all there, and nothing is cut in the middle.
    assert sleeper.exactly(len(packet) * (sent - dropped)) == packet * (sent - dropped)
    publisher.send(Publish("flood", b"after").encode(4))
    last = Publish("flood", b"after").encode(4)
    assert sleeper.exactly(len(last)) == last


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["fsync", "memory"])
def test_a_subscriber_that_reads_again_gets_every_qos_1_message_in_order(
    start_node: StartNode, dial: Callable[..., Raw], durability: str
) -> None:
    node = start_node(f'{ADMIN}[journal]\ndurability = "{durability}"\n')
    sleeper = dial(node.port, "sleeper", ("work", 1))
    publisher = dial(node.port, "publisher")
    count = 50_000
    grown = Grown(node)
    for start in range(0, count, 1000):
        publish_numbers(publisher, "work", range(start, start + 1000))
        grown.look()
    # 13 MiB of messages: the journal's tail and its frames stay, the rest is on disk (or, in memory, compact).
    assert grown.most < 64 * MIB
    assert node.metric("sterna_queued") > count - 1000
    assert take_numbers(sleeper, "work", count) == list(range(count))
    wait_until(lambda: node.metric("sterna_queued") == 0, "nothing waits any more")
    assert node.metric("sterna_publish_dropped_total", reason="slow-consumer") == 0


def publish_numbers(client: Raw, topic: str, numbers: range) -> None:
    """One QoS 1 message per number, 256 bytes each, all acknowledged."""
    client.send(b"".join(numbered(topic, n, n % 1000 + 1).encode(4) for n in numbers))
    acknowledged = client.exactly(4 * len(numbers))
    assert [struct.unpack_from(">H", acknowledged, at + 2)[0] for at in range(0, len(acknowledged), 4)] == [
        n % 1000 + 1 for n in numbers
    ]


def numbered(topic: str, number: int, packet_id: int) -> Publish:
    return Publish(topic, b"%08d" % number + bytes(248), 1, packet_id=packet_id)


def take_numbers(client: Raw, topic: str, count: int) -> list[int]:
    """Read so many of them, acknowledging each."""
    size = len(numbered(topic, 0, 1).encode(4))
    head = size - 256
    taken: list[int] = []
    held = b""
    while len(taken) < count:
        held += client.receive(65536)
        whole = len(held) // size * size
        answers = bytearray()
        for at in range(0, whole, size):
            taken.append(int(held[at + head : at + head + 8]))
            answers += b"\x40\x02" + held[at + head - 2 : at + head]
        client.send(bytes(answers))
        held = held[whole:]
    assert not held
    return taken


@pytest.mark.slow
def test_a_client_that_asks_and_asks_without_reading_the_answers_is_no_longer_listened_to(
    start_node: StartNode, dial: Callable[..., Raw]
) -> None:
    node = start_node(f"{ADMIN}[limits]\noutput_bytes = 65536\n")
    grown = Grown(node)
    with small_socket(node.port) as deaf:
        deaf.sendall(Connect("deaf", keep_alive=0).encode(4))
        assert deaf.recv(4)[3] == 0
        sent = send_until_refused(deaf, Pingreq().encode(4) * 50_000, at_most=100 * MIB)
        grown.look()
        assert sent < 100 * MIB, "at some point it is no longer read from"
        assert grown.most < 24 * MIB
        other = dial(node.port, "other")
        other.send(Pingreq().encode(4))
        assert other.exactly(2) == b"\xd0\x00"
        # As soon as it reads, it is heard again: every ping is answered.
        deaf.settimeout(60)
        read = 0
        while read < sent // 2 * 2:
            read += len(deaf.recv(MIB))
        assert read == sent // 2 * 2


def send_until_refused(opened: socket.socket, data: bytes, at_most: int) -> int:
    """How many bytes of it, sent over and over, the other end and the kernel between us take."""
    opened.settimeout(1)
    sent = 0
    with suppress(TimeoutError):
        while sent < at_most:
            sent += opened.send(data[sent % 2 :])
    return sent


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["client_messages_per_s = 40", "client_bytes_per_s = 8000"])
def test_a_client_that_sends_too_fast_waits_and_others_do_not(
    start_node: StartNode, join: Join, limit: str, version: int
) -> None:
    node = start_node(f"{ADMIN}[limits]\n{limit}\n")
    fast, slow, reader = (join(node, version=version, client_id=name) for name in ("fast", "slow", "reader"))
    reader.subscribe("work/#", 1)
    count = 100
    begun = time.monotonic()
    mids = [fast.send("work/fast", b"%08d" % number + bytes(180), 1) for number in range(count)]
    wait_until(lambda: node.metric("sterna_throttled_total") > 0, "the client has to wait")
    slow.publish("work/slow", b"in between", 1)
    assert not all(mid in fast.acknowledged for mid in mids), "the other one was served meanwhile"
    assert [fast.code_of(mid) for mid in mids] == [0] * count
    assert time.monotonic() - begun > 1.0, "a second's worth is let through at once, the rest at its pace"
    assert [m.payload[:8] for m in reader.receive(count + 1) if m.topic == "work/fast"] == [
        b"%08d" % number for number in range(count)
    ]


@pytest.mark.slow
def test_publishers_are_read_no_faster_than_the_journal_is_written(start_node: StartNode) -> None:
    node = start_node(f"{ADMIN}[limits]\nreceive_maximum = 65535\n[journal]\nretention_bytes = 100000000\n")
    grown = Grown(node)
    large = bytes(900_000)
    with ExitStack() as stack:
        publishers = []
        for number in range(4):
            opened = stack.enter_context(socket.create_connection(node.address, 60))
            opened.sendall(Connect(f"publisher-{number}", keep_alive=0).encode(5))
            publishers.append(opened)
        threads = [threading.Thread(target=pour, args=(opened, large, 60)) for opened in publishers]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            grown.look()
            time.sleep(0.005)
        for opened in publishers:
            wait_for_acknowledgements(opened, 60)
    assert node.metric("sterna_journal_next_offset") == 240
    # The journal keeps its newest 64 MiB in memory; beside that there is one group open and one being written.
    assert grown.most < 256 * MIB


def pour(opened: socket.socket, payload: bytes, count: int) -> None:
    for packet_id in range(1, count + 1):
        opened.sendall(Publish("bulk", payload, 1, packet_id=packet_id).encode(5))


def wait_for_acknowledgements(opened: socket.socket, count: int) -> None:
    """CONNACK first, then PUBACKs that say 0x10 (no subscriber), five or six bytes each; the last one will do."""
    found = b""
    while struct.pack(">H", count) not in found[-6:]:
        more = opened.recv(65536)
        assert more
        found += more


@pytest.mark.slow
@pytest.mark.parametrize("qos", [0, 1])
def test_a_subscriber_gets_every_retained_message_even_if_they_are_more_than_its_socket_holds(
    start_node: StartNode, dial: Callable[..., Raw], qos: int
) -> None:
    node = start_node(ADMIN)
    publisher = dial(node.port, "publisher")
    count = 20_000
    packets = [Publish(f"shelf/{n:05}", bytes(1000), 0, retain=True).encode(4) for n in range(count)]
    publisher.send(b"".join(packets))
    wait_until(lambda: node.metric("sterna_retained") >= count, "everything is retained")
    wait_until(node.is_at_rest, "no checkpoint is being written")
    grown = Grown(node)
    subscriber = dial(node.port, "subscriber", ("shelf/#", qos))
    wait_until(lambda: node.metric("sterna_clients_connected") == 2, "the node has nothing better to do")
    grown.look()
    assert grown.most < 12 * MIB
    size = len(packets[0])
    received = subscriber.exactly(size * count)
    assert sorted(received[at : at + size] for at in range(0, len(received), size)) == packets
    assert node.metric("sterna_publish_dropped_total", reason="slow-consumer") == 0


# -- what retention takes away --


@pytest.mark.slow
def test_what_retention_drops_from_a_waiting_session_is_counted_and_named(
    start_node: StartNode, dial: Callable[..., Raw], join: Join
) -> None:
    node = start_node(f"{ADMIN}[journal]\nsegment_bytes = 65536\nretention_bytes = 200000\n")
    sleeper = join(node, version=4, client_id="sleeper", persistent=True)
    sleeper.subscribe("work", 1)
    sleeper.close()
    publish_numbers(dial(node.port, "publisher"), "work", range(1000))
    publish_numbers(dial(node.port, "publisher"), "work", range(1000, 2000))
    assert node.stop() == 0
    node.restart()  # retention is looked at when a node starts, and every ten seconds
    wait_until(lambda: node.metric("sterna_publish_dropped_total", reason="retention") > 0, "retention is counted")
    dropped = int(node.metric("sterna_publish_dropped_total", reason="retention"))
    (told,) = node.events("retention dropped waiting messages")
    assert (told["client"], told["messages"]) == ("sleeper", dropped)
    awake = dial(node.port, "sleeper", clean=False)
    assert take_numbers(awake, "work", 2000 - dropped) == list(range(dropped, 2000))
    assert node.metric("sterna_publish_dropped_total", reason="retention") == dropped


# -- stopping --


@pytest.mark.slow
@pytest.mark.parametrize("qos", [1, 2])
def test_a_node_stopped_under_load_keeps_what_it_acknowledged(start_node: StartNode, join: Join, qos: int) -> None:
    node = start_node("")
    sleeper = join(node, client_id="sleeper", persistent=True)
    sleeper.subscribe("work/#", qos)
    sleeper.close()
    publishers = [join(node, version=4 + number % 2) for number in range(4)]
    stop = threading.Event()
    mids: list[dict[int, bytes]] = [{} for _ in publishers]

    def work(number: int) -> None:
        for count in range(20_000):
            if stop.is_set():
                return
            payload = b"%d-%d" % (number, count)
            mids[number].setdefault(publishers[number].send(f"work/{number}", payload, qos), payload)
            if count % 50 == 0:
                time.sleep(0.001)  # lets paho's own thread send

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(len(p.acknowledged) > 200 for p in publishers), "every publisher is at work")
    assert node.stop() == 0
    stop.set()
    for thread in threads:
        thread.join()
    for publisher in publishers:
        # A farewell may be lost to a client that is sending: its kernel is told that nobody reads any more.
        assert publisher.wait_for_end() in (None, 0x8B)
    kept = {mids[n][mid] for n, publisher in enumerate(publishers) for mid in publisher.acknowledged}
    assert len(kept) > 800
    node.restart()
    awake = join(node, client_id="sleeper", persistent=True)
    assert awake.session_present
    join(node).publish("work/end", b"end", qos)
    wait_until(lambda: awake.messages and awake.messages[-1].payload == b"end", "everything that waited")
    received = [bytes(m.payload) for m in awake.messages[:-1]]
    assert kept <= set(received)
    if qos == 2:
        assert len(received) == len(set(received))
    for number in range(4):
        counts = [int(p.split(b"-")[1]) for p in dict.fromkeys(received) if p.startswith(b"%d-" % number)]
        assert counts == sorted(counts), "in the order they were published"


@pytest.mark.parametrize("durability", ["fsync", "memory"])
def test_clients_are_told_that_the_node_stops(start_node: StartNode, join: Join, durability: str) -> None:
    node = start_node(f'[journal]\ndurability = "{durability}"\n')
    clients = [join(node) for _ in range(5)]
    assert node.stop() == 0
    assert [client.wait_for_end() for client in clients] == [0x8B] * 5


# -- connections --


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    toml = f"{ADMIN}[limits]\nconnect_s = 2.0\nconnections_per_address = 4\n"
    with LiveNode(tmp_path_factory.mktemp("narrow"), toml) as node:
        yield node


@pytest.mark.parametrize("spoken", [b"", Connect("half").encode(4)[:10]], ids=["nothing", "half a CONNECT"])
def test_a_connection_without_a_connect_is_closed_in_time(narrow: LiveNode, spoken: bytes) -> None:
    before = narrow.metric("sterna_connections_refused_total", reason="maximum-connect-time")
    with socket.create_connection(narrow.address, 60) as silent:
        silent.sendall(spoken)
        began = time.monotonic()
        silent.recv(100)
        assert time.monotonic() - began > 1.5
    assert narrow.metric("sterna_connections_refused_total", reason="maximum-connect-time") == before + 1


def test_a_connect_that_comes_byte_by_byte_does_not_buy_time(narrow: LiveNode) -> None:
    """All of it would take the better part of a minute."""
    with socket.create_connection(narrow.address, 60) as slow:
        slow.settimeout(0.05)
        for byte in Connect("byte-by-byte" * 80).encode(4):
            try:
                slow.sendall(bytes([byte]))
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("it was let in")
    assert any("no CONNECT in time" in event["reason"] for event in narrow.events("connection failed"))


def test_an_address_has_only_so_many_connections(narrow: LiveNode, join: Join) -> None:
    clients = [join(narrow) for _ in range(4)]
    before = narrow.metric("sterna_connections_refused_total", reason="connections-per-address")
    with socket.create_connection(narrow.address, 60) as one_too_many:
        assert is_closed(one_too_many)
    assert narrow.metric("sterna_connections_refused_total", reason="connections-per-address") == before + 1
    elsewhere = socket.create_connection(narrow.address, 60, source_address=("127.0.0.2", 0))
    with elsewhere:
        elsewhere.sendall(Connect("elsewhere").encode(4))
        assert elsewhere.recv(4)[3] == 0, "another address has its own number"
    clients[0].close()
    wait_until(lambda: narrow.metric("sterna_clients_connected") == 3, "one has left")
    clients[1].publish("still", b"here", 1)

    def is_let_in() -> bool:
        """The place of one that has left is free when its socket is closed."""
        with socket.create_connection(narrow.address, 60) as again, suppress(ConnectionError):
            again.sendall(Connect("again").encode(4))
            return again.recv(4)[3:] == b"\0"
        return False

    wait_until(is_let_in, "another one takes its place")


def is_closed(opened: socket.socket) -> bool:
    try:
        return opened.recv(1) == b""
    except ConnectionResetError:
        return True


def test_the_node_has_only_so_many_connections(start_node: StartNode, join: Join, version: int) -> None:
    node = start_node("[limits]\nconnections = 2\n")
    first, _second = join(node, version=version), join(node, version=version)
    with pytest.raises(Refused) as refusal:
        join(node, version=version)
    assert refusal.value.code in (0x97, 0x88), "quota exceeded; in 3.1.1: server unavailable"
    first.close()
    wait_until(lambda: len(node.events("client disconnected")) == 1, "one has left")
    assert join(node, version=version).subscribe("in", 0) == 0


# -- the admin port --


def test_the_admin_port_tells_health_readiness_and_numbers(node: LiveNode, join: Join, topic: str) -> None:
    assert node.ask("/healthz") == (200, "alive\n")
    assert node.ask("/readyz") == (200, "ready\n")
    assert node.ask("/nothing")[0] == 404
    client = join(node)
    client.subscribe(topic, 1)
    before = node.metric("sterna_publish_received_total")
    client.publish(topic, b"counted", 1)
    client.receive()
    assert node.metric("sterna_publish_received_total") == before + 1
    assert node.metric("sterna_clients_connected") >= 1
    assert node.metric("sterna_journal_next_offset") >= 1
    assert node.metric("process_resident_memory_bytes") > MIB


def test_nothing_is_ready_after_the_node_has_gone(tmp_path: Path) -> None:
    with LiveNode(tmp_path, ADMIN) as node:
        assert node.ask("/readyz")[0] == 200
        assert node.stop() == 0
        with pytest.raises(ConnectionRefusedError):
            node.ask("/readyz")
