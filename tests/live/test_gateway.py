"""Real clients behind a real gateway: they get what they would get without it, and never hear of a dead node."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aiomqtt
import pytest

from conformance.packets import Connect
from sterna.adaptation.draining import DrainingTuning
from sterna.adaptation.picture import WorkerNodeState
from sterna.broker.access.passwords import hash_password
from sterna.runtime.adaptation.node_keeper import NodeKeeper, NodeLook
from sterna.runtime.adaptation.worker_settings import WorkerTable

from .certificates import Authority
from .clients import Refused, Will
from .conftest import Join
from .gateways import LiveGateway
from .networks import LiveNetwork
from .nodes import LiveNode, wait_until
from .steadfast import Steadfast

KILLS = 5
FILTER = "kept/#"


@pytest.fixture(scope="module")
def gateway(node: LiveNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    """In front of the node that tests share."""
    toml = '[[listener]]\nbind = "127.0.0.1:0"\n[[listener]]\nbind = "127.0.0.1:0"\ntransport = "websocket"\n'
    with LiveGateway(tmp_path_factory.mktemp("gateway"), [node.port], toml) as gateway:
        yield gateway


def test_paho_talks_through_it(gateway: LiveGateway, join: Join, version: int, topic: str) -> None:
    subscriber = join(gateway, version=version)
    publisher = join(gateway, version=version)
    subscriber.subscribe(f"{topic}/#", qos=2)
    for qos in (0, 1, 2):
        publisher.publish(f"{topic}/{qos}", b"hello", qos=qos)
    got = subscriber.receive(3)
    assert [(message.topic, message.qos) for message in got] == [(f"{topic}/{qos}", qos) for qos in (0, 1, 2)]


def test_a_browser_talks_through_it(gateway: LiveGateway, join: Join, topic: str) -> None:
    client = join(gateway.ports[1], transport="websockets")
    client.subscribe(topic, qos=1)
    client.publish(topic, b"hello", qos=1)
    assert client.payloads(1)[0] == b"hello"


def test_aiomqtt_and_mosquitto_talk_through_it(gateway: LiveGateway, topic: str) -> None:
    async def listen() -> bytes:
        async with aiomqtt.Client("127.0.0.1", gateway.port) as client:
            await client.subscribe(topic, qos=2)
            said = await asyncio.create_subprocess_exec(
                "mosquitto_pub", "-p", str(gateway.port), "-t", topic, "-m", "hello", "-q", "2"
            )
            assert await said.wait() == 0
            async for message in client.messages:
                assert isinstance(message.payload, bytes)
                return message.payload
        raise AssertionError

    assert asyncio.run(asyncio.wait_for(listen(), 60)) == b"hello"


def test_a_client_that_is_cut_off_leaves_its_will_and_one_that_says_goodbye_does_not(
    gateway: LiveGateway, node: LiveNode, join: Join, version: int, topic: str
) -> None:
    watcher = join(node, version=version)
    watcher.subscribe(topic, qos=1)
    polite = join(gateway, version=version, will=Will(topic, b"polite", 1))
    polite.close()
    abrupt = join(gateway, version=version, will=Will(topic, b"abrupt", 1))
    abrupt.vanish()
    assert watcher.payloads(1)[0] == b"abrupt"
    watcher.publish(topic, b"nothing else came", qos=1)
    assert watcher.payloads(2) == [b"abrupt", b"nothing else came"]


def test_sessions_that_were_not_to_last_do_not(
    gateway: LiveGateway, node: LiveNode, join: Join, version: int, topic: str, client_id: str
) -> None:
    client = join(gateway, version=version, client_id=client_id)
    client.subscribe(topic, qos=1)
    client.close()
    wait_until(lambda: client_id not in node.ask("/sessions")[1], "the session has ended")
    again = join(gateway, version=version, client_id=client_id, persistent=True)
    assert not again.session_present


def test_what_a_node_refuses_is_refused(
    start_node: Callable[[str], LiveNode], tmp_path: Path, join: Join, version: int
) -> None:
    guarded = start_node(
        "[[listener]]\nbind = '127.0.0.1:0'\nanonymous = false\n[authentication]\npassword_file = '"
        + str(password_file(tmp_path))
        + "'\n"
    )
    with LiveGateway(tmp_path / "gateway", [guarded.port]) as gateway:
        with pytest.raises(Refused):
            join(gateway, version=version, username="alice", password="wrong")
        join(gateway, version=version, username="alice", password="secret")


def password_file(directory: Path) -> Path:
    file = directory / "passwords"
    file.write_text(hash_password("alice", "secret", random_bytes=os.urandom) + "\n")
    return file


def test_tls_on_both_sides(start_node: Callable[[str], LiveNode], tmp_path: Path, join: Join, topic: str) -> None:
    authority = Authority(tmp_path, "plant")
    certificate, key = authority.issue("server")
    listener = f"[[listener]]\nbind = '127.0.0.1:0'\ncertificate = '{certificate}'\nkey = '{key}'\n"
    node = start_node(listener)
    upstream = f"[upstream]\nnodes = ['127.0.0.1:{node.port}']\nca = '{tmp_path / 'ca.pem'}'\n"
    with LiveGateway(tmp_path / "gateway", [], listener + upstream) as gateway:
        client = join(gateway, tls=authority.context())
        client.subscribe(topic, qos=1)
        client.publish(topic, b"hello", qos=1)
        assert client.payloads(1)[0] == b"hello"


def test_strangers_cost_it_nothing(gateway: LiveGateway, join: Join, topic: str) -> None:
    dice = random.Random(7)
    strangers = [socket.create_connection(gateway.address, 60) for _ in range(50)]
    for stranger in strangers:
        stranger.sendall(dice.randbytes(dice.randrange(1, 300)))
    client = join(gateway)
    client.subscribe(topic, qos=1)
    client.publish(topic, b"hello", qos=1)
    assert client.payloads(1)[0] == b"hello"
    for stranger in strangers:
        stranger.close()


def test_it_stops_when_told_and_ends_what_it_kept(
    start_node: Callable[[str], LiveNode], tmp_path: Path, join: Join, version: int
) -> None:
    node = start_node('[admin]\nbind = "127.0.0.1:0"\n')
    with LiveGateway(tmp_path / "gateway", [node.port]) as gateway:
        join(gateway, version=version, client_id="here")
        assert "here" in node.ask("/sessions")[1]
        assert gateway.stop() == 0
        wait_until(lambda: "here" not in node.ask("/sessions")[1], "the session has ended")


class Household:
    """Publishers and subscribers of both versions behind one gateway, who keep the books."""

    def __init__(self, gateway: LiveGateway) -> None:
        self.subscribers = [Steadfast(f"sub-{version}-{qos}", version) for version in (4, 5) for qos in (1, 2)]
        self.publishers = [Steadfast(f"pub-{version}-{qos}", version) for version in (4, 5) for qos in (1, 2)]
        self.published = 0
        for client in self.everybody:
            client.connect(gateway.address)
        self.until(lambda: all(client.is_connected for client in self.everybody), "all are connected")
        for client in self.subscribers:
            client.subscribe(FILTER, int(client.client_id[-1]))
        self.until(lambda: not any(client.is_asking for client in self.subscribers), "all are subscribed")

    @property
    def everybody(self) -> list[Steadfast]:
        return self.subscribers + self.publishers

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for client in self.publishers:
                if client.backlog < 5:
                    qos = int(client.client_id[-1])
                    client.publish(f"kept/{client.client_id}", b"%d" % self.published, qos)
                    self.published += 1
            self._pump()

    def _pump(self) -> None:
        for client in self.everybody:
            client.pump()
        time.sleep(0.001)

    def until(self, holds: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline, f"waited in vain: {what}"
            self._pump()

    def finish(self) -> None:
        self.until(lambda: all(client.is_idle for client in self.publishers), "everything is acknowledged")
        wanted = self.published
        self.until(
            lambda: all(len({one.payload for one in client.given}) == wanted for client in self.subscribers),
            "everything has arrived",
        )

    def close(self) -> None:
        for client in self.everybody:
            client.leave()

    def check(self) -> None:
        for client in self.everybody:
            assert client.connections == 1, f"{client.client_id} noticed"
        for client in self.subscribers:
            for publisher in self.publishers:
                got = [
                    int(one.payload)
                    for one in client.given
                    if one.topic.endswith(publisher.client_id) and (one.qos == 2 or publisher.client_id[-1] == "1")
                ]
                once = list(dict.fromkeys(got))
                assert once == sorted(once), f"{client.client_id} from {publisher.client_id}: out of order"
            exactly = [one.payload for one in client.given if one.qos == 2]
            assert len(exactly) == len(set(exactly)), f"{client.client_id}: QoS 2 twice"


@pytest.mark.slow
def test_clients_never_hear_of_a_node_that_is_killed_again_and_again(
    start_node: Callable[[str], LiveNode], tmp_path: Path
) -> None:
    node = start_node('[journal]\ndurability = "os"\n[limits]\ninflight = 16\n')
    dice = random.Random(3)
    with LiveGateway(tmp_path / "gateway", [node.port], "[patience]\nretry_max_s = 0.5\n") as gateway:
        household = Household(gateway)
        for number in range(KILLS):
            household.run(dice.uniform(0.3, 1.2))
            if number == 2:
                assert node.stop() == 0
            else:
                node.kill()
            household.run(dice.uniform(0.0, 0.5))
            node.launch()
            household.until(node.is_up, "the node is back")
            household.until(lambda: gateway.metric("sterna_gateway_attached") == 8, "everybody has a node again")
        household.run(1.0)
        while household.published <= 500:
            household.run(0.1)
        household.finish()
        household.close()
        household.check()
        assert gateway.metric("sterna_gateway_losses_total") >= 8 * KILLS
        assert gateway.metric("sterna_gateway_sessions_lost_total") == 0
        repeated = sum(len(client.given) - household.published for client in household.subscribers)
        print(f"{household.published} published, {KILLS} lives lost, {repeated} repeated at QoS 1")


@pytest.mark.slow
def test_a_session_is_found_at_another_node_of_the_network(tmp_path: Path) -> None:
    with LiveNetwork(tmp_path, ["ab"]) as network:
        ports = [network.nodes[name].port for name in "ab"]
        client = Steadfast("wanderer", 5)
        with LiveGateway(tmp_path / "first", ports) as gateway:
            connect_and_settle(client, gateway)
        with LiveGateway(tmp_path / "second", ports[::-1]) as gateway:
            connect_and_settle(client, gateway)  # it fails if its session is gone


def connect_and_settle(client: Steadfast, gateway: LiveGateway) -> None:
    client.connect(gateway.address)
    deadline = time.monotonic() + 60
    try:
        while not client.is_connected and time.monotonic() < deadline:
            client.pump()
            time.sleep(0.01)
        assert client.is_connected
    finally:
        client.vanish()


HELLO = b"\x00\x0c\x94\x01\xa2gw\x01\xa51.2.3"
"""[1, "gw", 1, "1.2.3"] in MessagePack, as a packet of type 0."""


@pytest.mark.parametrize("is_listed", [True, False])
def test_only_addresses_that_are_listed_may_say_that_they_are_gateways(
    start_node: Callable[[str], LiveNode], is_listed: bool
) -> None:
    node = start_node("" if is_listed else '[mqtt]\ngateways = ["192.0.2.7"]\n')
    with socket.create_connection(node.address, 60) as stranger:
        stranger.sendall(HELLO + Connect("stranger").encode(4))
        assert stranger.recv(4) == (b"\x20\x02\x00\x00" if is_listed else b"")
    failures = [event["reason"] for event in node.events("connection failed")]
    assert failures == (
        [] if is_listed else ["it says that it is a gateway, and its address is not in gateways of [mqtt]"]
    )


def test_a_gateway_that_is_not_listed_is_served_as_its_clients_are(
    start_node: Callable[[str], LiveNode], tmp_path: Path, join: Join, version: int, topic: str
) -> None:
    node = start_node('[mqtt]\ngateways = ["192.0.2.7"]\n')
    with LiveGateway(tmp_path / "gateway", [node.port]) as gateway:
        client = join(gateway.port, version=version)
        client.subscribe(topic, 1)
        client.publish(topic, b"through", 1)
        assert client.payloads() == [b"through"]


def test_a_client_of_3_1_keeps_its_session_through_the_loss_of_a_node(
    start_node: Callable[[str], LiveNode], tmp_path: Path, join: Join, topic: str, client_id: str
) -> None:
    """3.1 has no Session Present, by which a gateway knows whether a node has kept it."""
    node = start_node("")
    with LiveGateway(tmp_path / "gateway", [node.port]) as gateway:
        client = join(gateway.port, version=3, client_id=client_id)
        client.subscribe(topic, 1)
        node.kill()
        node.restart()
        publisher = join(node, version=5)
        publisher.publish(topic, b"after", 1)
        assert client.payloads() == [b"after"]
        assert not gateway.events("session lost")


def test_a_worker_sees_that_one_gateway_is_busy_and_another_idle(node: LiveNode, join: Join, tmp_path: Path) -> None:
    """A worker's own look at a real node: the busy gateway weighs more by deliveries, and its topic is told."""

    def named(name: str) -> LiveGateway:
        return LiveGateway(tmp_path / name, [node.port], f'[gateway]\nname = "{name}"\n')

    async def look() -> NodeLook:
        worker = WorkerTable(name="w", host="command", status=("true",), admin=node.admin, data=tmp_path)
        keeper = NodeKeeper(worker, DrainingTuning())
        keeper.life.state = WorkerNodeState.SERVING
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            talker.publish("busy/topic/1", b"x", qos=1)
            await keeper.look()
            if keeper.seen.flows and max(one.deliveries_per_s for one in keeper.seen.gateways) > 0.2:
                break
            await asyncio.sleep(0.1)
        return keeper.seen

    with named("busy") as busy, named("idle") as idle:
        talker, listener = join(busy), join(idle)
        talker.subscribe("busy/topic/#", qos=1)
        listener.subscribe("nothing", qos=0)
        seen = asyncio.run(look())
        served = {one.gateway: one for one in seen.gateways}
        assert served.keys() >= {"busy", "idle"}
        assert served["busy"].deliveries_per_s > 0.2 > served["idle"].deliveries_per_s == 0
        assert seen.bytes_per_s > 0
        places = [one.gateway for one in seen.gateways]
        (flow,) = [one for one in seen.flows if one.topic == "busy/topic"]
        assert [places[place] for place, _ in flow.publishers] == ["busy"]
        assert [places[place] for place in flow.subscribers] == ["busy"]
