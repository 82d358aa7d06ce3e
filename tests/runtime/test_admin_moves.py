"""The admin port of a node among others: who is where, and who may have clients moved."""

from __future__ import annotations

import asyncio
import json

import pytest

from node.joined_nodes import Town
from runtime.test_admin import JoinedNode, Node, _exchange, _get, _run
from runtime.test_admin_network import BEARER, BEYOND, GUARDED, JSON, OPEN
from sterna.broker.broker import Broker
from sterna.cli.clients import clients
from sterna.cli.migrations import migrations
from sterna.migration.gateway_moves import move_gateway, summaries
from sterna.migration.messages import Migrate
from sterna.runtime.admin.move_api import NetworkMoveApi
from sterna.runtime.admin.port import AdminPort
from sterna.runtime.admin.site import Guard
from sterna.runtime.config.schema import Bind

MOVE = '{"client": "c", "to": "B"}'


class MovingNode(JoinedNode):
    """Node A of a town of two, with a client of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        """Every test runs twice, on two kinds of loop."""
        self.town = Town("AB")
        self.town.connect("AB")
        self.town["A"].resume("c", gateway=True)
        self.town["B"].resume("d", gateway=True)
        self.broker: Broker = self.town["A"].broker

    def after_work(self) -> None:
        self.town.pass_time(1)

    def moves(self) -> NetworkMoveApi:
        return NetworkMoveApi(self.town["A"].network.moving, self, lambda: self.town.now)


async def _post(bind: Bind, page: str, body: str, headers: str = JSON) -> tuple[int, str]:
    sent = body.encode("utf-8", "surrogateescape")
    head = f"POST {page} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(sent)}\r\n\r\n"
    answer = (await _exchange(bind, head.encode() + sent)).decode()
    return int(answer.split(" ")[1]), answer.partition("\r\n\r\n")[2]


def test_clients_are_listed_and_moved() -> None:
    node = MovingNode()

    async def test(_port: AdminPort, bind: Bind) -> None:
        node.begin()
        clients = {one["client"]: one for one in json.loads((await _get(bind, "/clients"))[2])}
        assert clients["c"]["connected"]
        assert clients["d"]["node"] == "B"
        assert await _post(bind, "/move", MOVE) == (200, '{"client":"c","to":"B","begun_at":"A"}\n')
        migrations = json.loads((await _get(bind, "/migrations"))[2])
        assert migrations["counters"]["departed"] == 1
        clients = {one["client"]: one for one in json.loads((await _get(bind, "/clients"))[2])}
        assert clients["c"]["node"] == "B"

    _run(test, node)


def test_a_node_is_emptied_and_filled_again() -> None:
    node = MovingNode()

    async def test(_port: AdminPort, bind: Bind) -> None:
        node.begin()
        status, body = await _post(bind, "/evacuate", '{"node": "A", "rate": 100}')
        assert (status, json.loads(body)["evacuation"]["left"]) == (200, 0)
        status, body = await _post(bind, "/evacuate", '{"node": "A", "stop": true}')
        assert json.loads(body)["evacuation"] is None

    _run(test, node)


def test_another_node_is_told_to_empty_itself() -> None:
    node = MovingNode()

    async def test(_port: AdminPort, bind: Bind) -> None:
        node.begin()
        assert await _post(bind, "/evacuate", '{"node": "B", "rate": 100}') == (200, '{"told":"B"}\n')
        node.town.pass_time(2)
        assert b"d" in node.town["A"].broker.sessions

    _run(test, node)


def test_what_came_to_nothing_is_told_with_the_reason() -> None:
    """Ordered at another node, nobody but the log would know."""
    node = MovingNode()

    async def test(_port: AdminPort, bind: Bind) -> None:
        node.begin()
        node.town["A"].join("clean")
        for client in (b"clean", b"nobody"):
            node.town["A"].network.moving.plans.ordered("B", Migrate(client, 0, "B"))
        failed = json.loads((await _get(bind, "/migrations"))[2])["not_moved"]
        assert [(one["client"], one["to"]) for one in failed] == [("clean", "B"), ("nobody", "B")]
        assert "ends with its connection" in failed[0]["reason"]
        assert "no session" in failed[1]["reason"]

    _run(test, node)


def test_a_session_on_its_way_is_listed_where_it_is_served() -> None:
    node = MovingNode()

    async def test(_port: AdminPort, bind: Bind) -> None:
        node.begin()
        node.broker.sessions[b"c"].is_arriving = True
        assert "c" not in {one["client"] for one in json.loads((await _get(bind, "/clients"))[2])}

    _run(test, node)


def test_names_that_would_move_the_cursor_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    node = MovingNode()

    async def test(_port: AdminPort, bind: Bind) -> None:
        node.begin()
        node.town["A"].resume("red\x1b[31m\tB")
        node.town["A"].resume("grüße 日本")
        node.town["A"].network.moving.plans.ordered("B", Migrate(b"\n", 0, "B"))
        await asyncio.to_thread(clients, str(bind))
        lines = capsys.readouterr().out.splitlines()
        assert [line.split("\t")[0] for line in lines[:3]] == ["c", '"red\\u001b[31m\\tB"', "grüße 日本"]
        await asyncio.to_thread(migrations, str(bind))
        assert capsys.readouterr().out.startswith('"\\n"\tto B\tnot moved: ')

    _run(test, node)


@pytest.mark.parametrize(
    ("page", "body", "status", "why"),
    [
        ("/move", '{"client": "c", "to": "Z"}', 409, "cannot be reached"),
        ("/move", '{"client": "nobody", "to": "B"}', 409, "no node has a session"),
        ("/move", '{"client": "c"}', 400, "to"),
        ("/move", "nonsense", 400, "malformed"),
        ("/move", '{"client": "\udcff", "to": "B"}', 400, "invalid start byte"),
        ("/neighbours", '{"add": ["\udcff"]}', 400, "invalid start byte"),
        ("/evacuate", '{"node": "Z"}', 409, "node Z cannot be reached"),
        ("/move", '{"client": "c", "to": "Z"}', 409, "node A reaches B"),
        ("/evacuate", '{"node": "A", "rate": 0}', 400, "rate"),
        ("/evacuate", "{}", 400, "node"),
        ("/evacuate", '{"node": ""}', 409, "cannot be reached"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(page: str, body: str, status: int, why: str) -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        code, said = await _post(bind, page, body)
        assert (code, why in said) == (status, True)

    _run(test, MovingNode())


@pytest.mark.parametrize(
    ("guard", "headers", "status"),
    [
        (OPEN, JSON, 200),
        (OPEN, JSON + "Origin: http://x\r\n", 403),
        (OPEN, "", 415),
        (GUARDED, JSON, 401),
        (GUARDED, JSON + BEARER, 200),
        (BEYOND, JSON, 403),
    ],
)
def test_moving_needs_what_other_changes_need(guard: Guard, headers: str, status: int) -> None:
    node = MovingNode()

    async def test(_port: AdminPort, bind: Bind) -> None:
        node.begin()
        assert (await _post(bind, "/move", MOVE, headers))[0] == status

    _run(test, node, guard=guard)


def test_a_node_that_is_alone_moves_nobody() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        assert (await _get(bind, "/clients"))[::2] == (200, "[]\n")
        status, _, body = await _get(bind, "/migrations")
        assert (status, json.loads(body)["leaving"]) == (200, [])
        for page, order in (("/move", MOVE), ("/evacuate", '{"node": "lone"}')):
            status, why = await _post(bind, page, order)
            assert (status, "no [network] table" in why) == (409, True)

    _run(test, Node())


def test_clients_are_counted_and_moved_by_gateway() -> None:
    node = MovingNode()

    async def test(_port: AdminPort, bind: Bind) -> None:
        node.begin()
        for name in ("e", "f"):
            node.town["A"].resume(name, gateway=True).subscribe("t", 1)
        node.town["A"].join("plain")
        page = json.loads((await _get(bind, "/gateways"))[2])
        (summary,) = page.pop("gateways")
        nothing = {"immovable": 0, "moving": 0, "deliveries": 0}
        assert {**summary, "bytes": 0} == {"gateway": "g", "clients": 3, "subscriptions": 2, "bytes": 0, **nothing}
        assert {**page, "bytes": 0} == {"node": "A", "more": "", "plain": 1, "bytes": 0, "flows": []}
        assert json.loads((await _get(bind, "/gateways?after=g"))[2])["gateways"] == []
        status, body = await _post(bind, "/move", '{"gateway": "g", "to": "B"}')
        outcome = {"gateway": "g", "to": "B", "begun": 3, "under_way": 0, "left": 0, "refused": {}}
        assert (status, json.loads(body)) == (200, outcome)
        node.town.pass_time(2)
        assert json.loads((await _get(bind, "/gateways"))[2])["gateways"] == []
        assert {one["client"]: one["node"] for one in json.loads((await _get(bind, "/clients"))[2])} == {
            "plain": "A",
            **dict.fromkeys("cdef", "B"),
        }

    _run(test, node)


def test_gateways_come_in_pages_and_orders_about_unknown_nodes_are_refused_by_reason() -> None:
    node = MovingNode()
    broker = node.broker
    for number, session in enumerate(broker.sessions.values()):
        assert session.connection is not None
        session.connection.gateway = f"g{number}"
    node.town["A"].resume("late", gateway=True)
    first = summaries(broker, "A", most=1)
    assert ([one.gateway for one in first.gateways], first.more) == (["g"], "g")
    second = summaries(broker, "A", first.more, most=1)
    assert ([one.gateway for one in second.gateways], second.more) == (["g0"], "")
    refused = move_gateway(node.town["A"].network.moving, "g", "nowhere").refused
    assert refused == {"node nowhere cannot be reached; node A reaches B": 1}


def test_a_node_proves_that_it_is_drained() -> None:
    node = MovingNode()

    async def test(_port: AdminPort, bind: Bind) -> None:
        node.begin()
        before = json.loads((await _get(bind, "/drain"))[2])
        assert (before["sessions"], before["closed"], before["drained"]) == (1, False, False)
        await _post(bind, "/evacuate", '{"node": "A", "rate": 100}')
        after = json.loads((await _get(bind, "/drain"))[2])
        assert (after["sessions"], after["empty"], after["drained"]) == (0, True, True)

    _run(test, node)
