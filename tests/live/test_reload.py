"""Passwords, access rules and certificates change while a node runs: SIGHUP and `sterna reload`, with real clients."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import argon2
import pytest
from cryptography import x509

from sterna.broker.access.passwords import hash_password

from .certificates import Authority
from .clients import Refused
from .conftest import Join
from .gateways import LiveGateway
from .networks import LiveNetwork
from .nodes import LiveNode, wait_until

pytestmark = pytest.mark.slow

StartNode = Callable[[str], LiveNode]

NOT_AUTHORIZED = 0x87
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
    run = subprocess.run(words, capture_output=True, text=True, timeout=60)
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
    """What everybody may do from the next reload on."""
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
            hang_up(node)
            wait_until(partial(has_sent, wanted), "publishing goes on")
    finally:
        stop.set()
        publishing.join()
    assert reader.payloads(len(sent), 60) == sent
    assert len(node.events("reloaded")) == 10


# -- what is said --


def test_reload_says_what_changed_and_what_needs_a_restart(node: LiveNode, join: Join, passwords: Path) -> None:
    bob = join(node, username="bob", password="b")
    write_passwords(passwords, ann="a")
    without_listener, listener = node.file.read_text().split("[[listener]]")
    added = '[limits]\npacket_bytes = 4096\n[[listener]]\nbind = "127.0.0.1:1"\n'
    node.file.write_text(f"{without_listener}{added}[[listener]]{listener}")
    code, out, _ = reload(node)
    assert code == 0
    bob.wait_for_end()
    lines = out.splitlines()
    assert "passwords and tokens: changed, 1 users" in lines
    assert "access rules: as before, 0 rules" in lines
    assert "1 client disconnected: user, password or way in changed" in lines
    assert "[limits] packet_bytes: changed, and needs a restart" in lines
    assert "[[listener]] 127.0.0.1:1: changed, and needs a restart" in lines


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
    code, _, _ = reload(node)
    assert code == 0
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
