"""A mosquitto.conf becomes a configuration that a node takes; every line without a counterpart is named."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import tempfile
import tomllib
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from live.left_out import leave_out
from sterna.broker.access.authorization import AccessList
from sterna.cli.main import main
from sterna.runtime.config import access
from sterna.runtime.config.loading import load
from sterna.runtime.config.settings import ControlTable
from sterna.runtime.mosquitto.acl_file import AclTranslation
from sterna.runtime.mosquitto.conf_lines import read_lines
from sterna.runtime.mosquitto.options import (
    IMPOSSIBLE,
    LISTENER_OPTIONS,
    NEEDLESS,
    NUMBERS,
    SECURITY_OPTIONS,
)
from sterna.runtime.mosquitto.translation import Translation, translate
from sterna.runtime.mosquitto.writing import as_json, as_toml
from sterna.vocabulary.errors import ConfigurationError

EXAMPLE = Path("/usr/share/doc/mosquitto/examples/mosquitto.conf")
WHOLE = """per_listener_settings true
listener 1884 127.0.0.1
allow_anonymous true
max_connections 10
listener 8883
certfile server.pem
keyfile server.key
require_certificate true
port 1885
bind_address 127.0.0.1
persistence true
persistence_location /var/lib/mosquitto/
persistent_client_expiration 2w
max_queued_messages 1000
max_inflight_messages 20
message_size_limit 0
log_type all
log_dest file /var/log/mosquitto.log
retain_available false
clientid_prefixes dev-
plugin /usr/lib/x.so
acl_file none.acl
password_file none.passwords
include_dir nowhere
"""
SALTED = "ann:$7$101$2+KTaD95DtsxldHs$" + "A" * 86 + "=="


def conf(directory: Path, text: str) -> Path:
    file = directory / "mosquitto.conf"
    file.write_text(text)
    return file


def translated(directory: Path, text: str) -> tuple[dict[str, Any], Translation]:
    """The tables, after a node has accepted them."""
    found = translate(conf(directory, text))
    made = directory / "sterna.toml"
    made.write_text(as_toml(found))
    load(made, {})
    return tomllib.loads(made.read_text()), found


def refused(found: Translation) -> list[str]:
    return [one.line.key for one in found.untranslated]


def test_an_empty_file_listens_on_loopback_for_everybody_as_mosquitto_does(tmp_path: Path) -> None:
    tables, found = translated(tmp_path, "# nothing\n\n")
    assert tables == {"listener": [{"bind": "127.0.0.1:1883", "anonymous": True}]}
    assert not found.untranslated


def test_limits_persistence_log_and_listeners(tmp_path: Path) -> None:
    tables, found = translated(
        tmp_path,
        f"""
port 1884
bind_address 127.0.0.1
allow_anonymous true
max_connections 40
listener 9001 127.0.0.1
protocol websockets
max_connections 2
listener 0 {tmp_path}/socket
max_connections 8
persistence true
persistence_location {tmp_path}/store/
persistent_client_expiration 2w
max_inflight_messages 0
max_queued_messages 500
max_packet_size 70000
max_keepalive 120
retain_available false
sys_interval 30
log_type warning
log_type notice
log_dest stderr
autosave_interval 60
""",
    )
    assert tables["listener"] == [
        {"bind": "127.0.0.1:1884", "anonymous": True},
        {"bind": "127.0.0.1:9001", "anonymous": True, "transport": "websocket"},
        {"bind": f"unix:{tmp_path}/socket", "anonymous": True},
    ]
    assert tables["limits"] == {
        "connections": 50,
        "session_expiry_s": 1209600,
        "inflight": 65535,
        "queued": 500,
        "packet_bytes": 70000,
        "keep_alive_s": 120,
        "retained": 0,
    }
    assert tables["journal"] == {"durability": "fsync"}
    assert tables["node"] == {"data": f"{tmp_path}/store/sterna"}
    assert tables["mqtt"] == {"sys_interval_s": 30}
    assert tables["log"] == {"level": "info"}
    assert not found.untranslated


def test_every_line_without_a_counterpart_is_named_with_its_place_and_a_remedy(tmp_path: Path) -> None:
    lines = ["allow_anonymous true", "listener 1883", "max_qos 1", "frobnicate yes", "max_inflight_messages many"]
    lines += ["max_queued_bytes 7", "auth_opt_file /x", "persistent_client_expiration soon", "log_type subscribe"]
    _, found = translated(tmp_path, "\n".join(lines))
    named = {one.line.key: str(one) for one in found.untranslated}
    for number, line in enumerate(lines[2:], start=3):
        assert named[line.split()[0]].startswith(f"{tmp_path}/mosquitto.conf:{number}: {line}: ")
    assert len(found.untranslated) == len(lines) - 2
    assert all(one.reason and one.remedy for one in found.untranslated)


def test_a_value_that_is_neither_true_nor_false_is_named(tmp_path: Path) -> None:
    text = "listener 1883 127.0.0.1\nretain_available yes\nmax_qos 1\npersistence ture\nallow_anonymous true\n"
    _, found = translated(tmp_path, f"{text}require_certificate False\n")
    misspelt = [one.line.text for one in found.untranslated if one.reason == "it is neither true nor false"]
    assert misspelt == ["retain_available yes", "persistence ture", "require_certificate False"]
    assert [one.line.number for one in found.untranslated] == [2, 3, 4, 6], "in the order of the file"


def test_a_limit_of_one_listener_is_not_one_of_all(tmp_path: Path) -> None:
    lines = "allow_anonymous true\nlistener 1883 127.0.0.1\nmax_connections 5\nlistener 1884 127.0.0.1\n"
    tables, found = translated(tmp_path, lines + "max_connections -1\n")
    assert "limits" not in tables
    assert [one.line.number for one in found.untranslated] == [3]
    _, found = translated(tmp_path, lines + "max_connections few\n")
    assert [one.line.number for one in found.untranslated] == [3, 5]


def test_every_option_of_debians_example_file_is_known(tmp_path: Path) -> None:
    if not EXAMPLE.exists() and not EXAMPLE.with_suffix(".conf.gz").exists():
        pytest.skip("Mosquitto's example file is not installed")
    packed = EXAMPLE.with_suffix(".conf.gz")
    text = EXAMPLE.read_text() if EXAMPLE.exists() else gzip.decompress(packed.read_bytes()).decode()
    options = {line[1:].split()[0] for line in text.splitlines() if line[:1] == "#" and line[1:2].isalpha()}
    assert len(options) >= 90
    # The first three would have to be there.
    options -= {"include_dir", "password_file", "acl_file", "allow_anonymous", "require_certificate"}
    found = translate(conf(tmp_path, "\n".join([f"{one} 1" for one in sorted(options)] + ["allow_anonymous true"])))
    assert [one.line.key for one in found.untranslated if "no such option" in one.reason] == []


def test_included_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    included = tmp_path / "conf.d"
    included.mkdir()
    (included / "b.conf").write_text("max_keepalive 20\nmax_qos 1\n")
    (included / "A.conf").write_text("max_keepalive 10\n")
    (included / "c.txt").write_text("max_keepalive 30\n")
    tables, found = translated(tmp_path, f"include_dir {included}\n")
    assert tables["limits"] == {"keep_alive_s": 20}
    assert [one.line.place for one in found.untranslated] == [f"{included}/b.conf:2"]


def test_a_listener_with_other_rules_or_for_nobody_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "passwords").write_text(SALTED + "\n")
    (tmp_path / "acl").write_text("user ann\ntopic a/#\n")
    tables, found = translated(
        tmp_path,
        f"""per_listener_settings true
listener 1883 127.0.0.1
allow_anonymous true
listener 1884 127.0.0.1
password_file {tmp_path}/passwords
acl_file {tmp_path}/acl
""",
    )
    assert [one["bind"] for one in tables["listener"]] == ["127.0.0.1:1884"]
    assert [one.line.text for one in found.untranslated] == ["listener 1883 127.0.0.1"]
    with pytest.raises(ConfigurationError, match=r"mosquitto\.conf:1: listener 1883: nobody could connect"):
        translate(conf(tmp_path, "listener 1883\n"))


def test_lines_of_a_password_file_that_a_node_does_not_take_are_left_out_of_a_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = "bob:$6$c2FsdHNhbHQ=$" + "A" * 86 + "=="
    (tmp_path / "users").write_text(f"{SALTED}\n{old}\ncarol:secret\nanonymous:x\n")
    file = conf(tmp_path, f"listener 0 {tmp_path}/s\npassword_file {tmp_path}/users\n")
    output = tmp_path / "out" / "sterna.toml"
    output.parent.mkdir()
    main_ends(["import", str(file), "--output", str(output)], 0)
    said = capsys.readouterr().err
    assert f"{tmp_path}/users:3: user carol: " in said
    assert f"{tmp_path}/users:4: user anonymous: " in said
    assert f"{tmp_path}/users:2: user bob: one round of SHA-512" in said
    assert (output.parent / "passwords").read_text() == f"{SALTED}\n{old}\n"
    assert "secret" not in said
    load(output, {})


def test_it_overwrites_nothing_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = conf(tmp_path, "")
    output = tmp_path / "sterna.toml"
    output.write_text("mine")
    main_ends(["import", str(file), "-o", str(output)], 1)
    assert "already there" in capsys.readouterr().err
    assert output.read_text() == "mine"
    main_ends(["import", str(file), "-o", str(output), "--force"], 0)
    assert output.read_text() != "mine"
    main_ends(["import", str(tmp_path / "none.conf")], 1)
    assert "none.conf cannot be read" in capsys.readouterr().err


def test_bridges_become_a_named_list_without_their_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = conf(
        tmp_path,
        """connection cloud
address broker.example:8883 second.example
topic sensors/# out 1 here/ there/
topic commands/+ in
topic # both 2 "" site/
remote_username me
remote_password hush
bridge_cafile /etc/ca.pem
connection bad
topic x sideways
""",
    )
    main_ends(["import", str(file), "--json"], 0)
    told = capsys.readouterr()
    document = json.loads(told.out)
    cloud, bad = document["bridges"]
    assert (cloud["name"], cloud["addresses"]) == ("cloud", ["broker.example:8883", "second.example"])
    assert [tuple(one.values()) for one in cloud["topics"]] == [
        ("sensors/#", "out", 1, "here/", "there/"),
        ("commands/+", "in", 0, "", ""),
        ("#", "both", 2, "", "site/"),
    ]
    assert cloud["settings"] == {
        "remote_username": "me",
        "remote_password": "(secret)",
        "bridge_cafile": "/etc/ca.pem",
    }
    assert bad["topics"] == []
    assert f"{file}:10: topic x sideways: it is no topic line" in told.err
    assert "hush" not in told.out + told.err


BRIDGES = """connection plant
address broker.example
topic sensors/# in 2
topic commands/# out 2 site/ site/
topic both/+ both 2
topic late/# in 1
topic renamed/# in 2 "" far/
topic $SYS/# in 2
remote_username me
remote_password hush
remote_clientid bridge-1
keepalive_interval 20
restart_timeout 2 30
bridge_cafile {directory}/ca.pem
bridge_insecure true
cleansession true
try_private true
notifications false
bridge_alpn mqtt
connection second
address 192.0.2.7:1884
topic x out 2
connection nowhere
topic y out 2
"""


def test_the_first_bridge_becomes_the_broker_that_the_node_joins(tmp_path: Path) -> None:
    found = translate(conf(tmp_path, BRIDGES.format(directory=tmp_path)))
    assert found.tables["interworking"] == {
        "broker": "broker.example:1883",
        "user": "me",
        "client_id": "bridge-1",
        "keep_alive_s": 20,
        "pause_s": 2,
        "pause_max_s": 30,
        "tls": True,
        "ca": f"{tmp_path}/ca.pem",
        "check_names": False,
        "from_broker": ["sensors/#", "both/+", "late/#"],
        "to_broker": ["site/commands/#", "both/+"],
    }
    told = {one.line.text: one.reason for one in found.untranslated}
    assert told == {
        "topic late/# in 1": "a node carries messages at their own QoS, not at 1 at most",
        'topic renamed/# in 2 "" far/': "a node does not rename topics",
        "topic $SYS/# in 2": "'$SYS/#': topics that begin with `$` belong to one broker and never cross",
        "cleansession true": "a node keeps its session at the broker, so that nothing is lost",
        "bridge_alpn mqtt": "a node has no such setting for a broker that it joins",
        "connection second": "a node joins one broker",
        "connection nowhere": "nothing of this bridge can be carried",
    } | {"connection nowhere": told["connection nowhere"]}
    assert [one.reason for one in found.untranslated if one.line.text == "connection nowhere"] == [
        "the bridge has no address line",
        "nothing of this bridge can be carried",
    ]


def test_the_password_of_a_bridge_goes_into_a_file_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "connection c\naddress h:1884\ntopic # both 2\nremote_username me\nremote_password hush\n"
    file, output = conf(tmp_path, text), tmp_path / "sterna.toml"
    main_ends(["import", str(file), "-o", str(output)], 0)
    table = load(output, {}).interworking
    assert table is not None
    assert (table.broker, table.user) == ("h:1884", "me")
    assert table.password_file is not None
    assert table.password_file.read_text() == "hush\n"
    assert table.password_file.stat().st_mode & 0o077 == 0
    assert "hush" not in output.read_text() + "".join(capsys.readouterr())


def test_a_bridge_that_carries_one_way_leaves_the_other_empty(tmp_path: Path) -> None:
    tables, _ = translated(tmp_path, "connection c\naddress h\ntopic a/# out 2\n")
    assert (tables["interworking"]["from_broker"], tables["interworking"]["to_broker"]) == ([], ["a/#"])


@pytest.mark.parametrize("seed", range(300))
def test_a_damaged_file_is_translated_or_refused_in_words(tmp_path: Path, seed: int) -> None:
    """Words of real files in any order, cut, doubled and with bytes that are no text."""
    dice = random.Random(seed)
    lines = (WHOLE + BRIDGES.format(directory=tmp_path)).splitlines()
    words = [word for line in lines for word in line.split()]
    damaged = []
    for line in dice.choices(lines, k=dice.randrange(1, 40)):
        parts = line.split(" ")
        for _ in range(dice.randrange(3)):
            place = dice.randrange(len(parts))
            parts[place] = dice.choice(
                [dice.choice(words), "", "-1", "9" * 30, "\udcff\x00\x85", "a" * 5_000, "[", "#", '"', "\u0662"]
            )
        damaged.append(" ".join(parts))
    file = tmp_path / "mosquitto.conf"
    file.write_bytes("\n".join(damaged).encode("utf-8", "surrogateescape"))
    try:
        found = translate(file)
    except ConfigurationError:
        return
    tomllib.loads(as_toml(found))
    json.loads(as_json(found))
    assert all(one.reason and one.remedy for one in found.untranslated)


KEYS = sorted(
    {line.split()[0] for line in WHOLE.splitlines()}
    | {line.split()[0] for line in BRIDGES.splitlines() if line.split()}
    | {*NUMBERS, *NEEDLESS, *IMPOSSIBLE, *LISTENER_OPTIONS, *SECURITY_OPTIONS}
)
_VALUES = st.one_of(
    st.sampled_from(
        ["true", "false", "0", "1883", "127.0.0.1", "::1", "passwords", "acl", ".", "2w", "websockets", "all"]
    ),
    st.integers().map(str),
    st.text(max_size=30),
    st.lists(st.sampled_from(["a/#", "+", "both", "in", "out", "2", '""', "local/", "far/"]), max_size=4).map(" ".join),
)
_LINES = st.lists(st.tuples(st.sampled_from(KEYS) | st.text(max_size=10), _VALUES).map(" ".join), max_size=12)
_ACL_LINES = st.lists(
    st.tuples(
        st.sampled_from(["user", "topic", "pattern", "topic read", "topic deny", "pattern readwrite"])
        | st.text(max_size=8),
        st.sampled_from(["a/#", "%u/+", "%c", "#/a", "$SYS/#"]) | st.text(max_size=20),
    ).map(" ".join)
)
_PASSWORD_LINES = st.lists(
    st.sampled_from([SALTED, SALTED[:-9], "ann:", ":", "bob:$6$x$y", "eve:$7$999999999999$a$b"]) | st.text(max_size=40)
)


@pytest.mark.slow
@given(_LINES, _ACL_LINES, _PASSWORD_LINES, st.binary(max_size=20))
@settings(max_examples=300, deadline=None)
def test_any_file_becomes_a_configuration_or_an_error_in_words(
    conf_lines: list[str], acl: list[str], passwords: list[str], end: bytes
) -> None:
    """By the command itself; the file that it wrote is taken by a node, or refused in words."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "passwords").write_text("\n".join(passwords), "utf-8", "surrogateescape")
        (directory / "acl").write_text("\n".join(acl), "utf-8", "surrogateescape")
        file, output = directory / "mosquitto.conf", directory / "node" / "sterna.toml"
        output.parent.mkdir()
        file.write_bytes("\n".join(conf_lines).encode("utf-8", "surrogateescape") + end)
        with suppress(SystemExit), redirect_stdout(StringIO()), redirect_stderr(StringIO()) as told:
            main(["import", str(file), "--output", str(output)])
        if not output.exists():
            assert told.getvalue()
            return
        with suppress(ConfigurationError):
            load(output, {})


def test_a_password_that_stands_in_the_wrong_place_is_not_shown(tmp_path: Path) -> None:
    found = translate(conf(tmp_path, "remote_password hush\n"))
    assert refused(found) == ["remote_password"]
    assert "hush" not in as_toml(found) + as_json(found)


def test_tls_lines_become_those_of_the_listener(tmp_path: Path) -> None:
    for name in "server.pem", "server.key", "ca.pem":
        (tmp_path / name).write_text("")
    found = translate(
        conf(
            tmp_path,
            """listener 8883
certfile server.pem
keyfile server.key
cafile ca.pem
require_certificate true
use_identity_as_username true
tls_version tlsv1.2
listener 8884
allow_anonymous true
require_certificate true
capath /etc/ssl/certs
""",
        )
    )
    assert found.listeners == [
        {
            "bind": "0.0.0.0:8883",
            "anonymous": True,
            "certificate": f"{tmp_path}/server.pem",
            "key": f"{tmp_path}/server.key",
            "require_certificate": True,
            "client_ca": f"{tmp_path}/ca.pem",
        }
    ]
    assert found.tables["authentication"] == {"certificates": True}
    assert refused(found) == ["tls_version", "require_certificate"]


def test_names_in_comments_stay_in_their_line(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("e\x85vil = 1\x0b[admin]:x\n" + SALTED + "\n")
    file = conf(tmp_path, f"listener 0 {tmp_path}/s\npassword_file {tmp_path}/users\n")
    assert set(tomllib.loads(as_toml(translate(file)))) == {"listener", "authentication"}


def rules_of(directory: Path, acl: str, *, known: bool = True) -> tuple[AccessList, AclTranslation]:
    file = directory / "acl"
    file.write_text(acl)
    found = AclTranslation(users_are_known=known)
    found.take(read_lines(file))
    settings = {"default": "deny", "partial_subscriptions": True, "rule": found.rules}
    text = as_toml(Translation(file, {"authorization": {}}, rules=found.rules))
    made = directory / "rules.toml"
    made.write_text(text + '\n[[listener]]\nbind = "127.0.0.1:0"\nanonymous = true\n')
    assert settings["rule"] == tomllib.loads(text).get("authorization", {}).get("rule", [])
    return access.access_list(load(made, {}).authorization, ControlTable()), found


def test_prohibitions_come_before_permissions_whatever_their_order(tmp_path: Path) -> None:
    rules, _ = rules_of(
        tmp_path, "user ann\ntopic read a/#\ntopic deny a/secret\nuser bob\ntopic deny b/#\ntopic b/#\n"
    )
    ann = rules.for_identity("ann", "c")
    assert ann.may_receive(b"a/x")
    assert not ann.may_receive(b"a/secret")
    assert not ann.may_publish(b"a/x")
    assert not rules.for_identity("bob", "c").may_receive(b"b/x")
    assert not rules.for_identity(None, "c").may_receive(b"a/x")


def test_what_no_rule_can_say_is_refused(tmp_path: Path) -> None:
    rules, found = rules_of(
        tmp_path,
        "topic read\nuser anonymous\ntopic a\nuser ann\ntopic sideways a\ntopic a/#/b\ntopic x%u\nrule x\n",
    )
    assert [one.line.number for one in found.untranslated] == [2, 3, 5, 6, 7, 8]
    assert rules.for_identity(None, "c").may_publish(b"read"), "a single word is a topic, as for Mosquitto"
    assert not rules.for_identity(None, "c").may_publish(b"a")
    _, found = rules_of(tmp_path, "user ann\ntopic a\n", known=False)
    assert [one.line.number for one in found.untranslated] == [1, 2]


def test_hashes_of_mosquitto_passwd_admit_their_users(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.touch()
    for kind, user in ("sha512-pbkdf2", "ann"), ("sha512", "bob"):
        try:
            subprocess.run(["mosquitto_passwd", "-H", kind, "-b", file, user, f"{user}'s"], check=True)
        except FileNotFoundError:
            leave_out("there is no mosquitto_passwd; as root: apt-get install mosquitto")
    users = access.passwords(file)
    for user in "ann", "bob":
        assert users.verify(user, f"{user}'s".encode(), now=0.0)
        assert not users.verify(user, b"guess", now=0.0)
    assert not users.verify("carol", b"ann's", now=0.0)


def main_ends(words: list[str], status: int) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert (end.value.code or 0) == status


def test_each_reason_has_a_remedy() -> None:
    assert all(reason and remedy for reason, remedy in IMPOSSIBLE.values())
