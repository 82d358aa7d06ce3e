"""Access to a running node: passwords, tokens, SCRAM, certificates, access rules."""

from __future__ import annotations

import base64
import os
import select
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import jwt
import pytest
from scramp import ScramClient

from conformance.client import Client
from conformance.packets import Auth, Connack, Connect, Disconnect, Pingreq, Pingresp

from .certificates import Authority
from .clients import Refused, Will
from .conftest import Join
from .nodes import LiveNode

PASSWORDS = {"ann": "correct horse", "bob": "battery staple"}
SECRET = "a secret of at least thirty-two bytes"
METHOD = "SCRAM-SHA-256"
CONTINUE, REAUTHENTICATE = 0x18, 0x19

# On a busy machine sixteen passwords take longer than the usual ten seconds.
_TOML = """
[limits]
connect_s = 25
[authentication]
password_file = "{passwords}"
certificates = true
[authentication.token]
algorithms = ["HS256"]
secret_file = "{secret}"
[[listener]]
bind = "127.0.0.1:0"
anonymous = false
[[listener]]
bind = "127.0.0.1:0"
anonymous = true
[[listener]]
bind = "127.0.0.1:0"
anonymous = true
certificate = "{certificate}"
key = "{key}"
client_ca = "{ca}"
require_certificate = true
[[authorization.rule]]
filters = ["plant/secret/#"]
access = "subscribe"
effect = "deny"
[[authorization.rule]]
filters = ["plant/#", "clients/%c/#", "users/%u/#"]
[admin]
bind = "127.0.0.1:0"
anonymous = true
"""


@dataclass
class Guarded:
    """A node that knows ann and bob; `open_port` also lets in who shows nothing."""

    node: LiveNode
    authority: Authority

    @property
    def port(self) -> int:
        return self.node.ports[0]

    @property
    def open_port(self) -> int:
        return self.node.ports[1]

    @property
    def certificate_port(self) -> int:
        return self.node.ports[2]


@pytest.fixture(scope="module")
def password_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by `sterna passwd`; ann may also use SCRAM."""
    file = tmp_path_factory.mktemp("passwords") / "passwords"
    for user, password in PASSWORDS.items():
        words = [sys.executable, "-m", "sterna", "passwd", str(file), user, *(["--scram"] if user == "ann" else [])]
        subprocess.run(words, input=f"{password}\n".encode(), check=True)
    return file


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, password_file: Path) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    secret = directory / "secret"
    secret.write_text(f"{SECRET}\n")
    authority = Authority(directory / "authority", "guarded authority")
    certificate, key = authority.issue("server")
    toml = _TOML.format(passwords=password_file, secret=secret, certificate=certificate, key=key, ca=authority.file)
    with LiveNode(directory / "node", toml) as node:
        yield Guarded(node, authority)


# -- passwords --


def test_the_right_password_lets_in_and_names_the_user(guarded: Guarded, join: Join, version: int) -> None:
    for user, password in PASSWORDS.items():
        client = join(guarded.port, version=version, username=user, password=password)
        assert client.subscribe(f"users/{user}/#", 1) == 1


@pytest.mark.parametrize(
    ("username", "password", "code"),
    [
        ("ann", "battery staple", 0x86),
        ("nobody", "correct horse", 0x86),
        ("ann", None, 0x86),
        ("ann", "", 0x86),
        (None, None, 0x87),
    ],
    ids=["another's password", "unknown user", "no password", "empty password", "nothing at all"],
)
def test_anything_else_is_refused(
    guarded: Guarded, join: Join, version: int, username: str | None, password: str | None, code: int
) -> None:
    with pytest.raises(Refused) as refusal:
        join(guarded.port, version=version, username=username, password=password)
    assert refusal.value.code == code


def test_no_password_is_ever_logged(guarded: Guarded, join: Join) -> None:
    with pytest.raises(Refused):
        join(guarded.port, username="ann", password="a slip of the tongue")
    join(guarded.port, username="ann", password=PASSWORDS["ann"])
    assert guarded.node.events("connection failed")
    assert not any(text in guarded.node.log() for text in ("slip of the tongue", *PASSWORDS.values(), SECRET))


@pytest.mark.slow
def test_a_storm_of_wrong_passwords_does_not_hold_other_clients_up(guarded: Guarded) -> None:
    with ExitStack() as stack:
        other = raw_client(stack, guarded.open_port, "other")
        other.connect(Connect("other"))
        storm = []
        for number in range(16):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", guarded.port), 30))
            sock.sendall(Connect(f"storm-{number}", username="ann", password=b"guess %d" % number).encode(5))
            storm.append(sock)
        other.send(Pingreq())
        other.expect(Pingresp())
        answered, _, _ = select.select(storm, [], [], 0)
        assert len(answered) < len(storm) / 2, "the answer to a ping waited for password hashes"
        for sock in storm:
            assert sock.recv(4)[3] == 0x86


def raw_client(stack: ExitStack, port: int, client_id: str) -> Client:
    client = Client(("127.0.0.1", port), 5, client_id, says_why=True)
    stack.callback(client.drop)
    return client


# -- tokens --


def token(key: str = SECRET, subject: str = "ann", **instants: float) -> str:
    """Instants are seconds from now."""
    claims = {"exp": 60.0} | instants
    return jwt.encode({"sub": subject} | {name: time.time() + s for name, s in claims.items()}, key, "HS256")


def unsigned() -> str:
    header, claims, _ = token().split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').rstrip(b"=").decode()
    assert header != none
    return f"{none}.{claims}."


def test_a_valid_token_lets_in_as_its_subject(guarded: Guarded, join: Join, version: int) -> None:
    client = join(guarded.port, version=version, username="ann", password=token())
    assert client.subscribe("users/ann/#", 1) == 1


def test_a_token_needs_no_user_name_beside_it(guarded: Guarded, client_id: str) -> None:
    with ExitStack() as stack:
        client = raw_client(stack, guarded.port, client_id)  # 3.1.1 knows no password without a name; paho neither
        client.connect(Connect(client_id, password=token().encode()))
        assert client.subscribe("users/ann/#", 1) == 1


@pytest.mark.parametrize(
    ("username", "made"),
    [
        ("ann", lambda: token(exp=-60)),
        ("ann", lambda: token(nbf=60)),
        ("ann", lambda: token("another secret of thirty-two bytes..")),
        ("ann", unsigned),
        ("bob", token),
        ("ann", lambda: token()[:-4]),
    ],
    ids=["expired", "not yet valid", "wrong key", "alg none", "another's", "cut short"],
)
def test_a_bad_token_is_refused(
    guarded: Guarded, join: Join, version: int, username: str, made: Callable[[], str]
) -> None:
    with pytest.raises(Refused) as refusal:
        join(guarded.port, version=version, username=username, password=made())
    assert refusal.value.code == 0x86


@pytest.mark.slow
def test_a_client_is_sent_away_when_its_token_expires(guarded: Guarded, join: Join) -> None:
    leeway_s = 10.0  # for clocks that differ
    client = join(guarded.port, username="ann", password=token(exp=1.0 - leeway_s))
    assert client.wait_for_end() == 0x87


# -- SCRAM --


def scram_connect(client: Client, scram: ScramClient, username: str | None = None) -> Connack:
    """CONNECT, AUTH, AUTH, CONNACK; the CONNACK, or the refusal."""
    first = scram.get_client_first().encode()
    client.send(
        Connect(
            client.client_id,
            username=username,
            properties={"authentication_method": METHOD, "authentication_data": first},
        )
    )
    challenge = client.receive()
    if isinstance(challenge, Connack):
        return challenge
    assert isinstance(challenge, Auth)
    assert challenge.code == CONTINUE
    assert challenge.properties["authentication_method"] == METHOD
    scram.set_server_first(challenge.properties["authentication_data"].decode())
    client.send(auth(CONTINUE, scram.get_client_final()))
    verdict = client.receive()
    assert isinstance(verdict, Connack)
    return verdict


def auth(code: int, data: str) -> Auth:
    return Auth(code, {"authentication_method": METHOD, "authentication_data": data.encode()})


@pytest.fixture
def scram_client(guarded: Guarded, client_id: str) -> Iterator[Client]:
    with ExitStack() as stack:
        yield raw_client(stack, guarded.port, client_id)


def test_scram_lets_in_and_proves_the_node_too(scram_client: Client) -> None:
    scram = ScramClient([METHOD], "ann", PASSWORDS["ann"])
    connack = scram_connect(scram_client, scram)
    assert connack.code == 0
    scram.set_server_final(connack.properties["authentication_data"].decode())  # raises if the node does not know her
    assert connack.properties["authentication_method"] == METHOD
    assert scram_client.subscribe("users/ann/#", 1) == 1
    assert scram_client.subscribe("users/bob/#", 1) == 0x87


@pytest.mark.parametrize(
    ("user", "password"),
    [("ann", "guess"), ("nobody", "guess"), ("bob", PASSWORDS["bob"])],
    ids=["wrong password", "unknown user", "user without SCRAM"],
)
def test_scram_refuses_everybody_else_alike(scram_client: Client, user: str, password: str) -> None:
    assert scram_connect(scram_client, ScramClient([METHOD], user, password)).code == 0x86
    scram_client.expect_close()


def test_scram_as_another_than_the_connect_names_is_refused(scram_client: Client) -> None:
    scram = ScramClient([METHOD], "ann", PASSWORDS["ann"])
    assert scram_connect(scram_client, scram, username="bob").code == 0x86


def test_an_authentication_method_we_do_not_have_is_refused(scram_client: Client) -> None:
    scram_client.send(Connect("kerberos", properties={"authentication_method": "KERBEROS"}))
    scram_client.expect_refusal(0x8C)


def reauthenticate(client: Client, scram: ScramClient) -> Auth | Disconnect:
    client.send(auth(REAUTHENTICATE, scram.get_client_first()))
    challenge = client.wait_for(Auth)
    assert challenge.code == CONTINUE
    scram.set_server_first(challenge.properties["authentication_data"].decode())
    client.send(auth(CONTINUE, scram.get_client_final()))
    verdict = client.receive()
    assert isinstance(verdict, Auth | Disconnect)
    return verdict


def test_a_connected_client_may_authenticate_anew(scram_client: Client) -> None:
    assert scram_connect(scram_client, ScramClient([METHOD], "ann", PASSWORDS["ann"])).code == 0
    again = ScramClient([METHOD], "ann", PASSWORDS["ann"])
    verdict = reauthenticate(scram_client, again)
    assert isinstance(verdict, Auth)
    assert verdict.code == 0
    again.set_server_final(verdict.properties["authentication_data"].decode())
    assert scram_client.publish("users/ann/still", b"here", 1) in (0, 0x10)


def test_a_client_that_fails_to_authenticate_anew_is_sent_away(scram_client: Client) -> None:
    assert scram_connect(scram_client, ScramClient([METHOD], "ann", PASSWORDS["ann"])).code == 0
    verdict = reauthenticate(scram_client, ScramClient([METHOD], "ann", "guess"))
    assert isinstance(verdict, Disconnect)
    assert verdict.code in (0x86, 0x87)
    scram_client.expect_close()


class SecureClient(Client):
    def begin_tls(self, context: ssl.SSLContext) -> None:
        self._stream.close()
        self._socket = context.wrap_socket(self._socket, server_hostname="127.0.0.1")
        self._stream = self._socket.makefile("rb")


def test_a_certificate_and_a_scram_user_must_be_the_same(guarded: Guarded, client_id: str) -> None:
    def attempt(common_name: str) -> int:
        context = guarded.authority.context(guarded.authority.issue(common_name))
        scram = ScramClient([METHOD], "ann", PASSWORDS["ann"])
        with ExitStack() as stack:
            client = SecureClient(("127.0.0.1", guarded.certificate_port), 5, client_id, says_why=True)
            stack.callback(client.drop)
            client.begin_tls(context)
            return scram_connect(client, scram).code

    assert attempt("ann") == 0
    assert attempt("bob") == 0x86


# -- access rules --


def test_what_may_not_be_published_goes_nowhere_and_is_counted(guarded: Guarded, join: Join, version: int) -> None:
    bob = join(guarded.port, version=version, username="bob", password=PASSWORDS["bob"])
    ann = join(guarded.port, version=version, username="ann", password=PASSWORDS["ann"])
    bob.subscribe("users/bob/#", 2)
    before = guarded.node.metric("sterna_publish_dropped_total", reason="not-authorized")
    codes = [ann.publish("users/bob/inbox", b"from ann", qos) for qos in range(3)]
    # paho answers a refusing PUBREC with PUBREL all the same, and shows us what that is answered with.
    assert codes == ([0, 0x87, 0x92] if version == 5 else [0, 0, 0])
    assert guarded.node.metric("sterna_publish_dropped_total", reason="not-authorized") == before + 3
    bob.publish("users/bob/inbox", b"from bob", 1)
    assert bob.payloads() == [b"from bob"]


def test_what_may_not_be_subscribed_to_is_refused(guarded: Guarded, join: Join, version: int) -> None:
    ann = join(guarded.port, version=version, username="ann", password=PASSWORDS["ann"])
    refused = 0x87 if version == 5 else 0x80
    for topic_filter in ("users/bob/#", "users/+/inbox", "users/#", "#", "+/ann/#", "plant/secret/x", "elsewhere"):
        assert ann.subscribe(topic_filter, 1) == refused, topic_filter
        assert ann.subscribe(f"$share/group/{topic_filter}", 1) == refused, topic_filter
    assert ann.subscribe("users/ann/inbox", 1) == 1
    assert ann.subscribe("$share/group/users/ann/+", 1) == 1


@pytest.mark.parametrize("hostile", ["+", "#", "+/#", "victim/x", "/", "%u", "%c", "victim/../+"])
def test_no_client_id_opens_another_clients_topics(guarded: Guarded, join: Join, hostile: str) -> None:
    victim = join(guarded.open_port, client_id="victim")
    assert victim.subscribe("clients/victim/#", 1) == 1
    intruder = join(guarded.port, client_id=hostile, username="ann", password=PASSWORDS["ann"])
    for topic_filter in ("clients/victim/x", "clients/victim/#", "clients/+/x", "clients/#", "clients/ann/x"):
        assert intruder.subscribe(topic_filter, 1) == 0x87, topic_filter
    for topic in ("clients/victim/x", "clients/victim/x/y", "clients/ann/x"):
        assert intruder.publish(topic, b"from the intruder", 1) == 0x87, topic
    victim.publish("clients/victim/x", b"from the victim", 1)
    assert victim.payloads() == [b"from the victim"]


def test_a_will_that_may_not_be_published_is_refused_at_once(guarded: Guarded, join: Join, version: int) -> None:
    ann = {"username": "ann", "password": PASSWORDS["ann"], "version": version}
    with pytest.raises(Refused) as refusal:
        join(guarded.port, will=Will("users/bob/inbox", b"boo"), **ann)
    assert refusal.value.code == 0x87
    bob = join(guarded.port, username="bob", password=PASSWORDS["bob"], version=version)
    bob.subscribe("plant/wills", 1)
    join(guarded.port, will=Will("plant/wills", b"farewell", 1), **ann).vanish()
    assert bob.payloads() == [b"farewell"]


def test_what_may_not_be_read_is_left_out_of_a_wider_subscription(guarded: Guarded, join: Join, version: int) -> None:
    publisher = join(guarded.open_port, version=version)
    publisher.publish("plant/secret/recipe", b"retained secret", 1, retain=True)
    publisher.publish("plant/sign", b"retained sign", 1, retain=True)
    reader = join(guarded.open_port, version=version)
    assert reader.subscribe("plant/#", 1) == 1
    assert reader.payloads() == [b"retained sign"]
    for qos in range(3):
        publisher.publish("plant/secret/recipe", b"live secret", qos)
        publisher.publish("plant/sign", b"live sign", qos)
    assert reader.payloads(4)[1:] == [b"live sign"] * 3
    publisher.publish("plant/sign", b"", 1, retain=True)


@pytest.mark.slow
def test_a_message_queued_before_the_rules_changed_is_judged_by_the_new_ones(
    start_node: Callable[[str], LiveNode], join: Join, version: int
) -> None:
    node = start_node('[authorization]\ndefault = "allow"\n')
    sleeper = join(node, version=version, client_id="sleeper", persistent=True)
    sleeper.subscribe("plant/#", 1)
    sleeper.close()
    publisher = join(node, version=version)
    for topic in ("plant/sign", "plant/secret/recipe", "plant/gate"):
        publisher.publish(topic, topic.encode(), 1)
    assert node.stop() == 0
    rule = '[[authorization.rule]]\nfilters = ["plant/secret/#"]\neffect = "deny"\n'
    with node.file.open("a") as file:
        file.write(rule)
    node.restart()
    awake = join(node, version=version, client_id="sleeper", persistent=True)
    assert awake.session_present
    join(node, version=version).publish("plant/last", b"plant/last", 1)
    assert awake.payloads(3) == [b"plant/sign", b"plant/gate", b"plant/last"]


@pytest.mark.parametrize("away", [False, True], ids=["connected", "away"])
def test_a_client_id_belongs_to_its_user_while_its_session_lives(
    guarded: Guarded, join: Join, version: int, away: bool, client_id: str
) -> None:
    ann = {"client_id": client_id, "username": "ann", "password": PASSWORDS["ann"], "persistent": True}
    owner = join(guarded.port, version=version, **ann)
    if away:
        owner.close()
    for persistent in (False, True):
        for thief in ({"username": "bob", "password": PASSWORDS["bob"]}, {}):
            with pytest.raises(Refused) as refusal:
                join(guarded.open_port, version=version, client_id=client_id, persistent=persistent, **thief)
            assert refusal.value.code == 0x87
    assert join(guarded.port, version=version, **ann).session_present


# -- safe by default --


def check_config(file: Path) -> tuple[int, str]:
    """Only checked, never listened on."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STERNA_")}
    words = [sys.executable, "-m", "sterna", "check-config", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("bind", ["0.0.0.0:1883", "[::]:1883", "192.0.2.1:1883"])
def test_a_listener_others_can_reach_needs_authentication(tmp_path: Path, password_file: Path, bind: str) -> None:
    file = tmp_path / "sterna.toml"
    file.write_text(f'[[listener]]\nbind = "{bind}"\n')
    status, said = check_config(file)
    assert status == 1
    assert f"{file}:2" in said
    assert "password_file" in said
    assert "sterna passwd" in said
    file.write_text(f'[[listener]]\nbind = "{bind}"\n[authentication]\npassword_file = "{password_file}"\n')
    assert check_config(file)[0] == 0
    file.write_text(f'[[listener]]\nbind = "{bind}"\nanonymous = true\n')
    assert check_config(file)[0] == 0
