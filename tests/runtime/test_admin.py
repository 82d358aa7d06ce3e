"""The admin port: right answers, right refusals, bounded in memory and in time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from broker.lone_node import LoneNode
from sterna.broker import administration
from sterna.broker.access.access_register import EntryKind
from sterna.broker.statistics import SessionView, Statistics
from sterna.node.management import Gathered, Management, NoOtherNodes
from sterna.runtime.admin.backup_api import Backups, PartOfBackup
from sterna.runtime.admin.metrics import METRICS, exposition
from sterna.runtime.admin.move_api import ALONE, LoneMoveApi, MoveApi
from sterna.runtime.admin.port import CONNECTIONS_MAX, REQUEST_BYTES_MAX, AdminPort
from sterna.runtime.admin.publish_api import CannotPublish, PublishOrder
from sterna.runtime.admin.site import Guard, guard
from sterna.runtime.config.process_tables import Admin
from sterna.runtime.config.schema import Bind
from sterna.runtime.feed.view import FeedView
from sterna.runtime.links.network_view import LinkView, NetworkView, lone_view, why_not_caught_up
from sterna.runtime.process_view import ProcessView, Timings
from sterna.runtime.reloading import ReloadOutcome
from sterna.vocabulary.errors import ConfigurationError

WAIT_S = 60


class Node:
    """A node whose state the test sets."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.backups = Backups(None)
        self.part_of_backup = PartOfBackup(Path(), None, lambda: 0)
        self.broker = LoneNode().broker
        self.now = Statistics(publish_received=7, publish_dropped={"slow-consumer": 3}, clients_connected=2)

    def statistics(self) -> Statistics:
        return self.now

    def process_view(self) -> ProcessView:
        timings = Timings()
        for seconds in (0.0001, 0.003, 99.0):
            timings.commit.observe(seconds)
        return ProcessView("1.2", "3.11", False, timings, {"127.0.0.1:8883": 2e9})

    def sessions(self, most: int) -> list[SessionView]:
        return [SessionView("meter", "alice", False, 1, 0, 12, 34)][:most]

    def why_not_ready(self) -> str | None:
        return self.reason

    def network_view(self, *, tables: bool = False) -> NetworkView:
        return lone_view("lone", 3)

    def moves(self) -> MoveApi:
        return LoneMoveApi(self.broker, "lone")

    async def ask(self, kind: str, argument: str, most: int) -> Gathered:
        answers: list[Gathered] = []
        Management("lone", self.broker, NoOtherNodes()).ask(kind, argument, most, answers.append)
        return answers[0]

    async def change_access(self, kind: EntryKind, name: str, value: dict[str, Any] | None) -> Gathered:
        return await self.ask("change", administration.order(self.broker, "lone", kind, name, value), 5)

    async def publish(self, order: PublishOrder) -> dict[str, Any]:
        raise CannotPublish(f"nobody publishes {order.topic} here")

    def feed_view(self) -> FeedView | None:
        return None

    def interworking_view(self) -> dict[str, Any] | None:
        return None

    def neighbours(self) -> list[str]:
        return []

    def change_neighbours(self, add: list[str], remove: list[str]) -> None:
        raise ConfigurationError(ALONE)

    async def reload(self) -> ReloadOutcome:
        raise ConfigurationError("sterna.toml:3: nonsense")


class JoinedNode(Node):
    """One of several, whose neighbours can be changed."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses = ["127.0.0.1:1"]

    def network_view(self, *, tables: bool = False) -> NetworkView:
        link = LinkView("b", "00000000000000ff", True, False, 3, 10, 2000, 1000, 500, 4, 2, 1, 13)
        streams = {"b": "synced", "c": "synced", "d": "fetching"}
        overlay = {"overlay": "static", "links": ["b"]}
        return NetworkView(
            "net",
            "a",
            7,
            "advertisement",
            overlay,
            [link],
            streams=streams,
            forwarded=5,
            refused=1,
            loose_dropped={"no-way": 3},
            gaps={"d": {"messages_at_most": 7, "age_s": 2.5}, "e": {"messages_at_most": 1, "age_s": 60.0}},
            ways={"claims": 4, "contradicted": 1},
            carried={"messages": 3, "evicted": 9},
        )

    def neighbours(self) -> list[str]:
        return self.addresses

    def change_neighbours(self, add: list[str], remove: list[str]) -> None:
        if "nonsense" in add:
            raise ConfigurationError("'nonsense' is not an address")
        self.addresses = [address for address in self.addresses if address not in remove] + add


def _run(
    test: Callable[[AdminPort, Bind], Awaitable[None]],
    node: Node | None = None,
    deadline_s: float = 10,
    guard: Guard | None = None,
) -> None:
    async def main() -> None:
        port = AdminPort(node or Node(), guard, deadline_s=deadline_s)
        bind = await port.start(Bind("127.0.0.1", 0))
        try:
            await asyncio.wait_for(test(port, bind), WAIT_S)
        finally:
            await port.stop()

    _on_both_loops(main)


def _on_both_loops(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    for loop_factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(WAIT_S * 100):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass")


async def _exchange(bind: Bind, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(bind.host, bind.port)
    writer.write(data)
    try:
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def _get(bind: Bind, target: str, method: str = "GET") -> tuple[int, str, str]:
    raw = await _exchange(bind, f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head, _, body = raw.decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]), head, body


def test_health_and_index_answer() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        assert (await _get(bind, "/healthz"))[::2] == (200, "alive\n")
        status, head, body = await _get(bind, "/")
        assert status == 200
        assert "/metrics" in body
        assert "Connection: close" in head

    _run(test)


def test_readiness_follows_the_node_and_gives_the_reason() -> None:
    node = Node()

    async def test(_port: AdminPort, bind: Bind) -> None:
        node.reason = None
        assert (await _get(bind, "/readyz"))[0] == 200
        node.reason = "the disk is full"
        assert (await _get(bind, "/readyz"))[::2] == (503, "not ready: the disk is full\n")

    _run(test, node)


def test_metrics_are_in_prometheus_text_format() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        status, head, body = await _get(bind, "/metrics?x=1")
        assert status == 200
        assert "text/plain; version=0.0.4" in head
        samples = {
            (sample.name, sample.labels.get("reason")): sample.value
            for family in text_string_to_metric_families(body)
            for sample in family.samples
        }
        assert samples["sterna_publish_received_total", None] == 7
        assert samples["sterna_publish_dropped_total", "slow-consumer"] == 3
        assert samples["sterna_clients_connected", None] == 2
        assert samples["process_open_fds", None] > 0

    _run(test)


def test_durations_are_histograms_and_the_build_is_named() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        families = {one.name: one for one in text_string_to_metric_families((await _get(bind, "/metrics"))[2])}
        commit = families["sterna_commit_seconds"]
        assert commit.type == "histogram"
        counted = {one.labels.get("le", one.name.rpartition("_")[2]): one.value for one in commit.samples}
        assert (counted["0.0001"], counted["0.0025"], counted["0.005"], counted["10.0"]) == (1, 1, 2, 2)
        assert (counted["+Inf"], counted["count"]) == (3, 3)
        assert counted["sum"] == pytest.approx(99.0031)
        (build,) = families["sterna_build_info"].samples
        assert (build.labels, build.value) == ({"version": "1.2", "python": "3.11", "compiled": "false"}, 1)
        (expiry,) = families["sterna_certificate_expiry_timestamp_seconds"].samples
        assert (expiry.labels, expiry.value) == ({"listener": "127.0.0.1:8883"}, 2e9)

    _run(test)


def test_every_statistic_is_a_metric() -> None:
    for found in dataclasses.fields(Statistics):
        value: Any = {"why": 12345} if found.default_factory is not dataclasses.MISSING else 12345
        changed = Statistics(**{found.name: value})
        assert value in [metric.read(changed) for metric in METRICS], f"{found.name} has no mark"
    assert b"sterna_uptime_seconds 0.0" in exposition(Statistics())


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * REQUEST_BYTES_MAX, 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * REQUEST_BYTES_MAX + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * REQUEST_BYTES_MAX + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 2000 + b"\r\n", 431),
        (b"GET / HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000, 200),
        (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00\r\n\r\n", 400),
    ],
)
def test_a_request_gets_the_right_status_once(request_bytes: bytes, status: int) -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        answered = await _exchange(bind, request_bytes)
        assert int(answered.split(b" ")[1]) == status
        assert answered.count(b"HTTP/1.1 ") == 1
        assert (b"Allow: GET, HEAD" in answered) == (status == 405)

    _run(test)


def test_head_gets_the_headers_only() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        status, head, body = await _get(bind, "/healthz", "HEAD")
        assert (status, body) == (200, "")
        assert "Content-Length: 6" in head

    _run(test)


@pytest.mark.parametrize(
    ("sent", "answered"),
    [(b"", b""), (b"GET / HT", b"HTTP/1.1 408"), (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"HTTP/1.1 408")],
)
def test_a_slow_request_is_given_up(sent: bytes, answered: bytes) -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        assert (await _exchange(bind, sent))[: len(b"HTTP/1.1 408")] == answered

    _run(test, deadline_s=0.05)


def test_a_client_that_never_closes_does_not_stay() -> None:
    async def test(port: AdminPort, bind: Bind) -> None:
        with socket.create_connection((bind.host, bind.port)) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await _until(lambda: bool(port.connections))
            await _until(lambda: not port.connections)
            assert client.recv(100).startswith(b"HTTP/1.1 200")

    _run(test, deadline_s=0.05)


def test_only_so_many_connections_are_kept_at_once() -> None:
    async def test(port: AdminPort, bind: Bind) -> None:
        with contextlib.ExitStack() as idle:
            for _ in range(CONNECTIONS_MAX):
                idle.enter_context(socket.create_connection((bind.host, bind.port)))
            await _until(lambda: len(port.connections) == CONNECTIONS_MAX)
            assert (await _get(bind, "/healthz"))[0] == 200
            assert len(port.connections) <= CONNECTIONS_MAX

    _run(test)


def test_connections_that_are_answered_and_stay_keep_nobody_out() -> None:
    async def test(port: AdminPort, bind: Bind) -> None:
        staying = []
        for _ in range(2 * CONNECTIONS_MAX):
            _, writer = await asyncio.open_connection(bind.host, bind.port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            staying.append(writer)
        for _ in range(5):
            assert (await _get(bind, "/healthz"))[0] == 200
        assert len(port.connections) <= CONNECTIONS_MAX
        for writer in staying:
            writer.transport.abort()

    _run(test)


@pytest.mark.parametrize(
    ("host", "hosts", "status"),
    [
        ("127.0.0.1:9883", (), 200),
        ("127.0.0.1", (), 200),
        ("[::1]:9883", (), 200),
        ("localhost:9883", (), 200),
        ("LOCALHOST.", (), 200),
        ("node.localhost", (), 200),
        (socket.gethostname(), (), 200),
        ("evil.example:9883", (), 421),
        ("127.0.0.1.evil.example", (), 421),
        ("localhost.evil.example", (), 421),
        ("", (), 421),
        ("broker.example:9883", ("broker.example",), 200),
        ("Broker.Example", ("broker.example",), 200),
        ("evil.example", ("broker.example",), 421),
        ("evil.example", ("*",), 200),
    ],
)
def test_a_page_cannot_read_by_a_name_that_was_made_to_point_here(
    host: str, hosts: tuple[str, ...], status: int
) -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        for page in ("/", "/sessions", "/clients", "/metrics"):
            raw = await _exchange(bind, f"GET {page} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert int(raw.split(b" ")[1]) == status, page
        raw = await _exchange(bind, f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert int(raw.split(b" ")[1]) == 200

    _run(test, guard=guard(Admin(bind=Bind("127.0.0.1", 9883), hosts=hosts)))


def test_who_shows_the_token_may_use_any_name() -> None:
    token = b"a token of some length"
    words = b"GET / HTTP/1.1\r\nHost: any.example\r\nAuthorization: Bearer " + token + b"\r\n\r\n"

    async def test(_port: AdminPort, bind: Bind) -> None:
        assert (await _exchange(bind, words)).startswith(b"HTTP/1.1 200 OK\r\n")

    _run(test, guard=Guard(token))


def test_nobody_is_to_guess_what_an_answer_is() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        for page, status in (("/sessions", "200 OK"), ("/nothing", "404 Not Found")):
            _, head, _ = await _get(bind, page)
            assert head.startswith(f"HTTP/1.1 {status}\r\n")
            assert "X-Content-Type-Options: nosniff" in head

    _run(test)


def test_a_fault_in_a_statistic_is_the_requests_fault_only(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Node):
        def statistics(self) -> Statistics:
            raise RuntimeError("no figures")

    async def test(_port: AdminPort, bind: Bind) -> None:
        assert (await _get(bind, "/metrics"))[0] == 500
        assert (await _get(bind, "/healthz"))[0] == 200

    _run(test, Broken())
    assert "no figures" in caplog.text


def test_it_also_listens_on_a_unix_socket(tmp_path: Path) -> None:
    async def main() -> None:
        port = AdminPort(Node())
        bind = await port.start(Bind(path=str(tmp_path / "admin.sock")))
        reader, writer = await asyncio.open_unix_connection(bind.path)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), WAIT_S)).endswith(b"alive\n")
        writer.close()
        await port.stop()

    _on_both_loops(main)


def test_a_node_of_a_network_is_ready_for_the_next_one_when_it_hears_all_that_can_be_reached() -> None:
    link = LinkView("b", "00000000000000ff", True, False, 3, 10, 2000, 1000, 500, 4, 2, 1, 13)
    alone = NetworkView("net", "a", 7, "advertisement", {}, [dataclasses.replace(link, connected=False)])
    assert why_not_caught_up(lone_view("lone", 3), 0) is None
    assert why_not_caught_up(alone, 5) == "no link to another node yet"
    assert why_not_caught_up(alone, 31) is None, "perhaps it is the only one"
    view = dataclasses.replace(alone, links=[link], streams={"b": "synced", "c": "fetching", "d": "unsynced"})
    assert why_not_caught_up(view, 5) is None, "nobody leads to c and d"
    view = dataclasses.replace(view, paths={"b": "b", "c": "b", "d": "b"})
    assert why_not_caught_up(view, 119) == "messages of c, d do not come in yet"
    assert why_not_caught_up(view, 121) is None, "it holds nobody up for longer"
