"""`sterna pub` and `sterna sub` beside mosquitto_pub and mosquitto_sub, on a real Mosquitto."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from cli.commands import WAIT_S, Mosquitto, run, start
from sterna.cli.mosquitto_flags import ConnectionFlags

_PROPERTIES = (
    ("user-property", "k", "v"),
    ("user-property", "k2", "v2"),
    ("content-type", "text/plain"),
    ("correlation-data", "abc"),
    ("response-topic", "x/y"),
    ("payload-format-indicator", "1"),
)
PROPERTIES = [word for words in _PROPERTIES for word in ("-D", "publish", *words)]


@pytest.fixture
def topic() -> str:
    return f"t/{uuid.uuid4().hex}"


def _retain(mosquitto: Mosquitto, topic: str, *how: str) -> None:
    assert run("mosquitto_pub", "-p", mosquitto.open, "-t", topic, "-r", "-q", 1, *how)[0] == 0


def _both(mosquitto: Mosquitto, *flags: object) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
    ours = run("sterna", "sub", "-p", mosquitto.open, *flags)
    theirs = run("mosquitto_sub", "-p", mosquitto.open, *flags)
    return ours[:2], theirs[:2]


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["-v"],
        ["-N", "-v"],
        ["-q", "2"],
        ["-V", "5", "-q", "1"],
        ["-F", r"%t|%20t|%-40t|%.3t|%8.3t|%p|%-20p|%l|%05l|%-5l|%x|%X|%q|%r|%m|%%|@@|\\|\t|\0|\a|\e|\n|\r|\v"],
        ["-V", "5", "-F", "%A|%5A|%C|%20C|%-20C|%.3C|%D|%F|%03F|%P|%R|%10R|%S|%q"],
        ["-V", "311", "-F", "%A|%C|%D|%E|%F|%P|%R|%S|%05E|%4A"],
    ],
    ids=" ".join,
)
def test_sub_prints_what_mosquitto_sub_prints(mosquitto: Mosquitto, topic: str, flags: list[str]) -> None:
    _retain(mosquitto, topic, "-m", '{"a": "é"}', *PROPERTIES)
    ours, theirs = _both(mosquitto, "-t", topic, "-C", 1, *flags)
    assert ours == theirs
    assert ours[1]


def test_sub_prints_any_bytes_as_they_are(mosquitto: Mosquitto, topic: str, tmp_path: Path) -> None:
    payload = bytes(range(256))
    (tmp_path / "payload").write_bytes(payload)
    _retain(mosquitto, topic, "-f", str(tmp_path / "payload"))
    ours, theirs = _both(mosquitto, "-t", topic, "-C", 1)
    assert ours == theirs == (0, payload + b"\n")


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["-v"], ["-v", "-N"]], ids=" ".join)
def test_an_empty_payload_prints_as_mosquitto_sub_prints_it(mosquitto: Mosquitto, topic: str, flags: list[str]) -> None:
    sessions = [["-p", mosquitto.open, "-t", topic, "-q", 1, "-c", "-i", uuid.uuid4().hex] for _ in range(2)]
    for session in sessions:
        assert run("mosquitto_sub", *session, "-E")[0] == 0
    for payload in (["-n"], ["-m", "x"]):
        assert run("sterna", "pub", "-p", mosquitto.open, "-t", topic, "-q", 1, *payload)[0] == 0
    ours = run("sterna", "sub", *sessions[0], "-C", 2, *flags)
    assert ours == run("mosquitto_sub", *sessions[1], "-C", 2, *flags)
    assert ours[1].rstrip().endswith(b"x")


@pytest.mark.parametrize("flags", [[], ["--pretty"], ["-V", "5", "-q", "1"], ["-V", "5", "--pretty"]], ids=" ".join)
@pytest.mark.parametrize("sequence", ["%j", "%J"])
def test_json_formats_differ_from_mosquittos_in_the_time_only(
    mosquitto: Mosquitto, topic: str, flags: list[str], sequence: str
) -> None:
    _retain(mosquitto, topic, "-m", '{"a":1,"b":{"x":null}}', *PROPERTIES)
    ours, theirs = _both(mosquitto, "-t", topic, "-C", 1, "-F", sequence, *flags)
    time = re.compile(rb'"tst":\s*"[^"]*"')
    assert re.search(rb'"tst":\s*"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}[+-]\d{4}"', ours[1])
    assert time.sub(b"", ours[1]) == time.sub(b"", theirs[1])


def test_a_payload_that_is_not_json_is_complained_of_and_the_next_printed(mosquitto: Mosquitto, topic: str) -> None:
    _retain(mosquitto, f"{topic}/a", "-m", "{")
    code, out, err = run("sterna", "sub", "-p", mosquitto.open, "-t", f"{topic}/#", "-C", 1, "-F", "%J")
    assert (code, out) == (0, b"\n")
    assert err == f"Error: Message payload is not valid JSON on topic {topic}/a\n"


def test_json_output_is_valid_whatever_the_payload(mosquitto: Mosquitto, topic: str, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    _retain(mosquitto, f"{topic}/a", "-f", str(tmp_path / "binary"))
    _retain(mosquitto, f"{topic}/b", "-m", "text\n", *PROPERTIES)
    code, out, _ = run("sterna", "sub", "-p", mosquitto.open, "-t", f"{topic}/#", "-C", 2, "--json", "-V", 5)
    messages: dict[str, Any] = {found["topic"]: found for found in map(json.loads, out.splitlines())}
    assert code == 0
    assert messages[f"{topic}/a"]["payload_base64"] == "/wA="
    assert messages[f"{topic}/b"]["payload"] == "text\n"
    assert messages[f"{topic}/b"]["properties"]["user-properties"] == {"k": "v", "k2": "v2"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [["-R", "-W", "1"], ["-T", "t/+", "-T", "t/+/b", "-C", "1"], ["--retained-only", "-W", "1"], ["-E"]],
    ids=" ".join,
)
def test_filters_and_endings_are_mosquitto_subs(mosquitto: Mosquitto, topic: str, flags: list[str]) -> None:
    for name in ("a", "b"):
        _retain(mosquitto, f"{topic}/{name}", "-m", name)
    ours, theirs = _both(mosquitto, "-t", f"{topic}/+", "-v", *flags)
    # With -E the retained messages may or may not outrun the end.
    assert ours[0] == theirs[0]
    assert "-E" in flags or ours == theirs


@pytest.mark.slow
def test_remove_retained_clears_what_it_printed(mosquitto: Mosquitto, topic: str) -> None:
    _retain(mosquitto, topic, "-m", "old")
    removal = run("sterna", "sub", "-p", mosquitto.open, "-t", topic, "--remove-retained", "-C", 1)
    assert removal[:2] == (0, b"old\n")
    assert run("mosquitto_sub", "-p", mosquitto.open, "-t", topic, "-W", 1)[:2] == (27, b"")


@pytest.mark.parametrize("version", ["311", "mqttv5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_pub_delivers_at_every_qos_in_both_versions(mosquitto: Mosquitto, topic: str, version: str, qos: int) -> None:
    flags = ["-p", mosquitto.open, "-t", topic, "-q", qos, "-V", version]
    assert run("sterna", "pub", *flags, "-r", "-m", "-5 °C") == (0, b"", "")
    assert run("mosquitto_sub", *flags, "-C", 1, "-F", "%q %r %p")[:2] == (0, f"{qos} 1 -5 °C\n".encode())


def test_pub_sets_properties_as_mosquitto_pub_does(mosquitto: Mosquitto, topic: str) -> None:
    shown = []
    for command in (["sterna", "pub"], ["mosquitto_pub"]):
        assert run(*command, "-p", mosquitto.open, "-t", topic, "-r", "-q", 1, "-m", "x", *PROPERTIES)[0] == 0
        fields = ["-V", 5, "-F", "%C %D %F %P %R", "-C", 1]
        shown.append(run("mosquitto_sub", "-p", mosquitto.open, "-t", topic, *fields)[:2])
    assert shown[0] == shown[1]
    assert shown[0][1] == b"text/plain abc 1 k:v k2:v2 x/y\n"


@pytest.mark.slow
def test_lines_files_stdin_and_repetitions_arrive_in_order(mosquitto: Mosquitto, topic: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"from\x00file")
    session = ["-p", mosquitto.open, "-t", topic, "-q", 1, "-i", uuid.uuid4().hex, "-c"]
    assert run("mosquitto_sub", *session, "-E")[0] == 0
    how = ["sterna", "pub", "-p", mosquitto.open, "-t", topic, "-q", 1]
    lines = b"".join(b"line %d\n" % number for number in range(60))
    assert run(*how, "-l", given=lines)[0] == 0
    assert run(*how, "-s", given=b"all\nof it")[0] == 0
    assert run(*how, "-f", tmp_path / "file")[0] == 0
    assert run(*how, "-n")[0] == 0
    assert run(*how, "-m", "again", "--repeat", 3, "--repeat-delay", 0.01)[0] == 0
    code, out, _ = run("sterna", "sub", *session, "-C", 66, "-F", "%p")
    assert (code, out) == (0, lines + b"all\nof it\nfrom\x00file\n\n" + b"again\n" * 3)


@pytest.mark.slow
def test_what_was_printed_last_is_acknowledged(mosquitto: Mosquitto, topic: str) -> None:
    for qos in (1, 2):
        session = ["-p", mosquitto.open, "-t", topic, "-q", qos, "-i", uuid.uuid4().hex, "-c"]
        assert run("sterna", "sub", *session, "-E")[0] == 0
        assert run("sterna", "pub", "-p", mosquitto.open, "-t", topic, "-q", qos, "-m", "once")[0] == 0
        assert run("sterna", "sub", *session, "-C", 1)[:2] == (0, b"once\n")
        assert run("sterna", "sub", *session, "-W", 1)[:2] == (27, b"")


@pytest.mark.slow
def test_exit_statuses_are_mosquittos(mosquitto: Mosquitto, topic: str) -> None:
    bob = ["-p", mosquitto.guarded, "-u", "bob", "-P", "secret"]
    cases: list[list[object]] = [
        ["-p", 1],
        ["-p", mosquitto.guarded],
        ["-p", mosquitto.guarded, "-V", 5],
        ["-p", mosquitto.guarded, "-u", "bob", "-P", "wrong"],
        ["-p", mosquitto.guarded, "-u", "bob", "-P", "wrong", "-V", "5"],
        [*bob, "-V", 5, "-q", 1],
        ["-p", mosquitto.open, "-c"],
        ["-p", mosquitto.open, "--no-such-flag"],
        ["-p", mosquitto.open, "-V", "4"],
        ["-p", mosquitto.open, "-q", "3"],
        ["--unix", "/nonexistent"],
        ["-p", mosquitto.open, "--cafile", "/nonexistent"],
    ]
    for flags in cases:
        ours = run("sterna", "pub", "-t", topic, "-m", "x", *flags)
        theirs = run("mosquitto_pub", "-t", topic, "-m", "x", *flags)
        assert ours[0] == theirs[0], (flags, ours, theirs)
        assert "secret" not in ours[2]
    assert run("sterna", "sub", *bob, "-t", topic, "-W", 1)[0] == 27


def test_a_will_is_published_when_the_client_is_killed(mosquitto: Mosquitto, topic: str) -> None:
    will = ["--will-topic", f"{topic}/will", "--will-payload", "gone", "--will-qos", 1, "--will-retain"]
    _retain(mosquitto, topic, "-m", "ready")
    reader = start("sterna", "sub", "-p", mosquitto.open, "-t", topic, *will)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"ready\n"
    reader.kill()
    reader.communicate(timeout=WAIT_S)
    shown = run("mosquitto_sub", "-p", mosquitto.open, "-t", f"{topic}/will", "-C", 1, "-W", WAIT_S)
    assert shown[:2] == (0, b"gone\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_sub_politely(mosquitto: Mosquitto, topic: str, number: signal.Signals) -> None:
    _retain(mosquitto, topic, "-m", "ready")
    reader = start("sterna", "sub", "-p", mosquitto.open, "-t", topic)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"ready\n"
    reader.send_signal(number)
    assert reader.communicate(timeout=WAIT_S) == (b"", b"")
    assert reader.returncode == 0


def test_sub_ends_when_its_reader_has_gone(mosquitto: Mosquitto, topic: str) -> None:
    _retain(mosquitto, topic, "-m", "ready")
    reader = start("sterna", "sub", "-p", mosquitto.open, "-t", topic)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"ready\n"
    reader.stdout.close()
    run("mosquitto_pub", "-p", mosquitto.open, "-t", topic, "-m", "into the void")
    assert reader.wait(WAIT_S) == 0
    assert reader.stderr is not None
    assert reader.stderr.read() == b""
    for pipe in (reader.stdin, reader.stderr):
        assert pipe is not None
        pipe.close()


def test_unix_websocket_and_url_reach_the_same_broker(mosquitto: Mosquitto, topic: str) -> None:
    assert run("sterna", "pub", "--unix", mosquitto.socket, "-t", topic, "-m", "u", "-r", "-q", 1)[0] == 0
    assert run("sterna", "sub", "--ws", "-p", mosquitto.websocket, "-t", topic, "-C", 1)[:2] == (0, b"u\n")
    url = f"mqtt://bob:secret@127.0.0.1:{mosquitto.guarded}/ok/#"
    assert run("sterna", "sub", "-L", url, "-E")[0] == 0


@pytest.mark.parametrize("version", ["311", "5"])
def test_a_refusal_names_the_broker(mosquitto: Mosquitto, topic: str, version: str) -> None:
    code, _, err = run("sterna", "pub", "-p", mosquitto.guarded, "-V", version, "-t", topic, "-m", "x")
    assert code != 0
    assert err.startswith(f"Connection error: localhost:{mosquitto.guarded}: ")


CONNACK, SUBACK = b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x00"


def _serve_hello(server: socket.socket, topic: str) -> None:
    """Take one subscriber in and give it one message."""
    message = b"\x30" + bytes([2 + len(topic) + 5]) + len(topic).to_bytes(2, "big") + topic.encode() + b"hello"
    connection = server.accept()[0]
    with connection:
        connection.settimeout(WAIT_S)
        assert connection.recv(1000)[:1] == b"\x10"
        connection.sendall(CONNACK)
        assert connection.recv(1000)[:1] == b"\x82"
        connection.sendall(SUBACK + message)
        connection.recv(1000)


@pytest.mark.slow
def test_sub_comes_back_when_the_connection_is_lost(topic: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        reader = start("sterna", "sub", "-p", server.getsockname()[1], "-t", topic, "-C", 1)
        with server.accept()[0] as first:
            first.settimeout(WAIT_S)
            assert first.recv(1000)[:1] == b"\x10"
            first.sendall(CONNACK)
            assert first.recv(1000)[:1] == b"\x82"
        _serve_hello(server, topic)
        assert reader.communicate(timeout=WAIT_S) == (b"hello\n", b"")
    assert reader.returncode == 0


@pytest.mark.parametrize("command", [["pub", "-l"], ["sub"]], ids=["pub", "sub"])
def test_being_hung_up_on_before_connack_ends_the_command_with_a_hint(topic: str, command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        port = server.getsockname()[1]
        client = start("sterna", *command, "-p", port, "-t", topic)
        server.accept()[0].close()
        assert client.wait(WAIT_S) == 7, "without waiting for input either"
        out, err = client.communicate(timeout=WAIT_S)
    assert out == b""
    where, _, what = err.decode().removeprefix("Error: ").partition(": ")
    assert where == f"localhost:{port}"
    assert what.startswith("The connection was closed before CONNACK. Is this a TLS port?")


@pytest.mark.parametrize("command", [["pub", "-m", "x"], ["sub"]], ids=["pub", "sub"])
def test_a_port_at_which_nobody_listens_is_asked_about(topic: str, command: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        said = run("sterna", *command, "-p", port, "-t", topic)
    assert said == (1, b"", f"Error: localhost:{port}: Connection refused; is a broker running there?\n")


@pytest.mark.parametrize("flag", ["--cafile", "--cert", "--key"])
def test_a_tls_file_that_is_missing_is_named(topic: str, flag: str) -> None:
    others = [word for other in ("--cert", "--key") if flag != "--cafile" for word in (other, __file__)]
    status, out, said = run("sterna", "pub", "-t", topic, "-m", "x", "--cafile", __file__, *others, flag, "nowhere.pem")
    assert (status, out) == (1, b"")
    assert f"{flag}: nowhere.pem cannot be read: No such file or directory" in said


@pytest.mark.slow
def test_keep_trying_outlasts_a_refusal_and_a_connection_hung_up_on(topic: str) -> None:
    with socket.socket() as server:
        server.settimeout(WAIT_S)
        server.bind(("127.0.0.1", 0))  # taken and not listening: whoever comes is refused
        reader = start("sterna", "sub", "--keep-trying", "-p", server.getsockname()[1], "-t", topic, "-C", 1)
        assert reader.stderr is not None
        assert reader.stderr.readline() == b"Error: localhost:%d: Connection refused\n" % server.getsockname()[1]
        server.listen()
        server.accept()[0].close()
        _serve_hello(server, topic)
        out, err = reader.communicate(timeout=WAIT_S)
    assert (reader.returncode, out) == (0, b"hello\n")
    assert b"closed before CONNACK" in err


@pytest.mark.slow
def test_pub_keeps_trying_too_and_delivers_in_the_end(topic: str) -> None:
    with socket.socket() as server:
        server.settimeout(WAIT_S)
        server.bind(("127.0.0.1", 0))
        writer = start("sterna", "pub", "--keep-trying", "-p", server.getsockname()[1], "-t", topic, "-m", "at last")
        assert writer.stderr is not None
        assert writer.stderr.readline() == b"Error: localhost:%d: Connection refused\n" % server.getsockname()[1]
        server.listen()
        with server.accept()[0] as connection:
            connection.settimeout(WAIT_S)
            assert connection.recv(1000)[:1] == b"\x10"
            connection.sendall(CONNACK)
            assert b"at last" in connection.recv(1000)
            writer.communicate(timeout=WAIT_S)
    assert writer.returncode == 0


@pytest.mark.slow
def test_keep_trying_ends_when_time_is_up(topic: str) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        flags = ["--keep-trying", "-W", 1, "-p", server.getsockname()[1], "-t", topic]
        assert run("sterna", "sub", *flags)[:2] == (27, b"")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["pub", "-t", "a", "-m", "x", "--psk", "ab"], "--psk"),
        (["pub", "-t", "a", "-m", "x", "--proxy", "socks5h://p"], "SOCKS proxies are not supported"),
        (["pub", "-t", "a"], "exactly one of -f, -l, -m, -n, -s"),
        (["pub", "-t", "a/+", "-m", "x"], "without wildcards"),
        (["pub", "-t", "a", "-m", "x", "-D", "publish", "content-type"], "-D command identifier value"),
        (["pub", "-t", "a", "-m", "x", "-D", "publish", "no-such", "1"], "there is no property no-such"),
        (["pub", "-t", "a", "-m", "x", "-D", "publish", "topic-alias", "x"], "topic-alias"),
        (["pub", "-t", "a", "-m", "x", "-D", "fly", "topic-alias", "1"], "not fly"),
        (["pub", "-t", "a", "-m", "x", "-x", "soon"], "no session expiry"),
        (["pub", "-t", "a", "-m", "x", "--will-qos", "1"], "--will-topic"),
        (["pub", "-t", "a", "-m", "x", "-L", "http://x"], "-L"),
        (["pub", "-t", "a", "-f", "/nonexistent"], "cannot be read"),
        (["sub"], "name a topic filter"),
        (["sub", "-t", "a#"], "no topic filter"),
        (["sub", "-t", "a", "-F", "%z"], "there is no field %z"),
        (["sub", "-t", "a", "-F", "%"], "ends within a sequence"),
        (["sub", "-t", "a", "-F", "\\q"], "there is no escape"),
    ],
)
def test_bad_usage_is_explained_and_ends_with_1(words: list[str], complaint: str) -> None:
    code, out, err = run("sterna", *words)
    assert (code, out) == (1, b"")
    assert complaint in re.sub(r"\s*│\n│\s*", " ", err)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mqtt://h/a/#", ("h", 1883, None, None, "a/#", "tcp", False)),
        ("mqtts://u:p%40@h:1/t", ("h", 1, "u", "p@", "t", "tcp", True)),
        ("mqtt://u@[::1]/", ("::1", 1883, "u", None, None, "tcp", False)),
        ("wss://h/t", ("h", 443, None, None, "t", "websockets", True)),
    ],
)
def test_a_url_says_all_it_can(url: str, expected: tuple[object, ...]) -> None:
    assert tuple(ConnectionFlags(url=url).target) == expected


def _responder(mosquitto: Mosquitto, topic: str, response: str) -> None:
    """Answers one request on `topic` with its own payload, twice: first to somebody else."""
    asked = run("sterna", "sub", "-p", mosquitto.open, "-V", 5, "-t", topic, "-C", 1, "-F", "%R|%D|%p")
    assert asked[0] == 0, asked
    place, mark, payload = asked[1].decode().rstrip("\n").split("|")
    assert place == response
    for correlation, answer in (("somebody", "not for you"), (mark, f"re: {payload}")):
        words = ("-D", "publish", "correlation-data", correlation)
        assert run("mosquitto_pub", "-p", mosquitto.open, "-V", 5, "-t", place, *words, "-m", answer)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("words", [("sterna", "rr"), ("mosquitto_rr",)], ids=" ".join)
def test_rr_asks_and_prints_the_answer_as_mosquitto_rr_does(
    mosquitto: Mosquitto, topic: str, words: tuple[str, ...]
) -> None:
    flags = ["-p", mosquitto.open, "-t", topic, "-e", f"{topic}/re", "-m", "how are you", "-q", 1, "-W", 2]
    flags += ["-D", "publish", "correlation-data", "mine"]
    responder = threading.Thread(target=_responder, args=(mosquitto, topic, f"{topic}/re"))
    responder.start()
    for _ in range(60):  # a request that came before the responder was subscribed is asked again
        status, out, err = run(*words, *flags)
        if status == 0:
            break
        assert status == 27, err
    responder.join()
    # Theirs takes any message on the topic for the answer.
    assert out == (b"re: how are you\n" if words[0] == "sterna" else b"not for you\n"), err


@pytest.mark.slow
def test_rr_says_what_is_missing(mosquitto: Mosquitto, topic: str) -> None:
    for flags, part in (
        (["-t", topic, "-m", "x"], "-e"),
        (["-t", topic, "-e", "a/+", "-m", "x"], "without wildcards"),
        (["-t", topic, "-e", "a"], "exactly one of"),
    ):
        status, _, err = run("sterna", "rr", "-p", mosquitto.open, *flags)
        assert (status, part in err) == (1, True), err
    status, _, err = run("sterna", "rr", "-p", mosquitto.open, "-t", topic, "-e", f"{topic}/re", "-n", "-W", 1)
    assert (status, err) == (27, "Timed out\n")
