"""Questions of operators at the admin port: parameters, rights, and bad input."""

from __future__ import annotations

import json

from runtime.test_admin import Node, _get, _run
from runtime.test_admin_moves import _post
from runtime.test_admin_network import BEYOND
from sterna.runtime.admin.port import AdminPort
from sterna.runtime.admin.site import Guard
from sterna.runtime.config.schema import Bind


def test_a_question_takes_its_parameters_from_the_address() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        for page in ("/client?id=a%2Fb", "/clients/search?text=x&most=5", "/subscriptions?filter=a%2F%23", "/retained"):
            status, _, body = await _get(bind, page)
            assert (status, json.loads(body)) == (200, {"rows": [], "is_cut": False, "silent": []})

    _run(test, Node())


def test_a_bad_question_is_refused_with_the_remedy() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        for page, part in (
            ("/subscriptions?filter=a%2F%23%2Fb", "no topic filter"),
            ("/retained?most=0", "at least 1"),
            ("/retained?most=many", "ask for /retained?filter="),
            ("/client?id=%ff", "ask for /client?id="),
        ):
            status, _, body = await _get(bind, page)
            assert (status, part in body) == (400, True), body
        assert (await _post(bind, "/kick", '{"klient": "c"}'))[0] == 400
        status, body = await _post(bind, "/kick", '{"client": "c"}')
        assert (status, body) == (409, "no node has a connection of client c\n")

    _run(test, Node())


def test_beyond_this_machine_nobody_is_disconnected_without_the_token() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        assert (await _post(bind, "/kick", '{"client": "c"}'))[0] in (401, 403)

    _run(test, Node(), guard=BEYOND)


def test_a_web_page_can_disconnect_nobody() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        headers = "Content-Type: application/json\r\nOrigin: http://localhost\r\n"
        assert (await _post(bind, "/kick", '{"client": "c"}', headers))[0] == 403

    _run(test, Node(), guard=Guard())
