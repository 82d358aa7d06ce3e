"""The dashboard's server side: who may look and order, what other pages may do (nothing), and one picture for all."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from sterna.broker.access.passwords import PasswordFile
from sterna.node.management import Gathered
from sterna.runtime.admin.logins import LOGIN_S, LOGINS_MAX, Logins, Role, is_foreign_page
from sterna.runtime.admin.pages import NODE
from sterna.runtime.admin.port import STREAM_BYTES_MAX, STREAMS_MAX, AdminPort
from sterna.runtime.admin.site import Guard, Request, guard
from sterna.runtime.config.process_tables import Admin
from sterna.runtime.config.schema import Bind
from sterna.runtime.dashboard.alarms import ALARMS_MAX, RULES, alarms_of
from sterna.runtime.dashboard.front import FILES, POLICY
from sterna.runtime.dashboard.live_pictures import EVERY_S, REMEMBERED_S, LivePictures
from sterna.runtime.dashboard.password_checks import PER_ADDRESS_MAX, PasswordChecks

WAIT_S = 60
TOKEN, READ_TOKEN = b"t" * 16, b"r" * 16
HOST = {b"host": b"127.0.0.1:9883"}
OWN = HOST | {b"origin": b"http://127.0.0.1:9883", b"sec-fetch-site": b"same-origin"}
JSON = {b"content-type": b"application/json"}


def passwords() -> PasswordFile:
    import argon2

    hasher = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    return PasswordFile.parse(f"alice:{hasher.hash('secret')}\nbob:{hasher.hash('secret')}\n", "test")


class Page:
    """The receiving end of events."""

    def __init__(self) -> None:
        self.events: list[bytes] = []

    def send(self, event: bytes) -> None:
        self.events.append(event)


class Asked:
    """Answers for all nodes, and counts the questions."""

    def __init__(self, *rows: dict[str, Any], silent: tuple[str, ...] = ()) -> None:
        self.rows, self.silent, self.times = list(rows), list(silent), 0

    async def __call__(self, _within_s: float) -> Gathered:
        self.times += 1
        return Gathered(list(self.rows), is_cut=False, silent=list(self.silent))


class Dashboard:
    def __init__(self, pictures: LivePictures) -> None:
        self.pictures = pictures
        self.password_checks = PasswordChecks(wrong_s=0.0)


class Node:
    def __init__(self, guard: Guard, ask: Asked | None = None) -> None:
        self.admin_guard = guard
        self.dashboard = Dashboard(LivePictures(ask or Asked({"node": "a"})))
        self.rows: list[dict[str, Any]] = []

    async def ask(self, _kind: str, _argument: str, _most: int) -> Gathered:
        return Gathered(self.rows, is_cut=False)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(WAIT_S * 100):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass")


async def answer_of(
    node: Node, target: str, headers: dict[bytes, bytes], body: dict[str, Any] | None = None, address: str = ""
) -> Any:
    """Status, headers and text of the answer to a GET, or with a body to a POST."""
    method = "GET" if body is None else "POST"
    asked = Request(method, target, headers, json.dumps(body or {}).encode(), address)
    said = NODE.answer(asked, node, node.admin_guard)  # type: ignore[arg-type]
    found = await said if isinstance(said, Awaitable) else said
    return found.status, dict(found.headers), found.body.decode()


def answered(node: Node, target: str, headers: dict[bytes, bytes], body: dict[str, Any] | None = None) -> Any:
    return asyncio.run(answer_of(node, target, headers, body))


def log_in(node: Node, **shown: str) -> dict[bytes, bytes]:
    """Headers of our own page after a login."""
    status, headers, text = answered(node, "/dashboard/login", OWN | JSON, shown)
    assert status == 200, text
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    return OWN | JSON | {b"cookie": cookie.split(";")[0].encode(), b"x-sterna-csrf": json.loads(text)["csrf"].encode()}


def without(headers: dict[bytes, bytes], name: bytes) -> dict[bytes, bytes]:
    return {key: value for key, value in headers.items() if key != name}


def order(node: Node, headers: dict[bytes, bytes]) -> int:
    """The status of an order that a known operator gets a 400 for, because it makes no sense."""
    status, _, _ = answered(node, "/neighbours", headers, {"nonsense": 1})
    return int(status)


@pytest.mark.parametrize(
    ("shown", "role"),
    [
        ({"token": TOKEN.decode()}, "operator"),
        ({"token": READ_TOKEN.decode()}, "reader"),
        ({"user": "alice", "password": "secret"}, "operator"),
        ({"user": "bob", "password": "secret"}, "reader"),
    ],
)
def test_people_log_in_by_token_or_password_in_their_role(shown: dict[str, str], role: str) -> None:
    people = passwords()
    guard = Guard(TOKEN, False, True, read_token=READ_TOKEN, passwords=people, operators=frozenset({"alice"}))
    node = Node(guard)
    assert answered(node, "/dashboard/picture", OWN)[0] == 401
    headers = log_in(node, **shown)
    assert json.loads(answered(node, "/dashboard/me", headers)[2])["role"] == role
    assert answered(node, "/dashboard/picture", headers)[0] == 200
    assert order(node, headers) == (400 if role == "operator" else 403)
    answered(node, "/dashboard/logout", headers, {})
    assert answered(node, "/dashboard/picture", headers)[0] == 401


@pytest.mark.parametrize(
    "shown", [{}, {"token": "guess"}, {"user": "alice", "password": "guess"}, {"user": "eve", "password": "secret"}]
)
def test_others_do_not(shown: dict[str, str]) -> None:
    node = Node(Guard(TOKEN, passwords=passwords(), passwords_key=b"k"))
    status, headers, _ = answered(node, "/dashboard/login", OWN | JSON, shown)
    assert (status, "Set-Cookie" in headers) == (401, False)


@pytest.mark.parametrize(
    ("admin", "may_look", "may_change"),
    [
        ({}, True, True),
        ({"read_token": READ_TOKEN.decode()}, True, False),
        ({"token": TOKEN.decode()}, True, False),
        ({"anonymous": False, "read_token": READ_TOKEN.decode()}, False, False),
        ({"anonymous": False, "token": TOKEN.decode()}, False, False),
        ({"anonymous": False}, False, False),
        ({"bind": Bind("0.0.0.0", 9883), "anonymous": True}, True, False),
    ],
)
def test_a_stranger_is_an_operator_only_where_nothing_is_asked_for(
    admin: dict[str, Any], may_look: bool, may_change: bool
) -> None:
    node = Node(guard(Admin(**admin)))
    said = json.loads(answered(node, "/dashboard/me", OWN)[2])
    assert (said["role"] == "reader" or said["open"]) is may_look
    assert said["open"] is may_change
    assert (answered(node, "/dashboard/picture", HOST)[0] == 200) is may_look
    assert (answered(node, "/dashboard/login", OWN | JSON, {})[0] == 200) is may_change
    assert order(node, HOST | JSON) == (400 if may_change else 401 if "token" in admin else 403)


def test_the_secret_of_orders_is_told_with_the_login_only() -> None:
    """Servers of other ports of this host are sent the cookie: with it they must not learn the secret."""
    node = Node(Guard())
    headers = log_in(node)
    status, _, text = answered(node, "/dashboard/me", headers)
    assert (status, json.loads(text)["logged_in"]) == (200, True)
    assert headers[b"x-sterna-csrf"].decode() not in text


@pytest.mark.parametrize(("scheme", "is_secure"), [(b"http", False), (b"https", True)])
def test_a_page_that_came_by_tls_keeps_the_cookie_from_connections_without(scheme: bytes, is_secure: bool) -> None:
    headers = OWN | JSON | {b"origin": scheme + b"://127.0.0.1:9883"}
    for target in ("login", "logout"):
        _, said, _ = answered(Node(Guard()), f"/dashboard/{target}", headers, {})
        assert said["Set-Cookie"].endswith("; Secure") is is_secure


class SlowPasswords:
    """Knows `secret`, and counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def verify(self, _user: str, password: bytes, *, now: float) -> bool:
        self.asked += 1
        return password == b"secret"


def test_who_guesses_passwords_is_told_to_try_again_and_keeps_nobody_else_out() -> None:
    async def main() -> None:
        people = SlowPasswords()
        node = Node(Guard(passwords=people, passwords_key=b"k"))  # type: ignore[arg-type]
        node.dashboard.password_checks = PasswordChecks(wrong_s=WAIT_S)

        async def attempt(address: str, password: str) -> Any:
            shown = {"user": "alice", "password": password}
            return await answer_of(node, "/dashboard/login", OWN | JSON, shown, address)

        guesses = [asyncio.create_task(attempt("192.0.2.1", "guess")) for _ in range(8)]
        await until(lambda: people.asked == PER_ADDRESS_MAX and sum(one.done() for one in guesses) == 4)
        refused = [one.result() for one in guesses if one.done()]
        assert {status for status, _, _ in refused} == {429}
        assert all("try again" in text for _, _, text in refused)
        status, headers, _ = await attempt("192.0.2.1", "secret")
        assert (status, headers["Retry-After"], people.asked) == (429, "2", PER_ADDRESS_MAX)
        status, _, _ = await attempt("192.0.2.2", "secret")
        assert status == 200
        for one in guesses:
            one.cancel()

    asyncio.run(main())


def test_an_order_of_the_page_needs_login_secret_and_origin() -> None:
    """On this machine nothing has to be shown; a page shows the secrets all the same."""
    node = Node(Guard())
    headers = log_in(node)
    assert order(node, headers) == 400
    assert order(node, without(headers, b"x-sterna-csrf")) == 403
    assert order(node, headers | {b"x-sterna-csrf": b"guess"}) == 403
    assert order(node, without(headers, b"cookie")) == 403
    assert order(node, without(headers, b"content-type")) == 415
    assert order(node, HOST | JSON) == 400  # a command


@pytest.mark.parametrize(
    "stranger",
    [
        {b"origin": b"http://127.0.0.1:8000"},
        {b"origin": b"https://evil.example"},
        {b"origin": b"null"},
        {b"sec-fetch-site": b"same-site"},
        {b"sec-fetch-site": b"cross-site"},
    ],
)
def test_a_page_of_another_origin_can_do_nothing_even_with_the_cookie(stranger: dict[bytes, bytes]) -> None:
    node = Node(Guard())
    headers = log_in(node) | stranger
    for target in ("/dashboard/picture", "/dashboard/events", "/clients", "/metrics"):
        assert answered(node, target, headers)[0] == 403
    assert order(node, headers) == 403
    assert answered(node, "/dashboard/login", headers, {})[0] == 403


def test_a_name_that_was_made_to_point_here_is_refused() -> None:
    node = Node(Guard())
    rebound = {b"host": b"evil.example:9883", b"origin": b"http://evil.example:9883"} | JSON
    assert answered(node, "/dashboard/login", rebound, {})[0] == 421
    assert answered(node, "/dashboard/me", rebound)[0] == 421
    assert answered(node, "/dashboard/picture", rebound)[0] == 421


def test_logins_end_and_are_bounded() -> None:
    now = [0.0]
    logins = Logins(lambda: now[0])
    secret, _ = logins.begin(Role.READER)

    def shown(secret: str) -> dict[bytes, bytes]:
        return {b"host": b"h:1", b"cookie": f"other=1; sterna-1={secret}".encode()}

    assert logins.of(shown(secret)) is not None
    assert logins.of(shown(secret) | {b"host": b"h:2"}) is None  # another node on the same machine
    now[0] = LOGIN_S
    assert logins.of(shown(secret)) is None
    first, _ = logins.begin(Role.READER)
    for _ in range(LOGINS_MAX):
        last, _ = logins.begin(Role.READER)
    assert logins.of(shown(first)) is None
    assert logins.of(shown(last)) is not None


@pytest.mark.parametrize("raw", [b"\xff", b"a", b"=;=;", b'sterna-1="', b"sterna-1=" + b"x" * 4000])
def test_a_cookie_of_nonsense_is_nobody(raw: bytes) -> None:
    assert Logins().of({b"host": b"h:1", b"cookie": raw}) is None


def test_a_reload_logs_out_only_when_secrets_change() -> None:
    before = Guard(TOKEN)
    assert Guard(TOKEN).after(before).logins is before.logins
    assert Guard(READ_TOKEN).after(before).logins is not before.logins
    assert Guard(TOKEN, passwords_key=b"new").after(before).logins is not before.logins


def test_requests_without_a_page_are_no_other_page() -> None:
    assert not is_foreign_page(HOST)
    assert not is_foreign_page(OWN)
    assert not is_foreign_page(HOST | {b"sec-fetch-site": b"none"})


# -- the page --


def test_a_browser_gets_the_page_and_a_command_the_index() -> None:
    node = Node(Guard(TOKEN, open_to_readers=False))
    status, headers, body = answered(node, "/", HOST | {b"accept": b"text/html,*/*"})
    assert (status, "<script" in body) == (200, True)
    assert headers["Content-Security-Policy"] == POLICY
    assert headers["X-Frame-Options"] == "DENY"
    assert answered(node, "/", HOST)[0] == 401
    assert "/metrics" in answered(Node(Guard()), "/", HOST)[2]


def test_every_file_of_the_page_is_in_the_package_and_nothing_comes_from_elsewhere() -> None:
    assets = files("sterna.runtime.dashboard").joinpath("assets")
    page = assets.joinpath("index.html").read_text()
    wanted = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert sorted(wanted) == sorted(f"/dashboard/{name}" for name in FILES if name != "index.html")
    assert not re.search(r"<style|style=| on\w+=|<script>", page)
    for name in FILES:
        text = assets.joinpath(name).read_text()
        found = set(re.findall(r"\b(?:https?:)?//[\w.-]+\.\w+", text)) - {"http://www.w3.org"}
        assert not found, f"{name} names {found}"
    assert "unsafe" not in POLICY
    assert "*" not in POLICY


def test_levels_of_all_nodes_are_one_answer_and_messages_without_room_are_added_up() -> None:
    def row(node: str, name: str, left_out: int, recent: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "node": node, "name": name, "topics": 1, "has_children": False, "messages": 1, "bytes": 1, "last": "x",
            "last_bytes": 1, "age_s": 0.0, "retained": None, "retained_bytes": 0, "retained_age_s": None, "stride": 1,
            "left_out": left_out, "is_counting": False, "recent": recent,
        }  # fmt: skip

    def messages(*times: int) -> list[dict[str, Any]]:
        return [{"time": time} for time in times]

    node = Node(Guard())
    node.rows = [row("a", "t", 3, messages(*range(0, 20, 2))), row("b", "t", 4, messages(*range(1, 20, 2)))]
    said = json.loads(answered(node, "/dashboard/topics", OWN)[2])
    assert (said["left_out"], [one["messages"] for one in said["levels"]]) == (7, [2])
    said = json.loads(answered(node, "/dashboard/topic?topic=t", OWN)[2])
    assert (said["level"]["messages"], [one["time"] for one in said["recent"]]) == (2, list(range(19, 9, -1)))
    node.rows = []
    assert json.loads(answered(node, "/dashboard/topic?topic=t", OWN)[2])["level"] is None


# -- live pictures --


def test_all_pages_get_the_same_pictures_and_nobody_is_asked_when_nobody_looks() -> None:
    async def main() -> None:
        ask = Asked({"node": "a"}, silent=("b",))
        pictures = LivePictures(ask)
        pages = [Page() for _ in range(3)]
        for page in pages:
            pictures.join(page)
        await until(lambda: all(len(page.events) >= 2 for page in pages))
        assert ask.times <= len(pages[0].events) + 1
        name, data = pages[0].events[0].decode().split("\n")[:2]
        assert name == "event: picture"
        shown = json.loads(data.removeprefix("data: "))
        assert ([row["node"] for row in shown["nodes"]], shown["silent"]) == (["a"], ["b"])
        for page in pages:
            pictures.leave(page)
        await until(lambda: pictures._task is None)

    asyncio.run(main())


def test_a_node_that_went_is_shown_as_it_was_for_a_while() -> None:
    async def main() -> None:
        now = [0.0]
        ask = Asked({"node": "a"}, {"node": "b"})
        pictures = LivePictures(ask, lambda: now[0])

        async def nodes() -> dict[str, float]:
            now[0] += EVERY_S
            return {row["node"]: row["age_s"] for row in json.loads(await pictures.picture())["nodes"]}

        assert await nodes() == {"a": 0.0, "b": 0.0}
        del ask.rows[1]
        assert await nodes() == {"a": 0.0, "b": EVERY_S}
        now[0] += REMEMBERED_S
        assert await nodes() == {"a": 0.0}

    asyncio.run(main())


def test_a_page_gets_a_new_picture_each_time_even_if_the_clock_is_a_hair_early() -> None:
    """Timers may fire just before their time, and the picture of a second ago is not news."""

    async def main() -> None:
        ask = Asked({"node": "a"})
        pictures = LivePictures(ask, lambda: 0.0)
        page = Page()
        pictures.join(page)
        await until(lambda: len(page.events) >= 3)
        assert ask.times >= len(page.events)
        pictures.leave(page)
        await until(lambda: pictures._task is None)

    asyncio.run(main())


def test_pages_have_pictures_again_after_one_that_could_not_be_made(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        answers, failures = Asked({"node": "a"}), 0

        async def ask(within_s: float) -> Gathered:
            nonlocal failures
            if len(page.events) == 1 and failures < 2:
                failures += 1
                raise RuntimeError("a row of nonsense")
            return await answers(within_s)

        page = Page()
        pictures = LivePictures(ask, lambda: 0.0)
        pictures.join(page)
        await until(lambda: len(page.events) >= 2)
        assert failures == 2
        pictures.leave(page)
        await until(lambda: pictures._task is None)

    asyncio.run(main())
    assert [one.message for one in caplog.records].count(
        "the dashboard cannot be drawn now; its pages wait for the next picture"
    ) == 1


def _serve(test: Callable[[AdminPort, Bind], Awaitable[None]], ask: Asked, guard: Guard | None = None) -> None:
    async def main() -> None:
        port = AdminPort(Node(guard or Guard(), ask), guard, deadline_s=0.5)
        bind = await port.start(Bind("127.0.0.1", 0))
        try:
            await asyncio.wait_for(test(port, bind), WAIT_S)
        finally:
            await port.stop()

    asyncio.run(main())


async def _open_stream(bind: Bind, more: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(bind.host, bind.port)
    writer.write(b"GET /dashboard/events HTTP/1.1\r\nHost: localhost:1\r\n" + more + b"\r\n")
    return reader, writer


def test_a_stream_outlives_the_deadline_of_requests_and_streams_are_bounded() -> None:
    async def test(port: AdminPort, bind: Bind) -> None:
        reader, writer = await _open_stream(bind)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200" in head
        assert b"text/event-stream" in head
        for _ in range(3):  # a picture a second: later than the deadline
            await reader.readuntil(b"event: picture")
        others = [await _open_stream(bind) for _ in range(STREAMS_MAX)]
        refused = [await one.readuntil(b"\r\n") for one, _ in others]
        assert sum(b"503" in line for line in refused) == 1
        for _, one in (*others, (reader, writer)):
            one.close()
        await until(lambda: not port.streams)

    _serve(test, Asked({"node": "a"}))


@pytest.mark.parametrize("why", ["logout", "time", "another token", "another read token", "as before"])
def test_a_stream_ends_when_its_login_does(why: str) -> None:
    now = [0.0]
    logins = Logins(lambda: now[0])
    before = Guard(TOKEN, open_to_readers=False, read_token=READ_TOKEN, logins=logins)

    async def test(port: AdminPort, bind: Bind) -> None:
        secret, _ = logins.begin(Role.READER)
        shown = {b"host": b"localhost:1", b"cookie": f"sterna-1={secret}".encode()}
        reader, writer = await _open_stream(bind, b"Cookie: " + shown[b"cookie"] + b"\r\n")
        await reader.readuntil(b"event: picture")
        if why == "logout":
            logins.end(shown)
        elif why == "time":
            now[0] = LOGIN_S
        else:
            token = b"x" * 16 if why == "another token" else TOKEN
            read_token = b"x" * 16 if why == "another read token" else READ_TOKEN
            port.guard = Guard(token, False, read_token=read_token).after(before)
        if why == "as before":
            for _ in range(2):
                await reader.readuntil(b"event: picture")
        else:
            assert (await reader.read()).endswith(b"0\r\n\r\n")
        writer.close()
        await until(lambda: not port.streams)

    _serve(test, Asked({"node": "a"}), before)


def test_a_page_that_does_not_read_is_cut_off_when_its_login_ends() -> None:
    before = Guard()

    async def test(port: AdminPort, bind: Bind) -> None:
        _, writer = await _open_stream(bind)
        await until(lambda: bool(port.streams))
        (stream,) = port.streams
        while not stream._transport.get_write_buffer_size():
            stream.send(b"x" * 65536)
        port.guard = Guard(TOKEN, open_to_readers=False).after(before)
        stream.send(b"more")
        await until(lambda: not port.streams)
        writer.close()

    _serve(test, Asked({"node": "a"}), before)


def test_a_page_that_does_not_read_fills_no_memory() -> None:
    async def test(port: AdminPort, bind: Bind) -> None:
        _, writer = await _open_stream(bind)
        await until(lambda: bool(port.streams))
        (stream,) = port.streams
        for _ in range(200):
            stream.send(b"x" * 65536)
        assert stream._transport.get_write_buffer_size() < STREAM_BYTES_MAX + 2 * 65536
        writer.close()

    _serve(test, Asked({"node": "a"}))


# -- alarms --

QUIET: dict[str, Any] = {
    "not_ready": None,
    "totals": {"journal_lost": 0},
    "absent": [],
    "unsynced": [],
    "links": [{"peer": "b", "congested": False}],
    "foreign": {"broker": "x:1", "state": "attached", "trouble": None},
    "certificates": {"l": 100 * 86400},
    "feed": {"lost": 0},
    "evacuation": None,
}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"not_ready": "the disk is full"}, "the disk is full"),
        ({"totals": {"journal_lost": 2}}, "2 messages"),
        ({"absent": ["c"]}, "node c cannot be reached"),
        ({"unsynced": ["c"]}, "messages of c"),
        ({"links": [{"peer": "b", "congested": True}]}, "link to b"),
        ({"foreign": {"broker": "x:1", "state": "away", "trouble": "refused"}}, "x:1 is away: refused"),
        ({"certificates": {"l": 86400}}, "expires in 1 days"),
        ({"feed": {"lost": 7}}, "lost 7"),
        ({"evacuation": {"left": 5}}, "5 sessions"),
    ],
)
def test_each_alarm_has_its_cause(change: dict[str, Any], text: str) -> None:
    assert alarms_of(QUIET) == []
    (alarm,) = alarms_of(QUIET | change)
    assert text in alarm["text"]


def test_alarms_are_bounded() -> None:
    assert len(RULES) == 9
    assert len(alarms_of(QUIET | {"absent": [str(number) for number in range(1000)]})) == ALARMS_MAX


def test_the_page_is_tracked_as_it_is_built() -> None:
    """`make dashboard-check` compares the bytes; here: that nobody forgot to add a file."""
    sources = Path(__file__).parents[2] / "dashboard" / "src"
    assert (
        sources.joinpath("index.html").read_text()
        == files("sterna.runtime.dashboard").joinpath("assets", "index.html").read_text()
    )


def test_the_page_names_the_releases_of_node_that_its_linter_needs() -> None:
    """`dashboard/lint.js` goes by it; an older Node still checks types and builds."""
    place = Path(__file__).parents[2] / "dashboard"
    locked = json.loads((place / "package-lock.json").read_text())["packages"]
    named = json.loads((place / "package.json").read_text())["engines"]
    assert named == locked[""]["engines"] == locked["node_modules/eslint"]["engines"]
