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


def test_bans_users_and_rules_are_set_and_listed() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        for page, body in (
            ("/bans", '{"client": "meter", "for_s": 60, "reason": "noise"}'),
            ("/users", '{"user": "ann", "password": "secret"}'),
            ("/users", '{"user": "bob", "bar": true}'),
            ("/access", '{"name": "r", "filters": ["a/#"], "effect": "deny"}'),
        ):
            status, said = await _post(bind, page, body)
            assert (status, json.loads(said)["rows"]) == (200, [{"node": "lone", "disconnected": 0}])
        (ban,) = json.loads((await _get(bind, "/bans"))[2])["rows"]
        assert (ban["name"], ban["reason"], 0 < ban["ends_in_s"] <= 60) == ("client:meter", "noise", False)
        users = json.loads((await _get(bind, "/users"))[2])["rows"]
        assert [(one["user"], one["barred"]) for one in users] == [("ann", False), ("bob", True)]
        rules = json.loads((await _get(bind, "/access"))[2])["rows"]
        assert [(one["name"], one["effect"]) for one in rules] == [("r", "deny"), (None, "allow")]
        (found,) = json.loads((await _get(bind, "/access/check?request=%7B%22topic%22%3A%22a%2Fb%22%7D"))[2])["rows"]
        assert (found["allowed"], found["reason"]) == (False, "rule 1 denies a/#")

    _run(test, Node())


def test_a_bad_change_is_refused_with_the_remedy() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        for page, body, status, part in (
            ("/bans", "{}", 409, "name one of client, user and address"),
            ("/bans", '{"client": "a", "user": "b"}', 409, "name one of"),
            ("/bans", '{"client": "a", "for_s": -1}', 400, "for_s"),
            ("/bans", '{"address": "nowhere"}', 409, "no IP address"),
            ("/users", '{"user": "ann"}', 409, "say one of"),
            ("/users", '{"user": "ann", "password": ""}', 409, "empty"),
            ("/users", '{"user": "a:b", "password": "x"}', 409, "cannot be used"),
            ("/access", '{"name": "r"}', 409, "no topic"),
            ("/access", '{"name": "r", "filters": ["a"], "effect": "maybe"}', 400, "effect"),
        ):
            said = await _post(bind, page, body)
            assert (said[0], part in said[1]) == (status, True), said
        assert (await _get(bind, "/access/check?request=x"))[0] == 400

    _run(test, Node())


def test_beyond_this_machine_nobody_is_disconnected_without_the_token() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        for page, order in (
            ("/kick", '{"client": "c"}'),
            ("/bans", '{"client": "c"}'),
            ("/users", "{}"),
            ("/access", "{}"),
        ):
            assert (await _post(bind, page, order))[0] in (401, 403)

    _run(test, Node(), guard=BEYOND)


def test_a_web_page_can_disconnect_nobody() -> None:
    async def test(_port: AdminPort, bind: Bind) -> None:
        headers = "Content-Type: application/json\r\nOrigin: http://localhost\r\n"
        assert (await _post(bind, "/kick", '{"client": "c"}', headers))[0] == 403

    _run(test, Node(), guard=Guard())
