"""Real brokers of other makes as part of a network: messages cross once each, in order, whatever is restarted."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from .certificates import Authority
from .clients import Refused
from .conftest import Join
from .exchange_matrix import ExchangeMatrix, Place
from .foreign_brokers import ALL, KINDS, LEAST, ForeignProcess, needs, present, why_missing
from .interworking_networks import (
    TABLE,
    Detour,
    InterworkingNetwork,
    Load,
    attached,
    check_that_it_is_quiet,
    view,
    wait_for_fences,
    wait_until_attached,
)
from .networks import LiveNetwork, hears
from .nodes import LiveNode, wait_until

#: Fences in ten seconds.
SILENCE = 20
#: Brokers that lose messages by themselves: Aedes drops what it takes for a repetition when messages of several QoS
#: overtake each other inside it, and hangs up on a bridge that answers a live retained message at QoS 2.
LOSSY = ("aedes",)


@pytest.mark.parametrize("strategy", ["subscription-flooding", "publication-flooding"])
def test_every_pair_of_brokers_and_nodes_exchanges_messages_once_and_in_order_and_then_it_is_quiet(
    tmp_path: Path, join: Join, strategy: str
) -> None:
    kinds = [kind for kind in present() if kind not in LOSSY]
    assert not ALL or len(present()) >= LEAST, [why_missing(kind) for kind in KINDS]
    kinds = kinds if len(kinds) > 1 else ["mosquitto", "mosquitto"]
    with ExitStack() as stack:
        brokers = {
            chr(ord("a") + place): stack.enter_context(ForeignProcess(kind, tmp_path / f"broker{place}"))
            for place, kind in enumerate(kinds)
        }
        network = stack.enter_context(InterworkingNetwork(tmp_path, brokers, strategy, more="retained_s = 2.0\n"))
        for node in network.nodes.values():
            wait_until_attached(node)
        places = {f"{name}-{one.kind}": Place(one.port, one.account) for name, one in brokers.items()}
        places["a-node"] = Place(network["a"].port, {})
        places["z-node"] = Place(network[max(network.nodes)].port, {})
        unshown = [name for name in places if name[2:] in KINDS and not _tells_what_it_retains(network[name[0]])]
        matrix = ExchangeMatrix(join, places, unshown)
        matrix.run(network.nodes.values())
        check_that_it_is_quiet(network, SILENCE)
        matrix.check_that_nothing_came()
        network.check_logs()


def _tells_what_it_retains(node: LiveNode) -> bool:
    abilities = view(node)["abilities"]
    return bool(abilities["retain_flag_kept"] or abilities["retained_for_wildcards"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_retained_message_reaches_later_subscribers_on_the_other_side(tmp_path: Path, join: Join, kind: str) -> None:
    needs(kind)
    with ForeignProcess(kind, tmp_path / "broker") as broker:
        there = join(broker.port, version=4, **broker.account)
        there.publish("r/before", b"before", 1, retain=True)
        with attached(tmp_path / "node", broker) as node:
            wait_until_attached(node)
            here = join(node, version=5)
            here.publish("r/ours", b"ours", 1, retain=True)
            later = join(broker.port, version=4, **broker.account)
            wait_until(lambda: view(node)["injected"] >= 1, "it went to the broker")
            later.subscribe("r/ours", 1)
            wait_until(
                lambda: any((message.topic, message.payload) == ("r/ours", b"ours") for message in later.messages),
                "it is retained there",
            )
            abilities = view(node)["abilities"]
            if abilities["retained_for_wildcards"] or abilities["loop_prevention"] == "bridge bit":
                known = join(node, version=5)
                known.subscribe("r/before", 1)
                assert [message.payload for message in known.receive(1)] == [b"before"]
                assert known.messages[0].retain
            if abilities["retain_flag_kept"]:
                there.publish("r/live", b"live", 1, retain=True)
                wait_until(lambda: view(node)["taken"] >= 1, "it came in")
                wait_for_fences(node, 1)
                late = join(node, version=5)
                late.subscribe("r/live", 1)
                assert [message.payload for message in late.receive(1)] == [b"live"]
            else:
                assert kind in ("nats", "amqtt", "rabbitmq", "activemq"), "only plain 3.1.1 loses the flag"


def run_sterna(*words: str) -> str:
    command = [sys.executable, "-m", "sterna", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.parametrize("kind", KINDS)
def test_abilities_are_found_and_shown(tmp_path: Path, kind: str) -> None:
    needs(kind)
    ways = dict.fromkeys(("mosquitto", "ejabberd"), "No Local and identity") | {"aedes": "bridge bit"}
    with ForeignProcess(kind, tmp_path / "b") as broker, attached(tmp_path / "n", broker) as node:
        wait_until_attached(node)
        abilities = view(node)["abilities"]
        assert abilities["loop_prevention"] == ways.get(kind, "expected echoes")
        assert abilities["qos"] == (1 if kind == "rabbitmq" else 2)
        assert node.metric("sterna_interworking_attached") == 1.0
        told = {name: str(abilities[name]) for name in ("mqtt", "qos", "loop_prevention")}
        assert node.metric("sterna_interworking_info", **told) == 1.0
        line = (
            f"foreign broker {broker.address}: attached (MQTT {told['mqtt']}, QoS {told['qos']}, {ways.get(kind, '')}"
        )
        for words in (["network"], ["neighbours", "list"]):
            assert line in run_sterna(*words, "--admin", node.admin)
        wait_for_fences(node, 2)
        if kind != "aedes":
            assert view(node)["round_trip_ms"] is not None


def test_kill_9_of_the_node_between_a_mosquitto_and_the_network_loses_nothing_and_repeats_nothing_at_qos_2(
    tmp_path: Path, join: Join
) -> None:
    with (
        ForeignProcess("mosquitto", tmp_path / "b0") as one,
        ForeignProcess("mosquitto", tmp_path / "b1") as other,
        InterworkingNetwork(tmp_path, {"a": one, "b": other}, "subscription-flooding") as network,
    ):
        for node in network.nodes.values():
            wait_until_attached(node)
        loads = [
            Load(join, source.port, target.port, qos, name)
            for name, source, target in (("ab", one, other), ("ba", other, one))
            for qos in (1, 2)
        ]
        for name in ("a", "b", "a"):
            enough = loads[0].sent + 100
            wait_until(lambda enough=enough: loads[0].sent >= enough, "messages are published")  # type: ignore[misc]
            network[name].kill()
            network[name].restart()
            wait_until_attached(network[name])
            network.wait_until_settled()
        for load in loads:
            load.check()
        assert all(view(node)["sessions_lost"] == 0 for node in network.nodes.values())


def test_a_broker_that_is_restarted_gets_what_waited_and_the_node_attaches_again(tmp_path: Path, join: Join) -> None:
    with ForeignProcess("mosquitto", tmp_path / "b") as broker, attached(tmp_path / "n", broker.address) as node:
        wait_until_attached(node)
        first = join(broker.port, version=4, client_id="lasting", persistent=True)
        first.subscribe("w/#", 2)
        here = join(node, version=5)
        first.close()
        broker.end(signal.SIGTERM)
        here.publish_all("w/x", [b"%d" % number for number in range(100)], 2)
        broker.start()
        wait_until_attached(node)
        second = join(broker.port, version=4, client_id="lasting", persistent=True)
        assert [int(message.payload) for message in second.receive(100)] == list(range(100))
        assert view(node)["sessions_lost"] == 0
        assert view(node)["trouble"] == ""


def test_a_broker_that_lost_its_session_is_reported_and_served_again(tmp_path: Path, join: Join) -> None:
    with ForeignProcess("mosquitto", tmp_path / "b", "") as broker, attached(tmp_path / "n", broker.address) as node:
        wait_until_attached(node)
        broker.end(signal.SIGKILL)
        for file in (tmp_path / "b").glob("*.db*"):
            file.unlink()
        here = join(node, version=5)
        here.publish_all("w/x", [b"%d" % number for number in range(50)], 1)
        broker.start()
        wait_until(lambda: view(node)["sessions_lost"] == 1, "the loss is counted", 120)
        wait_until(lambda: view(node)["injected"] >= 50, "what waited has gone over", 120)
        assert node.events("the foreign broker has lost its session")


def test_the_same_broker_attached_by_two_nodes_delivers_once_and_one_node_stands_by(tmp_path: Path, join: Join) -> None:
    with (
        ForeignProcess("mosquitto", tmp_path / "b") as broker,
        InterworkingNetwork(tmp_path, {"a": broker, "b": broker}, "subscription-flooding") as network,
    ):
        wait_until(lambda: view(network["b"])["state"] == "standing by", "b stands by", 120)
        wait_until_attached(network["a"])
        matrix = ExchangeMatrix(join, {"broker": Place(broker.port, {}), "b": Place(network["b"].port, {})})
        matrix.run([network["a"]])
        wait_for_fences(network["a"], 4)
        matrix.check_that_nothing_came()


def test_two_brokers_bridged_behind_our_backs_do_not_loop(tmp_path: Path, join: Join) -> None:
    with ForeignProcess("mosquitto", tmp_path / "b0") as one:
        bridge = f"connection x\naddress 127.0.0.1:{one.port}\ntopic # both 2\n"
        with (
            ForeignProcess("mosquitto", tmp_path / "b1", bridge) as other,
            InterworkingNetwork(tmp_path, {"a": one, "b": other}, "subscription-flooding") as network,
        ):
            wait_until(lambda: view(network["b"])["state"] == "standing by", "b stands by", 120)
            wait_until_attached(network["a"])
            ports = {"one": one.port, "other": other.port, "b": network["b"].port}
            matrix = ExchangeMatrix(join, {name: Place(port, {}) for name, port in ports.items()})
            matrix.run([network["a"]])
            wait_for_fences(network["a"], 4)
            matrix.check_that_nothing_came()


# -- bad input --


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def http_port() -> Iterator[int]:
    """A port that answers everything as a web server does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def _troubles(node: LiveNode, wanted: str) -> list[dict[str, Any]]:
    """Three tries fail for this reason."""

    def found() -> list[dict[str, Any]]:
        return [event for event in node.events("not attached") if wanted in event["reason"]]

    wait_until(lambda: len(found()) >= 3, f"it is said that {wanted}; it was: {node.events('not attached')}", 120)
    assert "Traceback" not in node.log()
    return found()


def test_a_port_that_speaks_http_is_named_and_tried_less_and_less_often(tmp_path: Path, http_port: int) -> None:
    with attached(tmp_path, f"127.0.0.1:{http_port}") as node:
        troubles = _troubles(node, "the port speaks HTTP")
        pauses = [event["next_try_s"] for event in troubles[:3]]
        assert pauses[0] < pauses[1] < pauses[2], "0.2, 0.4 and 0.8 s, give or take a quarter"


def test_a_broker_that_never_answers_is_named(tmp_path: Path, silent_port: int) -> None:
    with attached(tmp_path, f"127.0.0.1:{silent_port}", "answer_s = 0.3") as node:
        _troubles(node, "CONNACK did not come in 0.3 s")


def test_a_wrong_password_is_named(tmp_path: Path) -> None:
    (tmp_path / "mosquitto-passwords").write_text("")
    (tmp_path / "secret").write_text("wrong\n")
    more = f"allow_anonymous false\npassword_file {tmp_path}/mosquitto-passwords\n"
    table = f'user = "sterna"\npassword_file = "{tmp_path}/secret"'
    with (
        ForeignProcess("mosquitto", tmp_path / "b", more) as broker,
        attached(tmp_path / "n", broker.address, table) as node,
    ):
        _troubles(node, "check user and password_file in [interworking]")


def test_a_broker_that_lets_the_account_read_nothing_is_named(tmp_path: Path) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic write #\n")
    with (
        ForeignProcess("mosquitto", tmp_path / "b", f"acl_file {rules}\n") as broker,
        attached(tmp_path / "n", broker.address, "answer_s = 1.0") as node,
    ):
        _troubles(node, "may the account read there?")


def test_the_node_itself_is_no_foreign_broker_whatever_it_is_called(tmp_path: Path) -> None:
    detour = Detour()
    toml = TABLE.format(broker=f'broker = "127.0.0.1:{detour.port}"\n', more="")
    node = LiveNode(tmp_path, toml + '[[listener]]\nbind = "127.0.0.1:0"\n')
    try:
        node.launch()
        wait_until(node.is_up, "the node listens")
        detour.leads_to = node.port
        _troubles(node, "this is the node itself")
    finally:
        node.kill()
        detour.close()


def test_another_node_of_the_network_is_no_foreign_broker(tmp_path: Path) -> None:
    with LiveNetwork(tmp_path, ["ab"]) as network:
        c = network.make("c", [network.door("b")], "subscription-flooding")
        c.file.write_text(
            c.file.read_text() + f'\n[interworking]\nbroker = "127.0.0.1:{network["a"].port}"\nfence_s = 0.5\n'
        )
        network.nodes["c"] = c
        c.start()
        wait_until(lambda: hears(c, network.nodes), "c hears the others", 120)
        wait_until(
            lambda: any("node of our own network" in event["reason"] for event in c.events("not attached")),
            "it is found out",
            120,
        )


@pytest.mark.parametrize("client_id", ["$interwork/live", "$relayed/live/somebody"])
def test_a_client_cannot_take_the_name_of_a_foreign_broker_or_of_a_client_of_one(
    node: LiveNode, join: Join, client_id: str
) -> None:
    with pytest.raises(Refused, match="0x85"):
        join(node, version=5, client_id=client_id)


# -- TLS and passwords --


def test_tls_with_certificates_of_both_and_a_password(tmp_path: Path, join: Join) -> None:
    authority = Authority(tmp_path / "ca", "brokers")
    server, client = authority.issue("server"), authority.issue("node")
    more = (
        f"cafile {authority.file}\ncertfile {server[0]}\nkeyfile {server[1]}\nrequire_certificate true\n"
        f"allow_anonymous false\npassword_file {tmp_path}/passwords\n"
    )
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(tmp_path / "passwords"), "sterna", "open"], check=True)
    (tmp_path / "secret").write_text("open\n")
    account = f'user = "sterna"\npassword_file = "{tmp_path}/secret"\n'
    secure = f'tls = true\nca = "{authority.file}"\ncertificate = "{client[0]}"\nkey = "{client[1]}"\n'
    with ForeignProcess("mosquitto", tmp_path / "b", more) as broker:
        with attached(tmp_path / "n", broker.address, account + secure) as node:
            wait_until_attached(node)
            settings = {"username": "sterna", "password": "open", "tls": authority.context(client)}
            there, here = join(broker.port, version=4, **settings), join(node, version=5)
            there.subscribe("tls", 1)
            here.publish("tls", b"word", 1)
            assert [message.payload for message in there.receive(1)] == [b"word"]
        stranger = Authority(tmp_path / "other", "strangers")
        wrong = f'tls = true\nca = "{stranger.file}"\n'
        with attached(tmp_path / "w", broker.address, account + wrong) as node:
            _troubles(node, "the broker's certificate is not believed")
