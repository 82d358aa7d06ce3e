"""Clients that reach real brokers of other makes through a node: relayed as they are, and their messages cross once."""

from __future__ import annotations

import signal
import socket
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sterna.measure.harness.ports import free_port

from .certificates import Authority
from .clients import Paho, Refused, Will
from .conftest import Join
from .foreign_brokers import KINDS, ForeignProcess, needs, present
from .interworking_networks import view, wait_for_fences, wait_until_attached
from .networks import LiveNetwork
from .nodes import wait_until
from .proxy_networks import ProxiedPair, ProxyNetwork, before, proxy
from .test_interworking import http_port as http_port

MESSAGES = 10


@pytest.mark.parametrize("version", [4, 5])
def test_clients_of_several_brokers_and_of_nodes_hear_each_other_once_and_in_order(
    tmp_path: Path, join: Join, version: int
) -> None:
    kinds = present() if version == 4 else ["mosquitto", "mosquitto"]
    print(f"brokers: {', '.join(kinds)}; missing: {', '.join(kind for kind in KINDS if kind not in kinds) or 'none'}")
    kinds = kinds if len(kinds) > 1 else ["mosquitto", "mosquitto"]
    with ExitStack() as stack:
        brokers = {
            chr(ord("a") + place): stack.enter_context(ForeignProcess(kind, tmp_path / f"broker{place}"))
            for place, kind in enumerate(kinds)
        }
        network = stack.enter_context(ProxyNetwork(tmp_path, brokers))
        for node in network.nodes.values():
            wait_until_attached(node)
        places = {f"{name}-{one.kind}": (network[name].ports[0], one.account) for name, one in brokers.items()}
        places["node"] = network[max(network.nodes)].ports[1], {}
        clients = {name: join(port, version=version, **account) for name, (port, account) in places.items()}
        for client in clients.values():
            client.subscribe("m/#", 2)
        for source, client in clients.items():
            for qos in (0, 1, 2):
                for number in range(MESSAGES):
                    client.publish(f"m/{source}/{qos}", f"{number}", qos)
        for name, client in clients.items():
            wanted = len(clients) * 3 * MESSAGES
            client.receive(wanted, 120)
            found: dict[str, list[int]] = defaultdict(list)
            for message in client.messages:
                found[message.topic].append(int(message.payload))
            assert found == {f"m/{one}/{qos}": list(range(MESSAGES)) for one in clients for qos in (0, 1, 2)}, name
        _check_that_it_is_quiet(network, clients)


def _check_that_it_is_quiet(network: LiveNetwork, clients: dict[str, Paho]) -> None:
    def counts() -> list[Any]:
        views = [view(node) for node in network.nodes.values()]
        return [(found["taken"], found["injected"], found["proxy"]["witnessed"]) for found in views] + [
            len(client.messages) for client in clients.values()
        ]

    earlier = counts()
    for node in network.nodes.values():
        wait_for_fences(node, 4)
        assert proxy(node)["not_witnessed"] == 0
        assert proxy(node)["waiting"] == 0
    assert counts() == earlier


@pytest.mark.parametrize("version", [4, 5])
def test_retained_messages_wills_and_lasting_sessions_work_over_both_brokers(
    tmp_path: Path, join: Join, version: int
) -> None:
    with ExitStack() as stack:
        pair = ProxiedPair(stack, tmp_path)
        _check_one_way(join, pair.port("a"), pair.port("b"), version, "ab")
        _check_one_way(join, pair.port("b"), pair.port("a"), version, "ba")


def _check_one_way(join: Join, here: int, there: int, version: int, name: str) -> None:
    source = join(here, version=version)
    for qos in (0, 1, 2):
        source.publish(f"{name}/r/{qos}", f"{qos}", qos, retain=True)
    source.publish(f"{name}/r/gone", b"soon", 1, retain=True)
    source.publish(f"{name}/r/gone", b"", 1, retain=True)
    lasting = join(there, version=version, client_id=f"{name}-lasting", persistent=True)
    lasting.subscribe(f"{name}/l/#", 2)
    lasting.close()
    for qos in (1, 2):
        source.publish(f"{name}/l/{qos}", f"{qos}", qos)
    watcher = join(there, version=version)
    watcher.subscribe(f"{name}/w/+", 2)
    join(here, version=version, will=Will(f"{name}/w/vanished", b"will", 2)).vanish()
    watcher.receive(1)
    join(here, version=version, will=Will(f"{name}/w/left", b"will", 2)).close()
    source.publish(f"{name}/w/last", b"end", 2)
    watcher.receive(2)
    assert [message.topic for message in watcher.messages] == [f"{name}/w/vanished", f"{name}/w/last"]
    again = join(there, version=version, client_id=f"{name}-lasting", persistent=True)
    assert again.session_present
    assert sorted(again.payloads(2)) == [b"1", b"2"]
    late = join(there, version=version)
    late.subscribe(f"{name}/r/#", 2)
    assert sorted(late.payloads(3)) == [b"0", b"1", b"2"]
    assert all(message.retain for message in late.messages)


def test_only_what_its_clients_want_goes_to_a_broker(tmp_path: Path, join: Join) -> None:
    with ExitStack() as stack:
        pair = ProxiedPair(stack, tmp_path, "only_wanted = true\n")
        past_the_node = join(pair.brokers["b"].port, version=4)
        past_the_node.subscribe("x/#", 1)
        lasting = join(pair.port("b"), version=4, client_id="lasting", persistent=True)
        lasting.subscribe("x/wanted/#", 1)
        lasting.close()
        pair.network["b"].kill()
        pair.network["b"].restart()
        wait_until_attached(pair.network["b"])
        assert view(pair.network["b"])["wanted"] == ["x/wanted/#"]
        source = join(pair.port("a"), version=5)
        for number in range(100):
            source.publish(f"x/{('wanted', 'other')[number % 2]}/{number}", b"", number % 3)
        again = join(pair.port("b"), version=4, client_id="lasting", persistent=True)
        wait_until(lambda: view(pair.network["b"])["injected"] >= 50, "what is wanted goes there", 120)
        for node in pair.network.nodes.values():
            wait_for_fences(node, 2)
        assert {message.topic.split("/")[1] for message in past_the_node.messages} == {"wanted"}
        assert len(past_the_node.messages) == 50
        assert len(again.messages) >= sum(number % 3 > 0 for number in range(0, 100, 2))


_RULES = "user sterna\ntopic readwrite #\n\nuser guest\ntopic readwrite open/#\n"


@pytest.mark.parametrize("version", [4, 5])
def test_of_a_thousand_forbidden_publications_none_reaches_another_broker_and_of_a_thousand_allowed_all_do(
    tmp_path: Path, join: Join, version: int
) -> None:
    rules = tmp_path / "acl"
    rules.write_text(_RULES)
    with (
        ForeignProcess("mosquitto", tmp_path / "broker-a", f"acl_file {rules}\n") as broker,
        ForeignProcess("mosquitto", tmp_path / "broker-b") as other,
        ProxyNetwork(tmp_path, {"a": broker, "b": other}, 'user = "sterna"') as network,
    ):
        for one in network.nodes.values():
            wait_until_attached(one)
        node = network["a"]
        elsewhere = join(other.port, version=5)
        elsewhere.subscribe("#", 2)
        guest = join(node.port, version=version, username="guest")
        mids = []
        for number in range(1000):
            qos = number % 3
            mids += [
                (guest.send("closed/x", b"%d" % number, qos), qos),
                (guest.send("open/x", b"%d" % number, qos), qos),
            ]
        for mid, qos in mids:
            if qos:
                guest.code_of(mid)
        guest.publish("open/end", b"", 1)
        wait_until(lambda: any(one.topic == "open/end" for one in elsewhere.messages), "the end arrives")
        for one in network.nodes.values():
            wait_for_fences(one, 2)
        found = Counter(message.topic for message in elsewhere.messages if not message.topic.startswith("sterna/"))
        assert found == {"open/x": 1000, "open/end": 1}
        if version == 5:
            refused = sum(guest.acknowledged[mid] >= 0x80 for mid, qos in mids if qos == 1)
            assert refused == 333, "the broker's own word reaches the client (paho does not read it in PUBREC)"
            assert proxy(node)["not_witnessed"] == 0
        else:
            assert proxy(node)["not_witnessed"] == 666, "3.1.1 has no word for it, so the witness tells"


def test_a_password_is_the_brokers_to_judge_and_the_client_hears_its_answer(tmp_path: Path, join: Join) -> None:
    (tmp_path / "passwords").write_text("")
    more = f"allow_anonymous true\nper_listener_settings false\npassword_file {tmp_path}/passwords\n"
    with (
        ForeignProcess("mosquitto", tmp_path / "b", more) as broker,
        before(tmp_path / "n", broker.address) as node,
    ):
        wait_until_attached(node)
        for version, code in ((4, 0x87), (5, 0x87)):
            with pytest.raises(Refused) as refused:
                join(node.port, version=version, username="nobody", password="guess")
            assert refused.value.code == code, "Mosquitto says: not authorised"
        with pytest.raises(Refused) as refused:
            join(node.port, version=5, client_id="sterna-alone-live")
        assert refused.value.code == 0x85, "the node's own name at the broker is no client's"
        join(node.port, version=5).publish("x", b"", 1)


def test_tls_both_ways(tmp_path: Path, join: Join) -> None:
    authority = Authority(tmp_path / "ca", "all")
    (certificate, key), (mine, mine_key) = authority.issue("server"), authority.issue("node")
    listener = f"cafile {authority.file}\ncertfile {certificate}\nkeyfile {key}\nrequire_certificate true\n"
    table = f'tls = true\nca = "{authority.file}"\ncertificate = "{mine}"\nkey = "{mine_key}"\n'
    own = f'[[listener]]\nbind = "127.0.0.1:0"\ncertificate = "{certificate}"\nkey = "{key}"\n'
    with (
        ForeignProcess("mosquitto", tmp_path / "b", listener) as broker,
        before(tmp_path / "n", broker.address, table, own) as node,
    ):
        wait_until_attached(node)
        clients = [join(node.port, version=version, tls=authority.context()) for version in (4, 5)]
        for client in clients:
            client.subscribe("t", 1)
        clients[0].publish("t", b"x", 1)
        for client in clients:
            assert client.payloads() == [b"x"]
        assert proxy(node)["witnessed"] == 1


def test_groups_span_the_brokers_and_relayed_clients_compute_if_the_node_may_serve_them(
    tmp_path: Path, join: Join
) -> None:
    with ExitStack() as stack:
        pair = ProxiedPair(stack, tmp_path, "extras = true\n")
        members = [join(pair.port(name), version=version) for name, version in (("a", 4), ("b", 5), ("b", 4))]
        for member in members:
            assert member.subscribe("$share/crew/job/#", 2) == 2
            member.subscribe("other", 1)
        lasting = join(pair.port("a"), version=5, client_id="lasting", persistent=True)
        lasting.subscribe("$share/alone/job/#", 2)
        lasting.close()
        source = join(pair.port("a"), version=4)
        for number in range(60):
            source.publish(f"job/{number % 3}", b"%d" % number, number % 3)
        source.publish("other", b"end", 1)
        wanted = sorted(b"%d" % number for number in range(60))

        def work() -> list[bytes]:
            return sorted(bytes(one.payload) for member in members for one in member.messages if one.topic != "other")

        wait_until(lambda: len(work()) >= 60, "all jobs are taken")
        for node in pair.network.nodes.values():
            wait_for_fences(node, 2)
        assert work() == wanted, "each job went to one member, at whichever broker"
        assert sum(len(member.messages) > 1 for member in members) > 1
        again = join(pair.port("a"), version=5, client_id="lasting", persistent=True)
        again.receive(40)
        assert sorted(again.payloads(40)) == sorted(b"%d" % number for number in range(60) if number % 3)
        meter = join(pair.port("b"), version=4)
        assert meter.subscribe("$SUM/weight/+", 1) == 1
        source.publish("weight/x", b"1", 1)
        source.publish("weight/y", b"2", 1)
        wait_until(lambda: any(float(message.payload) == 3 for message in meter.messages), "the sum arrives")


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_is_exchanged_for_another_while_its_clients_stay_connected(
    tmp_path: Path, join: Join, kind: str
) -> None:
    needs(kind)
    old, new = ForeignProcess("mosquitto", tmp_path / "old"), ForeignProcess(kind, tmp_path / "new")
    new.port = old.port
    with ExitStack() as stack:
        stack.callback(new.end)
        stack.enter_context(old)
        node = stack.enter_context(before(tmp_path / "n", new))
        wait_until_attached(node)
        relayed = join(node.port, version=4, client_id="stays", persistent=True, **new.account)
        relayed.subscribe("down/#", 1)
        here = join(node.ports[1], version=5)
        here.subscribe("up/#", 1)
        old.end(signal.SIGTERM)
        mid = relayed.send("up/x", b"meanwhile", 1)
        here.publish("down/x", b"for you", 1)
        new.start()
        relayed.code_of(mid)
        assert here.payloads() == [b"meanwhile"]
        assert relayed.payloads() == [b"for you"], "its subscription moved with it"
        assert relayed.client.is_connected()
        assert view(node)["sessions_lost"] == 1


def test_the_will_of_a_client_that_is_lost_while_the_broker_is_away_is_published_once(
    tmp_path: Path, join: Join
) -> None:
    with ForeignProcess("mosquitto", tmp_path / "b") as broker, before(tmp_path / "n", broker.address) as node:
        wait_until_attached(node)
        here = join(node.ports[1], version=5)
        here.subscribe("w/#", 2)
        dying = [join(node.port, version=version, will=Will(f"w/{version}", b"will", 1)) for version in (4, 5)]
        broker.end(signal.SIGKILL)
        wait_until(lambda: view(node)["state"] != "attached", "it is gone")
        for client in dying:
            client.vanish()
        broker.start()
        wait_until(lambda: len(here.messages) >= 2, "both wills come", 120)
        wait_for_fences(node, 2)
        assert sorted(message.topic for message in here.messages) == ["w/4", "w/5"]
        wait_until(lambda: proxy(node)["clients"] == 0, "nobody is left")


# -- bad input --


@pytest.mark.parametrize(("version", "code"), [(4, 0x88), (5, 0x88)])
def test_a_client_hears_that_there_is_no_broker_and_the_log_says_why(
    tmp_path: Path, join: Join, version: int, code: int
) -> None:
    with before(tmp_path, f"127.0.0.1:{free_port()}", "[limits]\nconnect_s = 1.0") as node:
        with pytest.raises(Refused) as refused:
            join(node.port, version=version)
        assert refused.value.code == code, "paho tells CONNACK 3 of 3.1.1 by this code"
        wait_until(lambda: node.events("not attached"), "the reason is logged")
        assert "is the broker running?" in node.events("not attached")[0]["reason"]
        assert "Traceback" not in node.log()


def test_clients_are_not_relayed_to_a_port_that_speaks_http(tmp_path: Path, join: Join, http_port: int) -> None:
    with before(tmp_path, f"127.0.0.1:{http_port}", "[limits]\nconnect_s = 1.0") as node:
        with pytest.raises(Refused):
            join(node.port, version=4)
        wait_until(lambda: node.events("not attached"), "the reason is logged")
        assert "the port speaks HTTP" in node.events("not attached")[0]["reason"]
        assert proxy(node)["relayed"] == 0


def test_words_that_are_not_mqtt_hurt_nobody_else(tmp_path: Path, join: Join) -> None:
    with ForeignProcess("mosquitto", tmp_path / "b") as broker, before(tmp_path / "n", broker.address) as node:
        wait_until_attached(node)
        client = join(node.port, version=5)
        for words in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x10\xff\xff\xff\xff\xff",
            b"\x32\x05\x00\x01a\x00\x00",
            b"\x10\x02",
        ):
            with socket.create_connection(("127.0.0.1", node.port), 10) as stranger:
                stranger.sendall(words)
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(1000):
                    pass
        assert client.publish("still", b"here", 2) == 0
        wait_until(lambda: proxy(node)["clients"] == 1, "strangers are gone")
        assert "Traceback" not in node.log()
