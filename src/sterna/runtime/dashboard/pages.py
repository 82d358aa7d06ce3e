"""The dashboard's rows of a node's admin port: its files, its logins, its live pictures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from heapq import nlargest
from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec

from sterna.broker.topic_counts import HISTORY_KEPT
from sterna.broker.topic_tree import merged_levels
from sterna.node.management import ROWS_MAX, Gathered
from sterna.runtime.admin.logins import Login, Role, cookie
from sterna.runtime.admin.site import AdminPage, Answer, Guard, Request, Right, as_json, text
from sterna.runtime.config.settings import Configuration
from sterna.runtime.dashboard.dashboard import Dashboard
from sterna.runtime.dashboard.front import FILES, file
from sterna.runtime.dashboard.password_checks import PasswordChecks, TooManyAttempts
from sterna.runtime.dashboard.questions import explained

ROOT = "/dashboard"
LEVELS_SHOWN = 200
"""Of a level of the topic tree at a time."""
WATCHED_SHOWN = 100
CLIENTS_SHOWN = 50
CLIENTS_MAX = 500
"""On one page."""


class LoginOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /dashboard/login: a token, a user with a password, or nothing where nothing is asked for."""

    token: str = ""
    user: str = ""
    password: str = ""


class DashboardNode(Protocol):
    """The questions of the dashboard to the node."""

    @property
    def admin_guard(self) -> Guard: ...

    @property
    def dashboard(self) -> Dashboard: ...

    @property
    def configuration(self) -> Configuration: ...

    async def ask(self, kind: str, argument: str, most: int) -> Gathered: ...


def _whoami(asked: Request, node: DashboardNode) -> Answer:
    """The user who looks, and the ways to log in."""
    guard = node.admin_guard
    return as_json(_person(guard, guard.logins.of(asked.headers)))


def _person(guard: Guard, login: Login | None) -> dict[str, Any]:
    stranger = guard.stranger
    return {
        "role": login.role.value if login else stranger.value if stranger is Role.READER else None,
        "user": login.user if login else "",
        "logged_in": login is not None,
        "open": stranger is Role.OPERATOR,
        "tokens": bool(guard.token or guard.read_token),
        "passwords": guard.passwords is not None,
    }


async def _login(asked: Request, node: DashboardNode) -> Answer:
    try:
        order = msgspec.json.decode(asked.body, type=LoginOrder)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return text(400, f'{error}; send {{"token": "..."}} or {{"user": "...", "password": "..."}}\n')
    guard = node.admin_guard
    try:
        role, user = await _proved(order, guard, node.dashboard.password_checks, asked.address)
    except TooManyAttempts as error:
        return text(429, f"{error}\n", ("Retry-After", "2"))
    if role is None:
        return text(401, "that is not known here\n")
    secret, login = guard.logins.begin(role, user)
    said = as_json(_person(guard, login) | {"csrf": login.csrf})
    return said._replace(headers=(cookie(asked.headers, secret),))


async def _proved(order: LoginOrder, guard: Guard, checks: PasswordChecks, address: str) -> tuple[Role | None, str]:
    if order.token:
        role = guard.role_of(order.token.encode())
        if role is None:
            await checks.hold_back()
        return role, ""
    if order.user and guard.passwords is not None:
        if not await checks.is_right(guard.passwords, order.user, order.password.encode(), address):
            return None, ""
        return (Role.OPERATOR if order.user in guard.operators else Role.READER), order.user
    return (Role.OPERATOR if guard.stranger is Role.OPERATOR else None), ""


def _logout(asked: Request, node: DashboardNode) -> Answer:
    node.admin_guard.logins.end(asked.headers)
    return as_json({})._replace(headers=(cookie(asked.headers, ""),))


def _events(_asked: Request, node: DashboardNode) -> Answer:
    return Answer(200, b"retry: 1000\n\n", "text/event-stream", events=node.dashboard.pictures)


async def _picture(_asked: Request, node: DashboardNode) -> Answer:
    return Answer(200, await node.dashboard.pictures.picture() + b"\n", "application/json")


Given = dict[str, str]


def _given(asked: Request) -> Given:
    """ValueError if the address is not UTF-8."""
    return dict(parse_qsl(asked.target.partition("?")[2], keep_blank_values=True, errors="strict"))


async def _clients(asked: Request, node: DashboardNode) -> Answer:
    """A page of the clients of all nodes, in the order of their identifiers."""
    try:
        given = _given(asked)
        most = max(1, min(int(given.pop("most", CLIENTS_SHOWN)), CLIENTS_MAX))
        found = await node.ask("dashboard-clients", msgspec.json.encode(given).decode(), most)
    except ValueError as error:  # those of msgspec are such
        return text(400, f"{error}; ask for ?text=...&state=...&node=...&after=...&most={CLIENTS_SHOWN}\n")
    rows = sorted(found.rows, key=lambda row: (row["client"], row["node"]))
    is_more = found.is_cut or len(rows) > most
    last = rows[:most][-1]["client"] if rows else None
    return as_json({"rows": rows[:most], "next": last if is_more else None, "silent": found.silent})


def _question(kind: str, argument: Callable[[Given], str]) -> Callable[[Request, DashboardNode], Awaitable[Answer]]:
    """The handler of a page that passes a question on to all nodes."""

    async def handler(asked: Request, node: DashboardNode) -> Answer:
        try:
            return as_json(await node.ask(kind, argument(_given(asked)), ROWS_MAX))
        except ValueError as error:
            return text(400, f"{error}\n")

    return handler


async def _topics(asked: Request, node: DashboardNode) -> Answer:
    """The levels below a prefix, as all nodes know them together."""
    try:
        given = _given(asked)
        found = await node.ask("dashboard-topics", msgspec.json.encode(given).decode(), LEVELS_SHOWN)
    except ValueError as error:
        return text(400, f"{error}; ask for ?prefix=...&after=...\n")
    levels = merged_levels(found.rows)
    return as_json(
        {
            "levels": levels[:LEVELS_SHOWN],
            "is_cut": found.is_cut or len(levels) > LEVELS_SHOWN,
            "silent": found.silent,
            "stride": max((row["stride"] for row in found.rows), default=1),
            "left_out": sum({row["node"]: row["left_out"] for row in found.rows}.values()),
            "is_counting": any(row["is_counting"] for row in found.rows),
        }
    )


async def _topic(asked: Request, node: DashboardNode) -> Answer:
    """One level with the last messages on it, wherever they came in, the newest first."""
    try:
        found = await node.ask("dashboard-topic", _given(asked).get("topic", ""), 1)
    except ValueError as error:
        return text(400, f"{error}; ask for ?topic=...\n")
    recent: list[dict[str, Any]] = [message for row in found.rows for message in row.pop("recent")]
    levels = merged_levels(found.rows)
    return as_json(
        {
            "level": levels[0] if levels else None,
            "recent": nlargest(HISTORY_KEPT, recent, key=lambda one: one["time"]),
            "silent": found.silent,
        }
    )


async def _watch(asked: Request, node: DashboardNode) -> Answer:
    """The next messages that match a filter, where they enter."""
    try:
        given = _given(asked)
        after = msgspec.json.decode(given.get("after") or "{}", type=dict[str, int])
        argument = {"id": given.get("id", ""), "filter": given.get("filter", ""), "after": after}
        return as_json(await node.ask("dashboard-watch", msgspec.json.encode(argument).decode(), WATCHED_SHOWN))
    except ValueError as error:
        return text(400, f"{error}\n")


def _explain(asked: Request, node: DashboardNode) -> Answer:
    try:
        return as_json(explained(_given(asked).get("expression", ""), node.configuration))
    except ValueError as error:
        return text(400, f"{error}\n")


def _file(name: str, _asked: Request, _node: DashboardNode) -> Answer:
    return file(name)


DASHBOARD: list[AdminPage[Any]] = [
    AdminPage(f"{ROOT}/me", _whoami, right=Right.OWN_PAGE, of_dashboard=True),
    AdminPage(f"{ROOT}/login", _login, right=Right.LOGIN, of_dashboard=True),
    AdminPage(f"{ROOT}/logout", _logout, right=Right.LOGIN, of_dashboard=True),
    AdminPage(f"{ROOT}/events", _events, right=Right.READ, of_dashboard=True),
    AdminPage(f"{ROOT}/picture", _picture, "the whole network as the dashboard draws it (JSON)", of_dashboard=True),
    AdminPage(f"{ROOT}/clients", _clients, of_dashboard=True),
    AdminPage(f"{ROOT}/expressions", _question("dashboard-expressions", lambda _given: ""), of_dashboard=True),
    AdminPage(f"{ROOT}/readers", _question("dashboard-readers", lambda _given: ""), of_dashboard=True),
    AdminPage(f"{ROOT}/audits", _question("dashboard-audits", lambda _given: ""), of_dashboard=True),
    AdminPage(f"{ROOT}/waiting", _question("dashboard-waiting", lambda _given: ""), of_dashboard=True),
    AdminPage(
        f"{ROOT}/settings", _question("dashboard-settings", lambda given: given.get("node", "")), of_dashboard=True
    ),
    AdminPage(f"{ROOT}/topics", _topics, of_dashboard=True),
    AdminPage(f"{ROOT}/topic", _topic, of_dashboard=True),
    AdminPage(f"{ROOT}/watch", _watch, of_dashboard=True),
    AdminPage(f"{ROOT}/explain", _explain, of_dashboard=True),
    *(
        AdminPage(f"{ROOT}/{name}", partial(_file, name), right=Right.NOTHING, of_dashboard=True)
        for name in FILES
        if name != "index.html"
    ),
]
