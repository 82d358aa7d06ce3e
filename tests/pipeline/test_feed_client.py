"""The feed's client alone, against doors that are no feed: one clear line, and never a hang."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec
import pytest

from sterna.journal.columns import SCHEMA
from sterna.node.feed_proofs import reader_proof
from sterna.pipeline.feed.client import TABLE_SCHEMA, FeedClient
from sterna.pipeline.feed.errors import FeedError, FeedRefused, Unreachable
from sterna.pipeline.table import SCHEMA as SPARK_TABLE

TOKEN = "a token of sixteen bytes or more"
GREETING = {"version": 1, "nonce": bytes(32)}
WELCOME = {"ok": True, "node": "n", "epoch": 1, "schema": SCHEMA.serialize().to_pybytes()}


def piece(said: object) -> bytes:
    body = said if isinstance(said, bytes) else msgspec.msgpack.encode(said)
    return len(body).to_bytes(4, "big") + body


@contextmanager
def door(behaviour: Callable[[socket.socket], None]) -> Iterator[str]:
    """Somebody who behaves like this towards each who connects."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    behaviour(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def says(*words: object) -> Callable[[socket.socket], None]:
    """Says the first at once, and one more for each thing it hears."""

    def behaviour(connection: socket.socket) -> None:
        with suppress(ConnectionError):  # it may have heard enough
            for word in words:
                connection.sendall(word if isinstance(word, bytes) else piece(word))
                if not connection.recv(65536):
                    return

    return behaviour


@pytest.mark.parametrize("address", ["", "nowhere", "host:", ":1", "host:port", "host:70000"])
def test_what_is_no_address_is_refused_at_once(address: str) -> None:
    with pytest.raises(FeedRefused, match="is no address of a feed; write host:port"):
        FeedClient(address, "test")


def test_nobody_there_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(Unreachable, match=f"^{address} does not answer: Connection refused$"):
        FeedClient(address, "test").status()


def test_a_host_without_a_name_is_one_line() -> None:
    with pytest.raises(Unreachable, match=r"^no-such-host\.invalid:1 does not answer: "):
        FeedClient("no-such-host.invalid:1", "test").status()


@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [
        ([b"SSH-2.0-OpenSSH_9.2\r\n"], FeedRefused, "is no feed of a node"),
        ([piece(b"\xc1")], FeedRefused, "is no feed of a node"),
        ([piece([1, 2])], FeedRefused, "is no feed of a node"),
        ([{"version": 2, "nonce": bytes(32)}], FeedRefused, "speaks another version of the feed"),
        ([{"version": 1}], FeedRefused, "speaks another version of the feed"),
        (
            [GREETING, {"ok": False, "node": "n", "reason": "the token is wrong"}],
            FeedRefused,
            "node n at .*: the token",
        ),
        ([GREETING, {**WELCOME, "schema": b"other"}], FeedRefused, "node n at .* keeps its journal in another format"),
        ([GREETING, WELCOME, {"node": "n"}], FeedRefused, "is no feed this reader understands"),
        ([GREETING, WELCOME], Unreachable, "hung up"),
        ([GREETING], Unreachable, "hung up"),
    ],
    ids=["ssh", "junk", "list", "version", "no-nonce", "token", "format", "status", "gone", "gone-early"],
)
def test_whoever_answers_strangely_is_named_in_one_line(words: list[object], kind: type[FeedError], text: str) -> None:
    with (
        door(says(*words)) as address,
        FeedClient(address, "test", timeout_s=60) as client,
        pytest.raises(kind, match=text) as caught,
    ):
        client.status()
    assert address in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "proof",
    [None, b"x" * 32, reader_proof(TOKEN.encode(), bytes(32), "test")],
    ids=["none", "made-up", "the-reader's-own"],
)
def test_a_node_that_does_not_know_the_token_is_not_read(proof: bytes | None) -> None:
    welcome = WELCOME if proof is None else {**WELCOME, "proof": proof}
    with (
        door(says(GREETING, welcome, {"node": "n", "epoch": 1, "first": 0, "next": 5})) as address,
        FeedClient(address, "test", TOKEN, timeout_s=60) as client,
        pytest.raises(FeedRefused, match="does not prove that it knows the token") as caught,
    ):
        client.status()
    assert caught.value.code == "proof"


def test_a_nonce_of_another_length_gets_no_proof() -> None:
    """A longer one could be what a node has to prove to somebody else."""
    with door(says({"version": 1, "nonce": bytes(68)}, WELCOME)) as address:
        client = FeedClient(address, "test", TOKEN, timeout_s=60)
        with pytest.raises(FeedRefused, match="speaks another version of the feed"):
            client.status()


def test_an_endless_greeting_is_not_waited_for() -> None:
    with door(says((1 << 20).to_bytes(4, "big") + bytes(1000))) as address:
        client = FeedClient(address, "test", timeout_s=60)
        with pytest.raises(FeedRefused, match="is no feed of a node"):
            client.status()


def silent(connection: socket.socket) -> None:
    connection.recv(1)


def test_who_never_answers_is_given_up() -> None:
    with door(silent) as address:
        client = FeedClient(address, "test", timeout_s=0.2)
        with pytest.raises(Unreachable, match="does not answer in time") as caught:
            client.status()
        assert caught.value.timed_out


def test_a_piece_that_is_no_piece_of_a_journal_is_told() -> None:
    with door(says(GREETING, WELCOME, piece({"ok": True, "first": 0}) + piece(b"\x00rubbish"))) as address:
        client = FeedClient(address, "test", timeout_s=60)
        with pytest.raises(Unreachable, match="what the node sent is no piece of a journal"):
            list(client.read(0, 10))


def test_files_that_hold_no_authorities_are_refused_at_once() -> None:
    with pytest.raises(FeedRefused, match="holds no authorities"):
        FeedClient("127.0.0.1:1", "test", tls="/no/such/file.pem")


def test_the_table_of_the_feed_is_the_table_of_spark() -> None:
    assert TABLE_SCHEMA.equals(SPARK_TABLE)
