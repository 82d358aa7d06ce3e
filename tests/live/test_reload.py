"""Passwords, access rules, limits and certificates change while a node runs: by SIGHUP and `sterna reload`."""

from __future__ import annotations

import json
import random
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import argon2
import pytest
from cryptography import x509

from sterna.broker.access.passwords import hash_password

from .adaptations import lone_process
from .certificates import Authority
from .clients import Refused
from .conftest import Join
from .crowd import Crowd
from .gateways import LiveGateway
from .networks import LiveNetwork
from .nodes import LiveNode, wait_until

pytestmark = pytest.mark.slow

StartNode = Callable[[str], LiveNode]

NOT_AUTHORIZED = 0x87
PACKET_TOO_LARGE = 0x95
QUOTA_EXCEEDED = 0x97
#: The promise to operators: a user who is revoked is gone within a second.
GONE_MS = 1000
CHEAP = argon2.PasswordHasher(1, 8, 1)

_TOML = """
[authentication]
password_file = "{passwords}"
[admin]
bind = "127.0.0.1:0"
"""


def write_passwords(file: Path, **passwords: str) -> None:
    """A line for each user, always the same for the same password."""
    lines = [
        hash_password(user, password, random_bytes=lambda size: bytes(size), hasher=CHEAP)
        for user, password in passwords.items()
    ]
    file.write_text("\n".join([*lines, ""]))


def reload(node: LiveNode) -> tuple[int, str, str]:
    """`sterna reload`: exit status, stdout and stderr."""
    words = [sys.executable, "-m", "sterna", "reload", "--admin", node.admin]
    run = subprocess.run(words, capture_output=True, text=True, timeout=240)
    return run.returncode, run.stdout, run.stderr


def hang_up(node: LiveNode) -> None:
    """SIGHUP, and wait until the node has said what came of it."""

    def said() -> int:
        return len(node.events("reloaded")) + len(node.events("reload failed, everything stays as it was"))

    before = said()
    node.hang_up()
    wait_until(lambda: said() > before, "the node says what came of SIGHUP")
    assert node.is_running


@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    file = tmp_path / "passwords"
    write_passwords(file, ann="a", bob="b")
    return file


@pytest.fixture
def node(start_node: StartNode, passwords: Path) -> LiveNode:
    return start_node(_TOML.format(passwords=passwords))


# -- SIGHUP --


def test_sighup_brings_new_users_and_cuts_off_those_who_are_gone(
    node: LiveNode, join: Join, passwords: Path, version: int
) -> None:
    ann = join(node, version=version, username="ann", password="a")
    bob = join(node, version=version, username="bob", password="b")
    with pytest.raises(Refused):
        join(node, version=version, username="eve", password="e")
    write_passwords(passwords, ann="a", eve="e")
    hang_up(node)
    assert bob.wait_for_end() == (NOT_AUTHORIZED if version == 5 else None)
    join(node, version=version, username="eve", password="e")
    with pytest.raises(Refused):
        join(node, version=version, username="bob", password="b")
    assert ann.publish("topic", b"still here", 1) in (0, 0x10)


def test_a_user_taken_from_the_file_is_gone_within_a_second(
    node: LiveNode, join: Join, passwords: Path, tmp_path: Path
) -> None:
    """Here, and behind a gateway.  A busy machine may be slow once or twice; the code is slow each time."""
    took_ms: list[float] = []
    with LiveGateway(tmp_path / "gateway", [node.port]) as gateway:
        while not took_ms or (took_ms[-1] >= GONE_MS and len(took_ms) < 3):
            write_passwords(passwords, ann="a", bob="b")
            hang_up(node)
            clients = [join(place, username="bob", password="b") for place in (node, node, gateway)]
            write_passwords(passwords, ann="a")
            begun = time.monotonic()
            node.hang_up()
            for client in clients:
                client.wait_for_end()
            took_ms.append((time.monotonic() - begun) * 1000)
    print(f"a user taken from the password file was gone {took_ms[-1]:.0f} ms after SIGHUP")
    assert min(took_ms) < GONE_MS, f"milliseconds until the user was gone: {took_ms}"


def test_a_changed_password_ends_connections_made_with_the_old_one(node: LiveNode, join: Join, passwords: Path) -> None:
    ann = join(node, username="ann", password="a")
    write_passwords(passwords, ann="another", bob="b")
    hang_up(node)
    assert ann.wait_for_end() == NOT_AUTHORIZED
    with pytest.raises(Refused):
        join(node, username="ann", password="a")
    join(node, username="ann", password="another")


def test_a_file_that_cannot_be_used_leaves_everything_as_it_was_and_says_why(
    node: LiveNode, join: Join, passwords: Path
) -> None:
    ann = join(node, username="ann", password="a")
    passwords.write_text("bob:$argon2id$broken\n")
    hang_up(node)
    (problem,) = node.events("reload failed, everything stays as it was")
    assert problem["level"] == "error"
    assert f"{passwords}, line 1: " in problem["reason"]
    assert "sterna passwd" in problem["reason"]
    code, out, err = reload(node)
    assert (code, out) == (1, "")
    assert f"{passwords}, line 1: " in err
    assert "nothing was changed" in err
    node.file.write_text(node.file.read_text() + "\n[limits]\npacket_byts = 3\n")
    write_passwords(passwords, ann="a")
    code, _, err = reload(node)
    assert code == 1
    assert "did you mean packet_bytes?" in err
    join(node, username="bob", password="b")
    assert ann.publish("topic", b"still here", 1) in (0, 0x10)


def test_sighup_while_a_node_starts_does_not_end_it(tmp_path: Path, passwords: Path, join: Join) -> None:
    node = LiveNode(tmp_path / "node", _TOML.format(passwords=passwords))
    node.launch()
    try:
        # Until the interpreter has come to our code nobody can help it: wait for the handler, then keep hanging up.
        def handles_hangups() -> bool:
            status = Path(f"/proc/{node.pid}/status").read_text()
            caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
            return bool(int(caught, 16) & 1)

        wait_until(handles_hangups, "SIGHUP is handled", 60)
        while not node.is_up():
            node.hang_up()
        wait_until(lambda: node.events("reloaded"), "it reloads when it can")
        join(node, username="ann", password="a")
    finally:
        node.stop()


def test_the_other_signals_still_end_it_in_order_after_a_reload(node: LiveNode) -> None:
    hang_up(node)
    assert node.stop() == 0
    assert node.events("node stopped")


# -- access rules --

_RULES = """
[[authorization.rule]]
filters = [{filters}]
"""


def write_rules(node: LiveNode, *filters: str) -> None:
    """Rights that everybody has from the next reload on."""
    without = node.file.read_text().partition("[[authorization.rule]]")[0]
    node.file.write_text(without + _RULES.format(filters=", ".join(f'"{one}"' for one in filters)).lstrip())


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_right_that_is_revoked_ends_delivery_and_publishing_on_live_connections(
    node: LiveNode, join: Join, qos: int
) -> None:
    reader = join(node, username="ann", password="a")
    writer = join(node, username="bob", password="b")
    reader.subscribe("#", qos)
    writer.publish("work/1", b"before", qos)
    reader.receive(1)
    write_rules(node, "else/#")
    code, out, _ = reload(node)
    assert code == 0
    assert "access rules: changed, 1 rules" in out
    refused = node.metric("sterna_publish_dropped_total", reason="not-authorized")
    writer.publish("work/1", b"forbidden", qos)
    writer.publish("else/1", b"allowed", qos)
    assert reader.payloads(2) == [b"before", b"allowed"]
    assert reader.subscribe("work/2", qos) == NOT_AUTHORIZED
    assert node.metric("sterna_publish_dropped_total", reason="not-authorized") == refused + 1
    write_rules(node, "else/#", "work/#")
    hang_up(node)
    writer.publish("work/1", b"again", qos)
    assert reader.payloads(3) == [b"before", b"allowed", b"again"]


def test_reading_alone_can_be_revoked_and_what_was_in_flight_stays_back(node: LiveNode, join: Join) -> None:
    reader = join(node, username="ann", password="a", client_id="reader", persistent=True, manual_ack=True)
    reader.subscribe("#", 1)
    writer = join(node, username="bob", password="b")
    writer.publish("work/1", b"secret", 1)
    writer.publish("else/1", b"open", 1)
    assert reader.payloads(2) == [b"secret", b"open"]
    reader.vanish()
    text = node.file.read_text()
    node.file.write_text(
        text + '[authorization]\ndefault = "allow"\n'
        '[[authorization.rule]]\nfilters = ["work/#"]\naccess = "subscribe"\neffect = "deny"\n'
    )
    hang_up(node)
    again = join(node, username="ann", password="a", client_id="reader", persistent=True)
    writer.publish("work/1", b"secret too", 1)
    writer.publish("else/1", b"open too", 1)
    assert again.payloads(2) == [b"open", b"open too"]


def test_reloads_under_load_lose_nothing_at_qos_1(node: LiveNode, join: Join, passwords: Path) -> None:
    reader = join(node, username="ann", password="a", client_id="reader")
    reader.subscribe("work/#", 1)
    writer = join(node, username="bob", password="b", client_id="writer")
    stop = threading.Event()
    sent: list[bytes] = []

    def publish() -> None:
        while not stop.is_set():
            batch = [b"%d" % number for number in range(len(sent), len(sent) + 50)]
            writer.publish_all("work/1", batch, 1)
            sent.extend(batch)

    def has_sent(count: int) -> bool:
        return len(sent) >= count

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        for number in range(10):
            write_rules(node, "work/#", f"else/{number}")
            write_passwords(passwords, ann="a", bob="b", **{f"user{number}": "x"})
            wanted = len(sent) + 50
            set_limits(node, inflight=10 + number, queued=1000 + number, output_bytes=2000 + number)
            wait_until(partial(has_sent, wanted), "publishing goes on")
    finally:
        stop.set()
        publishing.join()
    assert reader.payloads(len(sent), 60) == sent
    assert len(node.events("reloaded")) == 10


_CHANGING = """
[authorization]
default = "allow"
[[authorization.rule]]
filters = ["nobody/{number}/#"]
effect = "deny"
"""


def test_reloads_of_three_nodes_in_turn_lose_nothing_and_give_nothing_twice(tmp_path: Path) -> None:
    """Under load at QoS 1 and 2, across links, with shared subscriptions and clients that come and go."""
    with (
        LiveNetwork(tmp_path, ("ab", "ac")) as network,
        Crowd(list(network.nodes.values()), random.Random(4), messages_per_s=100) as crowd,
    ):
        files = {name: node.file.read_text() for name, node in network.nodes.items()}
        for number in range(3):
            for name, node in network.nodes.items():
                changed = files[name].replace("inflight = 16", f"inflight = {10 + number}\nqueued = {50_000 + number}")
                node.file.write_text(changed + _CHANGING.format(number=number))
                wanted, published = len(node.events("reloaded")) + 1, crowd.count + 10
                node.hang_up()
                has_reloaded = partial(_has_reloaded, node, wanted, crowd, published)
                assert crowd.run(has_reloaded, 60), "it reloads, and publishing goes on"
        crowd.drain()
        crowd.check()
        crowd.check_subscriptions()
        crowd.check_retained()
        network.check_logs()
        for node in network.nodes.values():
            assert [event["changed"] for event in node.events("reloaded")] == ["access rules, limits"] * 3


def _has_reloaded(node: LiveNode, times: int, crowd: Crowd, published: int) -> bool:
    return crowd.count >= published and len(node.events("reloaded")) >= times


# -- what is said --


def test_reload_says_what_changed_and_what_needs_a_restart(node: LiveNode, join: Join, passwords: Path) -> None:
    bob = join(node, username="bob", password="b")
    write_passwords(passwords, ann="a")
    without_listener, listener = node.file.read_text().split("[[listener]]")
    added = '[limits]\npacket_bytes = 4096\nreceive_maximum = 100\n[[listener]]\nbind = "127.0.0.1:1"\n'
    node.file.write_text(f"{without_listener}{added}[[listener]]{listener}")
    code, out, _ = reload(node)
    assert code == 0
    bob.wait_for_end()
    lines = out.splitlines()
    assert "passwords and tokens: changed, 1 users" in lines
    assert "access rules: as before, 0 rules" in lines
    assert "1 client disconnected: user, password or way in changed" in lines
    assert "limits: changed, packet_bytes 1,048,576 to 4,096" in lines
    assert "[limits] receive_maximum: changed, and needs a restart" in lines
    assert not [line for line in lines if line.startswith("[limits] packet_bytes")]
    assert "[[listener]] 127.0.0.1:1: changed, and needs a restart" in lines


def set_limits(node: LiveNode, **limits: float) -> None:
    """The limits of the configuration, from the next reload on."""
    text = "".join(f"{name} = {value}\n" for name, value in limits.items())
    node.file.write_text(re.sub(r"\[limits\]\n(?:\w+ = .*\n)*", "", node.file.read_text()) + f"[limits]\n{text}")
    hang_up(node)


def test_limits_count_at_once_and_nothing_that_is_there_is_dropped(node: LiveNode, join: Join) -> None:
    ann = join(node, username="ann", password="a", client_id="ann")
    assert [ann.subscribe(f"work/{number}", 1) for number in range(3)] == [1, 1, 1]
    set_limits(node, subscriptions_per_client=3, connections=2, packet_bytes=1000)
    assert ann.subscribe("one/more", 1) == QUOTA_EXCEEDED
    assert ann.subscribe("work/0", 1) == 1, "it has that already"
    bob = join(node, username="bob", password="b")
    with pytest.raises(Refused):
        join(node, username="bob", password="b")
    bob.publish("work/1", b"first", 1)
    assert ann.publish("work/1", bytes(2000), 1) == 0, "it was told otherwise when it came"
    bob.send("work/1", bytes(2000), 1)
    assert bob.wait_for_end() == PACKET_TOO_LARGE
    set_limits(node)
    assert ann.subscribe("one/more", 1) == 1
    join(node, username="bob", password="b").publish("one/more", bytes(2000), 1)
    assert [len(payload) for payload in ann.payloads(3)] == [5, 2000, 2000]


def test_a_client_that_floods_is_slowed_down_by_a_reload_and_let_loose_by_another(node: LiveNode, join: Join) -> None:
    flooder = join(node, username="ann", password="a")

    def throttled() -> float:
        return node.metric("sterna_throttled_total")

    flooder.publish_all("work/1", [b"x"] * 50, 1)
    assert throttled() == 0
    set_limits(node, client_messages_per_s=20)
    flooder.publish_all("work/1", [b"x"] * 30, 1)
    slowed = throttled()
    assert slowed > 0
    set_limits(node, client_messages_per_s=0)
    flooder.publish_all("work/1", [b"x"] * 200, 1)
    assert throttled() == slowed


def test_web_pages_and_strangers_cannot_make_a_node_reload(node: LiveNode) -> None:
    def post(**headers: str) -> int:
        connection = node._admin_connection()
        try:
            connection.request(
                "POST", "/reload", "{}", {name.replace("_", "-"): text for name, text in headers.items()}
            )
            return connection.getresponse().status
        finally:
            connection.close()

    json_type = "application/json"
    assert post(Content_Type="text/plain") == 415
    assert post(Content_Type=json_type, Origin="http://evil.example") == 403
    assert node.ask("/reload")[0] == 405
    assert not node.events("reloaded")
    assert post(Content_Type=json_type) == 200


def test_a_node_that_begins_to_ask_for_passwords_sends_its_anonymous_clients_away(
    start_node: StartNode, join: Join, passwords: Path
) -> None:
    node = start_node('[admin]\nbind = "127.0.0.1:0"\n')
    client = join(node)
    node.file.write_text(node.file.read_text() + f'[authentication]\npassword_file = "{passwords}"\n')
    hang_up(node)
    assert client.wait_for_end() == NOT_AUTHORIZED
    with pytest.raises(Refused):
        join(node)
    join(node, username="ann", password="a")


def test_the_log_level_can_be_changed_too(node: LiveNode, join: Join) -> None:
    node.file.write_text(node.file.read_text().replace("[log]\n", '[log]\nlevel = "error"\n'))
    code, out, _ = reload(node)
    assert code == 0
    assert "log: changed, level error, json" in out.splitlines()
    assert "log: as before, level error, json" in reload(node)[1].splitlines()
    join(node, username="ann", password="a", client_id="unheard").close()
    assert not [event for event in node.events("client connected") if event.get("client") == "unheard"]


# -- certificates --

_TLS = """
[admin]
bind = "127.0.0.1:0"
[authentication]
certificates = true
[[listener]]
bind = "127.0.0.1:0"
anonymous = true
certificate = "{certificate}"
key = "{key}"
client_ca = "{ca}"
require_certificate = true
"""


def serial_shown(port: int, context: ssl.SSLContext) -> int:
    """Serial number of the certificate that is shown in a new handshake."""
    with (
        socket.create_connection(("127.0.0.1", port), 15) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as encrypted,
    ):
        shown = encrypted.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def test_new_handshakes_see_the_new_certificate_and_old_connections_stay(
    start_node: StartNode, join: Join, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority", "authority")
    certificate, key = authority.issue("server")
    mine = authority.issue("client")
    node = start_node(_TLS.format(certificate=certificate, key=key, ca=authority.file))
    client = join(node, tls=authority.context(mine))
    before = serial_shown(node.port, authority.context(mine))
    authority.issue("server")  # into the same files
    assert serial_shown(node.port, authority.context(mine)) == before
    hang_up(node)
    after = serial_shown(node.port, authority.context(mine))
    assert after == x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number != before
    assert client.publish("topic", b"still here", 1) in (0, 0x10)
    key.write_text("no key")
    code, _, err = reload(node)
    assert code == 1
    assert str(key) in err
    assert serial_shown(node.port, authority.context(mine)) == after


def test_authorities_that_are_replaced_are_believed_no_more(start_node: StartNode, join: Join, tmp_path: Path) -> None:
    old, new = Authority(tmp_path / "old", "old"), Authority(tmp_path / "new", "new")
    certificate, key = old.issue("server")
    ca = tmp_path / "clients.pem"
    ca.write_bytes(old.file.read_bytes())
    node = start_node(_TLS.format(certificate=certificate, key=key, ca=ca))
    client = join(node, tls=old.context(old.issue("client")))
    ca.write_bytes(new.file.read_bytes())
    hang_up(node)
    assert client.wait_for_end() == NOT_AUTHORIZED
    with pytest.raises((Refused, OSError)):
        join(node, tls=old.context(old.issue("client")))
    join(node, tls=old.context(new.issue("client")))


def test_links_take_new_certificates_and_authorities_for_new_connections(
    tmp_path: Path, join: Join, topic: str
) -> None:
    authority = Authority(tmp_path / "authority", "authority")
    certificate, key = authority.issue("node")
    tls = f'[network.tls]\ncertificate = "{certificate}"\nkey = "{key}"\nca = "{authority.file}"\n'
    tls += "check_nodes = false\n"  # they share a certificate
    with LiveNetwork(tmp_path / "network", ("ab",), more=tls) as network:
        a, b = network["a"], network["b"]
        other = Authority(tmp_path / "authority", "another authority")  # everything new, in the same files
        other.issue("node")
        code, out, _ = reload(a)
        assert code == 0
        assert "certificates of links: changed" in out
        reader = join(a)
        reader.subscribe(topic, 1)
        assert join(b).publish(topic, b"over the old link", 1) == 0
        b.stop()
        b.start()  # it knows nothing but the new ones
        network.wait_until_settled()
        assert join(b).publish(topic, b"over a new link", 1) == 0
        assert reader.payloads(2) == [b"over the old link", b"over a new link"]


def test_a_gateway_reloads_its_certificate_and_does_not_die(
    start_node: StartNode, join: Join, tmp_path: Path, topic: str
) -> None:
    node = start_node("")
    authority = Authority(tmp_path / "authority", "authority")
    certificate, key = authority.issue("gateway")
    listener = f'[[listener]]\nbind = "127.0.0.1:0"\ncertificate = "{certificate}"\nkey = "{key}"\n'
    with LiveGateway(tmp_path / "gateway", [node.port], listener) as gateway:
        client = join(gateway.port, tls=authority.context())
        before = serial_shown(gateway.port, authority.context())
        authority.issue("gateway")
        hang_up(gateway)
        assert serial_shown(gateway.port, authority.context()) != before
        assert client.publish(topic, b"still here", 1) in (0, 0x10)
        code, out, _ = reload(gateway)
        assert code == 0
        assert "certificates of listener 127.0.0.1:0: as before" in out
        assert json.loads(gateway.ask("/clients")[1])
        key.write_text("no key")
        hang_up(gateway)
        assert gateway.events("reload failed, everything stays as it was")
        assert client.publish(topic, b"and still", 1) in (0, 0x10)


# -- workers and coordinators --


@pytest.mark.parametrize("command", ["worker", "coordinator"])
def test_a_worker_or_coordinator_reloads_its_tokens_and_its_log(command: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a token of sixteen bytes or more\n")
    with lone_process(command, tmp_path / command) as process:
        file = process.file.read_text()
        process.file.write_text(
            file.replace("[log]", f'token_file = "{token}"\nanonymous = false\n[log]\nlevel = "warning"')
        )
        process.hang_up()
        wait_until(lambda: process.ask("/status")[0] == 401, "the token counts")
        assert not process.events("reloaded"), "that is of level info"
        process.file.write_text(file.replace('network = "live"', 'network = "another"'))
        words = [sys.executable, "-m", "sterna", "reload", "--admin", process.admin, "--token-file", str(token)]
        run = subprocess.run(words, capture_output=True, text=True, timeout=240)
        assert run.stdout.splitlines() == [
            "admin port: changed",
            "log: changed, level info, json",
            "[adaptation] network: changed, and needs a restart",
        ]
        process.file.write_text("[log]\nlevel = 3\n")
        hang_up(process)
        assert process.events("reload failed, everything stays as it was")
        assert process.is_running
