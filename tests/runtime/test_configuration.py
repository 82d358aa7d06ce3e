"""The configuration: what it takes, what it refuses, and how well it says why."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from sterna.broker.limits import Limits
from sterna.journal.settings import JournalSettings
from sterna.runtime.config import access
from sterna.runtime.config.loading import load
from sterna.runtime.config.networks import networks
from sterna.runtime.config.problems import InvalidConfiguration
from sterna.runtime.config.reader import as_toml
from sterna.runtime.config.schema import Bind, Unusable
from sterna.runtime.config.settings import Configuration, ControlTable
from sterna.runtime.config.toml_source import TomlSource, write_toml


def _load(directory: Path, text: str, environ: Mapping[str, str] | None = None) -> Configuration:
    file = directory / "sterna.toml"
    file.write_text(text)
    return load(file, environ or {})


def _problems(directory: Path, text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(InvalidConfiguration) as caught:
        _load(directory, text, environ)
    assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]
    return [str(problem).removeprefix(f"{directory}/") for problem in caught.value.problems]


def _certificate(directory: Path, name: str) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem, encoding = directory / f"{name}.pem", serialization.Encoding.PEM
    pem.write_bytes(certificate.public_bytes(encoding))
    key_file = directory / f"{name}.key"
    no_password = serialization.NoEncryption()
    key_file.write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, no_password))
    return pem, key_file


def test_without_a_file_there_is_a_loopback_broker() -> None:
    configuration = load(None, {})
    [listener] = configuration.listeners
    assert listener.bind == Bind("127.0.0.1", 1883)
    assert listener.anonymous
    assert configuration.node.data == Path.cwd() / "sterna-data"
    assert configuration.admin.bind == Bind("127.0.0.1", 9883)
    assert configuration.limits == Limits()
    assert configuration.journal == JournalSettings()


def test_every_limit_and_journal_setting_is_a_key_of_the_file(tmp_path: Path) -> None:
    limits = "\n".join(f"{found.name} = {found.default}" for found in dataclasses.fields(Limits))
    journal = "\n".join(f"{found.name} = {json.dumps(found.default)}" for found in dataclasses.fields(JournalSettings))
    assert _load(tmp_path, f"[limits]\n{limits}\n[journal]\n{journal}").limits == Limits()
    assert _load(tmp_path, "[journal]\ndurability = 'os'").journal == JournalSettings(durability="os")


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    text = '[limits]\ninflight = 5\nqueued = 7\n[[listener]]\nbind = "127.0.0.1:1"'
    environ = {
        "STERNA_LIMITS_INFLIGHT": "9",
        "STERNA_LISTENER_0_BIND": "127.0.0.1:2",
        "STERNA_LISTENER_1_BIND": "[::1]:3",
        "STERNA_LISTENER_1_TRANSPORT": "websocket",
        "STERNA_AUTHORIZATION_RULE_0_FILTERS": "a/#, b",
        "STERNA_ADMIN_BIND": "",
        "STERNA_NODE_NAME": "n2",
        "PATH": "/bin",
    }
    configuration = _load(tmp_path, text, environ)
    assert (configuration.limits.inflight, configuration.limits.queued) == (9, 7)
    assert [str(listener.bind) for listener in configuration.listeners] == ["127.0.0.1:2", "[::1]:3"]
    assert configuration.listeners[1].transport == "websocket"
    assert configuration.authorization.rules[0].filters == ("a/#", "b")
    assert configuration.admin.bind is None
    assert configuration.node.name == "n2"


def test_an_unknown_variable_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        load(None, {"STERNA_LIMTS_INFLIGHT": "1", "STERNA_LIMITS_QUEUED": "many"})
    assert [str(problem) for problem in caught.value.problems] == [
        "environment: STERNA_LIMTS_INFLIGHT: unknown variable; did you mean STERNA_LIMITS_INFLIGHT?",
        'environment: STERNA_LIMITS_QUEUED: "many" is not a whole number; write it like 10, without quotes',
    ]


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("[[listener]]\nport = 1883", "[[listener]] port: unknown key; did you mean bind?"),
        ("[admin]\naddress = '127.0.0.1'", "[admin] address: unknown key; did you mean bind?"),
        ("[persistence]\nfile = 'x'", "[persistence]: unknown table; use one of node, journal, limits,"),
        ("[[listener]]\nprotocol = 'x'", "[[listener]] protocol: unknown key; use one of serves, bind, transport,"),
        ("[limits]\nin_flight = 1", "[limits] in_flight: unknown key; did you mean inflight?"),
    ],
)
def test_only_what_is_near_is_suggested(tmp_path: Path, text: str, fix: str) -> None:
    [problem] = _problems(tmp_path, text)
    assert fix in problem


def test_a_variable_that_is_like_no_other_suggests_none() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        load(None, {"STERNA_PERSISTENCE": "1"})
    assert "did you mean" not in str(caught.value)


def test_names_reserved_for_tests_and_peers_are_left_alone() -> None:
    assert load(None, {"STERNA_TEST_SEED": "1", "STERNA_PEER": "mosquitto"}) == load(None, {})


def test_relative_paths_start_where_they_are_written(tmp_path: Path) -> None:
    assert _load(tmp_path, '[node]\ndata = "d"').node.data == tmp_path / "d"
    assert _load(tmp_path, "", {"STERNA_NODE_DATA": "d"}).node.data == Path.cwd() / "d"


def test_all_problems_are_found_in_one_go_with_line_and_fix(tmp_path: Path) -> None:
    text = """\
[node]
nme = "a"

[limits]
packet_bytes = "big"
receive_maximum = 0

[[listener]]
bind = "127.0.0.1:70000"
[[listener]]
bind = "0.0.0.0:1883"
transport = "websockets"
[lissener]
"""
    assert _problems(tmp_path, text) == [
        "sterna.toml:2: [node] nme: unknown key; did you mean name?",
        'sterna.toml:5: [limits] packet_bytes: "big" is not a whole number; write it like 10, without quotes',
        "sterna.toml:6: [limits] receive_maximum: 0 is out of range; use 1..65535",
        "sterna.toml:9: [[listener]] bind: port 70000 is out of range; use 1..65535",
        "sterna.toml:11: [[listener]] bind: 0.0.0.0:1883 can be reached from other machines and nothing checks who "
        "connects; set password_file in [authentication] (see `sterna passwd`), or say anonymous = true in this "
        "[[listener]]",
        'sterna.toml:12: [[listener]] transport: "websockets" is none of "tcp", "websocket"; did you mean "websocket"?',
        "sterna.toml:13: [lissener]: unknown table; did you mean listener?",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = 'b\n", 'sterna.toml:1: not TOML: Expected "\'"; correct this line or the one before it'),
        ("[node]\nname = 5", "sterna.toml:2: [node] name: 5 is not text; put it in quotes"),
        ("[node]\nname = 'a b'", 'sterna.toml:2: [node] name: "a b" is no name; use up to 64 letters, digits, . _ -'),
        ("[listener]", "sterna.toml:1: [listener]: must be a list of tables; write [[listener]]"),
        ("listener = []", "sterna.toml:1: [listener]: there is none, so no client could connect; add a [[listener]]"),
        ("[[admin]]", "sterna.toml:1: [admin]: must be one table; write [admin]"),
        ("limits.inflight = true", "sterna.toml:1: [limits] inflight: true is not a whole number; write it like 10"),
        ("[limits]\nconnect_s = nan", "sterna.toml:2: [limits] connect_s: nan is out of range; use 0.1..3600"),
        ("[limits]\nqueued = -1", "sterna.toml:2: [limits] queued: -1 is out of range; use 0 or more"),
        ("[mqtt]\nsys_interval_s = inf", "sterna.toml:2: [mqtt] sys_interval_s: inf is out of range; use 0..86400"),
        (
            "[[listener]]\nbind = '1883'",
            'sterna.toml:2: [[listener]] bind: "1883" is no address; write "127.0.0.1:1883"',
        ),
        ("[[listener]]\nbind = ':1'", "sterna.toml:2: [[listener]] bind: the host is missing; write"),
        ("[[listener]]\nbind = 'unix:'", "sterna.toml:2: [[listener]] bind: the socket has no path; write"),
        ("[[listener]]\nkey = 'k'", "sterna.toml:2: [[listener]] key: a key without a certificate; add certificate"),
        (
            "[[listener]]\nrequire_certificate = true",
            "sterna.toml:2: [[listener]] require_certificate: no authority to check certificates by; add client_ca",
        ),
        (
            "[[listener]]\nallowed_origins = ['https://a']",
            "sterna.toml:2: [[listener]] allowed_origins: only browsers have an origin, and they come by WebSocket",
        ),
        (
            "[[listener]]\ntransport = 'websocket'\nallowed_origins = ['*', 'null', 'https://a:1', 'https://a/b']",
            'sterna.toml:3: [[listener]] allowed_origins: "https://a/b" is no origin; write "https://plant.example"',
        ),
        (
            "[[listener]]\nanonymous = false",
            "sterna.toml:1: [[listener]] bind: nobody could connect to 127.0.0.1:1883",
        ),
        (
            "[[listener]]\nbind='[::1]:5'\n[admin]\nbind = '[::1]:5'",
            "sterna.toml:4: [admin] bind: [::1]:5 is already taken in line 2; use another port",
        ),
        ("[admin]\nbind = '0.0.0.0:1'", "sterna.toml:2: [admin] bind: 0.0.0.0:1 shows metrics to everybody"),
        (
            "[admin]\nanonymous = false",
            "sterna.toml:2: [admin] anonymous: nobody may read here or change anything; set token_file",
        ),
        ("[admin]\ntoken = 'short'", "sterna.toml:2: [admin] token: the token of the admin port has 5 bytes"),
        (
            "[authentication]\ncertificates = true",
            "sterna.toml:2: [authentication] certificates: no listener asks for certificates; set client_ca",
        ),
        (
            "[authentication.token]\naudience = 'a'",
            "sterna.toml:1: [authentication.token] algorithms: is missing; add algorithms = ...",
        ),
        (
            "[authentication.token]\nalgorithms = ['HS256']",
            "sterna.toml:1: [authentication.token] secret_file: is missing, and HS256 needs it; name the file",
        ),
        (
            "[authentication.token]\nalgorithms = ['none']",
            "sterna.toml:2: [authentication.token] algorithms: token algo",
        ),
        ("[[authorization.rule]]\nuser = 'a'", "sterna.toml:1: [[authorization.rule]] filters: is missing; add"),
        (
            "[[authorization.rule]]\nfilters = [\n 'a',\n 'b#']",
            "sterna.toml:2: [[authorization.rule]] filters: topic filter 'b#' in an access rule",
        ),
    ],
)
def test_a_problem_names_its_place_and_its_fix(tmp_path: Path, text: str, problem: str) -> None:
    found = _problems(tmp_path, text)
    assert any(line.startswith(problem) for line in found), found


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    text = "[authentication]\npassword_file = 'none'\n[[listener]]\nbind = '0.0.0.0:1'\ncertificate = 'c'\nkey = 'k'"
    assert _problems(tmp_path, text) == [
        f"sterna.toml:2: [authentication] password_file: {tmp_path}/none cannot be read: No such file or directory; "
        "name a readable file",
        f"sterna.toml:5: [[listener]] certificate: {tmp_path}/c cannot be read: No such file or directory; "
        "name a readable file",
        f"sterna.toml:6: [[listener]] key: {tmp_path}/k cannot be read: No such file or directory; "
        "name a readable file",
    ]


def test_a_missing_configuration_file_is_a_problem_too(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"none\.toml: cannot be read: No such file or directory"):
        load(tmp_path / "none.toml", {})


def test_a_broken_password_file_is_quoted_with_its_own_line(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("# users\nalice\n")
    [problem] = _problems(tmp_path, "[authentication]\npassword_file = 'pw'")
    assert problem.startswith(f"sterna.toml:2: [authentication] password_file: {tmp_path}/pw, line 2:")


def test_a_key_that_belongs_to_another_certificate_is_refused(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path, "one")
    _, other_key = _certificate(tmp_path, "two")
    table = "[[listener]]\nbind = '127.0.0.1:8883'\ncertificate = '{}'\nkey = '{}'"
    assert _load(tmp_path, table.format(certificate, key)).listeners[0].is_secure
    [problem] = _problems(tmp_path, table.format(certificate, other_key))
    assert problem.startswith(f"sterna.toml:4: [[listener]] key: {other_key} is not the key of {certificate};")
    [problem] = _problems(tmp_path, table.format(key, key))
    assert "cannot be loaded; use a PEM certificate chain" in problem


def test_beyond_loopback_somebody_must_check_or_the_operator_say_otherwise(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path, "one")
    (tmp_path / "pw").write_text("")
    tls = f"certificate = '{certificate}'\nkey = '{key}'\nclient_ca = '{certificate}'\n"
    beyond = "[[listener]]\nbind = '192.0.2.1:1883'\n"
    assert len(_problems(tmp_path, beyond)) == 1
    assert len(_problems(tmp_path, beyond + tls)) == 1, "asking for a certificate is not requiring one"
    assert _load(tmp_path, beyond + tls + "require_certificate = true").listeners[0].anonymous is False
    named = _load(tmp_path, beyond + tls + "[authentication]\ncertificates = true")
    assert named.listeners[0].anonymous is False, "who shows none has no name, and is refused"
    assert _load(tmp_path, beyond + "anonymous = true").listeners[0].anonymous is True
    assert _load(tmp_path, beyond + "[authentication]\npassword_file = 'pw'").listeners[0].anonymous is False
    assert _load(tmp_path, "[[listener]]\nbind = 'unix:/run/s'").listeners[0].anonymous is True


def test_gateways_are_addresses_and_networks(tmp_path: Path) -> None:
    default = networks(_load(tmp_path, "").mqtt.gateways)
    for address, may in (
        ("127.0.0.1:5", True),
        ("::1:5", True),
        ("unix", True),
        ("192.0.2.7:5", False),
        ("::2:5", False),
    ):
        assert access.may_be_gateway(default, address) is may
    named = networks(_load(tmp_path, '[mqtt]\ngateways = ["192.0.2.0/30", "2001:db8::1"]').mqtt.gateways)
    for address, may in ("127.0.0.1:5", False), ("192.0.2.3:5", True), ("192.0.2.4:5", False), ("2001:db8::1:5", True):
        assert access.may_be_gateway(named, address) is may
    [problem] = _problems(tmp_path, '[mqtt]\ngateways = "gateway.example"')
    assert problem.startswith("sterna.toml:2: [mqtt] gateways: 'gateway.example' does not appear to be")
    assert problem.endswith('write addresses such as "192.0.2.7", or networks "192.0.2.0/24"')


def test_rules_turn_the_default_to_deny_unless_it_is_said(tmp_path: Path) -> None:
    rule = "[[authorization.rule]]\nuser = 'alice'\nfilters = 'a/#'\n"
    assert _load(tmp_path, "").authorization.default == "allow"
    authorization = _load(tmp_path, rule).authorization
    assert authorization.default == "deny"
    permissions = access.access_list(authorization, ControlTable())
    assert permissions.for_identity("alice", "c").may_publish(b"a/b")
    assert not permissions.for_identity("bob", "c").may_publish(b"a/b")
    assert _load(tmp_path, "[authorization]\ndefault = 'allow'\n" + rule).authorization.default == "allow"


def test_a_newline_at_the_end_of_a_token_secret_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x" * 64 + b"\n")
    text = "[authentication.token]\nalgorithms = 'HS256'\nsecret_file = 'secret'"
    token = _load(tmp_path, text).authentication.token
    assert token is not None
    assert token.algorithms == ("HS256",)
    assert access.tokens(token) is not None


def test_the_printed_configuration_reads_back_as_itself(tmp_path: Path) -> None:
    text = """
[node]
name = "n"
[[listener]]
bind = "unix:/tmp/a \\"quoted\\" \\u0001 path"
[[listener]]
bind = "[::1]:1"
[[authorization.rule]]
filters = ["a", "%u/#"]
[[authorization.rule]]
filters = "b"
effect = "deny"
[admin]
bind = ""
"""
    configuration = _load(tmp_path, text)
    assert _load(tmp_path, as_toml(configuration)) == configuration


@given(
    st.recursive(
        st.dictionaries(
            st.from_regex("[a-z]{1,3}", fullmatch=True),
            st.one_of(st.booleans(), st.integers(-9, 9), st.text(), st.lists(st.text(), max_size=2)),
            max_size=3,
        ),
        lambda inner: st.dictionaries(
            st.from_regex("[a-z]{1,3}", fullmatch=True), inner | st.lists(inner, min_size=1, max_size=2), max_size=3
        ),
        max_leaves=8,
    )
)
def test_whatever_is_written_as_toml_reads_back(tree: dict[str, object]) -> None:
    assert TomlSource(write_toml(tree)).tree == tree


def test_lines_are_found_for_dotted_quoted_inline_and_repeated_keys() -> None:
    source = TomlSource(
        'a.b = 1\ninline = {x = 1}\nlong = """\n[no]\nb = 2\n"""\n["q t"]\nk = 1\n'
        "[[t]]\nk = 1\n[[t.u]]\nk = 1\n[[t]]\n[[t.u]]\n[[t.u]]\nk = 2\n[t.v]\nk = 3\n"
    )
    found = {
        ("a", "b"): 1,
        ("inline", "x"): 2,
        ("long",): 3,
        ("no",): None,
        ("q t", "k"): 8,
        ("t", 0, "k"): 10,
        ("t", 0, "u", 0, "k"): 12,
        ("t", 1, "u", 1, "k"): 16,
        ("t", 1, "v", "k"): 18,
        ("t", 1, "missing"): 13,
    }
    assert {place: source.line_of(place) for place in found} == found


@pytest.mark.parametrize(
    ("text", "is_local"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:0", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("unix:/s", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("example.org:1", False),
    ],
)
def test_a_bind_knows_whether_it_can_be_reached_from_elsewhere(text: str, is_local: bool) -> None:
    bind = Bind.parse(text)
    assert bind.is_local is is_local
    assert str(bind) == text


@given(st.text())
def test_an_address_is_refused_or_reads_back_as_itself(text: str) -> None:
    try:
        bind = Bind.parse(text)
    except Unusable:
        return
    assert Bind.parse(str(bind)) == bind


def test_the_real_environment_of_a_machine_is_no_problem() -> None:
    foreign = {name: value for name, value in os.environ.items() if not name.startswith("STERNA_")}
    assert load(None, foreign).listeners


def test_where_passwords_are_asked_for_loopback_takes_nobody_without(tmp_path: Path) -> None:
    (tmp_path / "passwords").write_text("")
    file = tmp_path / "sterna.toml"
    file.write_text('[[listener]]\nbind = "127.0.0.1:0"\n')
    assert load(file, {}).listeners[0].anonymous
    file.write_text('[[listener]]\nbind = "127.0.0.1:0"\n[authentication]\npassword_file = "passwords"\n')
    assert not load(file, {}).listeners[0].anonymous


def test_a_token_opens_the_admin_port_beyond_loopback_and_is_never_printed(tmp_path: Path) -> None:
    file = tmp_path / "sterna.toml"
    file.write_text("[admin]\nbind = '0.0.0.0:9883'\ntoken = 'a token of some length'\n")
    configuration = load(file, {})
    assert not configuration.admin.anonymous
    assert "a token of some length" not in as_toml(configuration)


def test_control_topics_are_for_users_that_something_checks(tmp_path: Path) -> None:
    (problem,) = _problems(tmp_path, '[adaptation]\nusers = ["boss"]\n')
    assert problem.endswith(
        '[adaptation] users: nothing checks who is "boss"; set password_file in [authentication] (see `sterna passwd`)'
    )
    (problem,) = _problems(tmp_path, '[adaptation]\nusers = ["*"]\n')
    assert "every client speak as a coordinator" in problem
    (problem,) = _problems(tmp_path, '[journal]\nkeep = ["$adaptation/#"]\n')
    assert "which no journal keeps" in problem
    assert _load(tmp_path, '[adaptation]\nusers = ["anonymous"]\ngateways = ["*"]\n').adaptation.gateways == ("*",)
