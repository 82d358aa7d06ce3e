"""A node behind TLS, tokens and passwords: source and sink get in with what they were given, and else are told why."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from live.certificates import Authority
from sterna.cli.main import main
from sterna.pipeline.errors import PublishFailed
from sterna.pipeline.feed.client import FeedClient
from sterna.pipeline.options import WriteOptions
from sterna.pipeline.sink.publisher import NumberedPublisher
from sterna.vocabulary.errors import SternaError

from .feeding import FeedingNode, finished
from .test_feed_client import GREETING, WELCOME, door, says

pytestmark = pytest.mark.timeout(600)  # Spark starts slowly on a busy machine

PASSWORD = "correct horse"
_TOML = """
[authentication]
password_file = "{passwords}"
[[listener]]
bind = "127.0.0.1:0"
anonymous = true
[[listener]]
bind = "127.0.0.1:0"
certificate = "{certificate}"
key = "{key}"
"""


@dataclass
class Guarded:
    node: FeedingNode
    directory: Path
    """With the files token, password, ca.pem; and another's token and ca.pem in `stranger`."""

    @property
    def source(self) -> dict[str, str]:
        return {"nodes": self.node.feed, "tokenFile": self.file("token"), "caFile": self.file("ca.pem")}

    @property
    def sink(self) -> dict[str, str]:
        broker = f"127.0.0.1:{self.node.ports[1]}"
        return {"broker": broker, "user": "ann", "passwordFile": self.file("password"), "caFile": self.file("ca.pem")}

    def file(self, name: str) -> str:
        return str(self.directory / name)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    authority, _stranger = Authority(directory, "ours"), Authority(directory / "stranger", "theirs")
    certificate, key = map(str, authority.issue("node"))
    for name, text in (("token", "t" * 32), ("password", PASSWORD), ("stranger/token", "w" * 32), ("stranger/ca", "")):
        (directory / name).write_text(f"{text}\n")
    words = [sys.executable, "-m", "sterna", "passwd", str(directory / "passwords"), "ann"]
    subprocess.run(words, input=f"{PASSWORD}\n".encode(), check=True)
    toml = _TOML.format(passwords=directory / "passwords", certificate=certificate, key=key)
    feed = {"token": "t" * 32, "certificate": certificate, "key": key}
    with FeedingNode(directory / "node", toml, name="guarded", **feed) as node:
        yield Guarded(node, directory)


def test_a_stream_goes_from_a_guarded_feed_to_a_guarded_listener(
    spark: SparkSession, guarded: Guarded, tmp_path: Path
) -> None:
    guarded.node.publish("in/a", range(20))
    stream = spark.readStream.format("sterna").options(**guarded.source, reader="echo", topics="in/#")
    rows = stream.option("startingOffsets", "earliest").load().selectExpr("'out/a' as topic", "payload")
    writer = rows.writeStream.format("sterna").options(**guarded.sink).option("checkpointLocation", str(tmp_path))
    finished(writer.trigger(availableNow=True).start, 120)
    with FeedClient(guarded.node.feed, "test", "t" * 32, tls=guarded.file("ca.pem")) as feed:
        found = [batch.column("payload").to_pylist() for batch in feed.read(0, feed.status().next, ["out/#"])]
    assert sorted(int(payload) for payloads in found for payload in payloads) == list(range(20))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"passwordFile": "stranger/token"}, "does not let us in: Bad user name or password"),
        ({"user": "bob"}, "does not let us in: Bad user name or password"),
        ({"caFile": "stranger/ca.pem"}, "no TLS with node 127.0.0.1:"),
        ({"caFile": "stranger/ca"}, "holds no authorities"),
        ({"caFile": "nowhere"}, "holds no authorities: No such file"),
    ],
)
def test_a_sink_that_is_not_let_in_says_why_at_once(guarded: Guarded, change: dict[str, str], said: str) -> None:
    named = {option: guarded.file(text) if option.endswith("File") else text for option, text in change.items()}
    with pytest.raises(SternaError) as caught:
        NumberedPublisher(WriteOptions.parse({**guarded.sink, **named}), "test", 0).__enter__()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        del caught
        gc.collect()  # paho leaves the socket of a handshake that failed to this


def test_a_sink_that_speaks_no_tls_to_a_node_that_does_is_given_up(guarded: Guarded) -> None:
    plain = {key: text for key, text in guarded.sink.items() if key != "caFile"}
    with pytest.raises(PublishFailed, match=r"did not answer for 0\.5 s"):
        NumberedPublisher(WriteOptions.parse({**plain, "patienceSeconds": "0.5"}), "test", 0).__enter__()


Told = Callable[[list[str]], str]


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    """The complaint of `sterna pipeline archive` about these words, before it would start Spark."""

    def run(words: list[str]) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["pipeline", "archive", str(tmp_path / "archive"), *words])
        assert ended.value.code == 1
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line

    return run


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"--token-file": "stranger/token"}, "node guarded at 127.0.0.1:{port}: the token is wrong"),
        ({"--token-file": ""}, "node guarded at 127.0.0.1:{port}: the token is wrong"),
        ({"--token-file": "nowhere"}, "tokenFile: {directory}/nowhere cannot be read: No such file or directory"),
        ({"--cafile": "stranger/ca.pem"}, "no TLS with 127.0.0.1:{port}: its certificate is not accepted: "),
        ({"--cafile": "stranger/ca"}, "{directory}/stranger/ca holds no authorities"),
    ],
)
def test_a_job_that_is_not_let_in_says_why_in_one_line(
    guarded: Guarded, told: Told, change: dict[str, str], said: str
) -> None:
    names = {"--token-file": "token", "--cafile": "ca.pem", **change}
    words = [word for option, name in names.items() if name for word in (option, guarded.file(name))]
    line = told(["--nodes", guarded.node.feed, *words])
    assert line.removeprefix("no feed answers: ").startswith(
        said.format(port=guarded.node.feed.partition(":")[2], directory=guarded.directory)
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "127.0.0.1:1"], "no feed answers: 127.0.0.1:1 does not answer: Connection refused\n"),
        (["--nodes", "no-such-host.invalid:7885"], "no feed answers: no-such-host.invalid:7885 does not answer: "),
        (["--nodes", "here"], '"here" is no address of a feed; write host:port\n'),
        (["--nodes", "127.0.0.1:1", "--topics", "a/#/b"], 'topics: "a/#/b" is no topic filter; '),
    ],
)
def test_a_job_that_cannot_begin_says_why_in_one_line(told: Told, words: list[str], said: str) -> None:
    assert told(words).startswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([{**GREETING, "version": 2}], "{address} speaks another version of the feed; this is version 1"),
        ([GREETING, {**WELCOME, "schema": b"x"}], "node n at {address} keeps its journal in another format"),
        ([b"SSH-2.0-OpenSSH_9.2\r\n"], "{address} is no feed of a node"),
    ],
    ids=["feed", "journal", "stranger"],
)
def test_a_node_of_another_version_is_named_in_one_line(told: Told, words: list[object], said: str) -> None:
    with door(says(*words)) as address:
        assert told(["--nodes", address]) == said.format(address=address) + "\n"
