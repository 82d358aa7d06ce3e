"""The admin port of a node among others: what it shows of the network, and who may change its neighbours."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.test_admin import JoinedNode, Node, _exchange, _get, _run
from sterna.runtime.admin.port import BODY_BYTES_MAX, AdminPort
from sterna.runtime.admin.site import Guard
from sterna.runtime.config.schema import Bind
from sterna.runtime.links.network_view import sizes

TOKEN = b"a token of some length"
JSON = "Content-Type: application/json\r\n"
BEARER = f"Authorization: Bearer {TOKEN.decode()}\r\n"
CHANGE = '{"add": ["127.0.0.1:2", "127.0.0.1:3"], "remove": ["127.0.0.1:1"]}'
OPEN = Guard()
GUARDED = Guard(TOKEN)
BEYOND = Guard(b"", open_to_readers=True, open_to_changes=False)
SECRET = Guard(TOKEN, open_to_readers=False, open_to_changes=False)


async def _post(bind: Bind, body: str, headers: str = JSON) -> tuple[int, str]:
    head = f"POST /neighbours HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    answer = (await _exchange(bind, (head + body).encode())).decode()
    return int(answer.split(" ")[1]), answer.partition("\r\n\r\n")[2]


def test_the_network_is_shown() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        status, head, body = await _get(bind, "/network")
        assert (status, "application/json" in head) == (200, True)
        view = json.loads(body)
        assert (view["node"], view["epoch"], view["strategy"]) == ("a", 7, "advertisement")
        assert view["links"][0]["peer"] == "b"
        assert view["streams"]["d"] == "fetching"

    _run(test, JoinedNode())


def test_the_network_is_counted() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        _, _, body = await _get(bind, "/metrics")
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(body)
            for sample in family.samples
        }
        assert samples["sterna_links",] == 1
        assert samples["sterna_link_up", "b"] == 1
        assert samples["sterna_link_messages_total", "b"] == 10
        assert samples["sterna_link_bytes_total", "b"] == 2000
        assert samples["sterna_link_control_bytes_total", "b"] == 500
        assert samples["sterna_link_resends_total", "b"] == 4
        assert samples["sterna_network_messages_forwarded_total",] == 5
        assert samples["sterna_network_messages_taken_total",] == 0
        assert samples["sterna_network_messages_refused_total",] == 1
        states = ("synced", "fetching", "unsynced", "doubtful")
        assert [samples["sterna_streams", state] for state in states] == [2, 1, 0, 0]
        assert samples["sterna_network_ways_total", "contradicted"] == 1
        assert samples["sterna_network_gaps",] == 2
        assert samples["sterna_network_gap_messages",] == 8
        assert samples["sterna_network_gap_seconds",] == 60
        assert samples["sterna_network_carried",] == 3
        assert samples["sterna_network_carried_dropped_total",] == 9

    _run(test, JoinedNode())


def test_a_node_that_is_alone_is_a_network_of_one() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        status, _, body = await _get(bind, "/network")
        view = json.loads(body)
        assert (status, view["node"], view["network"], view["links"]) == (200, "lone", "", [])
        status, _, body = await _get(bind, "/neighbours")
        assert (status, json.loads(body)) == (200, {"neighbours": [], "dialled": {}, "foreign": {}})
        status, why = await _post(bind, CHANGE)
        assert (status, "no [network] table" in why) == (400, True)
        assert "sterna_links" not in (await _get(bind, "/metrics"))[2]

    _run(test, Node())


def test_neighbours_are_changed_all_at_once() -> None:
    node = JoinedNode()

    async def test(_port: AdminPort, bind: Bind) -> None:
        node.addresses = ["127.0.0.1:1"]
        status, body = await _post(bind, CHANGE)
        assert status == 200
        assert json.loads(body)["neighbours"] == node.addresses == ["127.0.0.1:2", "127.0.0.1:3"]
        assert json.loads((await _get(bind, "/neighbours"))[2])["neighbours"] == node.addresses

    _run(test, node)


@pytest.mark.parametrize(
    ("body", "headers", "status", "why"),
    [
        ('{"add": ["nonsense"]}', JSON, 400, "not an address"),
        ('{"ad": []}', JSON, 400, "ad"),
        ('{"add": "127.0.0.1:2"}', JSON, 400, "array"),
        ("nonsense", JSON, 400, "malformed"),
        (CHANGE, "Content-Type: text/plain\r\n", 415, "application/json"),
        (CHANGE, "", 415, "application/json"),
        (CHANGE, JSON + "Origin: http://localhost\r\n", 403, "web pages"),
        (" " * (BODY_BYTES_MAX + 1), JSON, 413, "at most"),
    ],
)
def test_a_change_that_cannot_be_made_changes_nothing(body: str, headers: str, status: int, why: str) -> None:
    node = JoinedNode()

    async def test(_port: AdminPort, bind: Bind) -> None:
        found, said = await _post(bind, body, headers)
        assert found == status
        assert why in said
        assert node.addresses == ["127.0.0.1:1"]

    _run(test, node)


@pytest.mark.parametrize(
    ("guard", "headers", "reads", "changes"),
    [
        (OPEN, "", 200, 200),
        (GUARDED, "", 200, 401),
        (GUARDED, BEARER, 200, 200),
        (GUARDED, BEARER[:-3] + "\r\n", 200, 401),
        (GUARDED, "Authorization: Basic YTpi\r\n", 200, 401),
        (GUARDED, "Authorization: Bearer \r\n", 200, 401),
        (BEYOND, "", 200, 403),
        (BEYOND, "Authorization: Bearer \r\n", 200, 403),
        (SECRET, "", 401, 401),
        (SECRET, BEARER, 200, 200),
    ],
)
def test_the_token_opens_what_is_not_open_anyway(guard: Guard, headers: str, reads: int, changes: int) -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        request = f"GET /network HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"
        answered = await _exchange(bind, request.encode())
        assert int(answered.split(b" ")[1]) == reads
        assert (b"WWW-Authenticate: Bearer" in answered) == (reads == 401)
        assert (await _post(bind, CHANGE, JSON + headers))[0] == changes
        assert (await _get(bind, "/healthz"))[0] == 200

    _run(test, JoinedNode(), guard=guard)


def test_the_token_is_not_shown_by_accident() -> None:
    assert TOKEN.decode() not in repr(GUARDED)


def test_a_table_of_filters_becomes_a_table_of_sizes() -> None:
    table = {
        "strategy": "advertisement",
        "local": ["a", "b"],
        "links": {"x": {"wants": ["#"], "told": []}},
        "filters": 3,
        "routes": {"o": "x"},
    }
    assert sizes(table) == {"local": 2, "links": {"x": {"wants": 1, "told": 0}}, "filters": 3, "routes": 1}
