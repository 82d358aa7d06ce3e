"""The access hook: bounded, cached, with a time-out, and closed whenever there is no sensible answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sterna.broker.access.identity import Accepted, Credentials, Refused
from sterna.mqtt.reasons import Reason
from sterna.runtime.config.loading import load
from sterna.runtime.hooks.access_hook import AccessHook, HookVerdict
from sterna.runtime.hooks.http_asker import HttpAsker
from sterna.runtime.hooks.process_asker import ProcessAsker
from sterna.runtime.hooks.settings import HookTable
from sterna.vocabulary.errors import ConfigurationError

ANN = Credentials("meter", "ann", b"secret")
ADDRESS = "192.0.2.1:5000"


class Scripted:
    """A program that answers as the test says, and remembers what it was asked."""

    def __init__(self, answer: Callable[[dict[str, Any]], Awaitable[bytes]]) -> None:
        self._answer = answer
        self.asked: list[dict[str, Any]] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def ask(self, question: bytes) -> bytes:
        self.asked.append(json.loads(question))
        return await self._answer(self.asked[-1])


def saying(text: str) -> Scripted:
    async def answer(_question: dict[str, Any]) -> bytes:
        return text.encode()

    return Scripted(answer)


async def verdict(hook: AccessHook, credentials: Credentials = ANN, address: str = ADDRESS) -> HookVerdict:
    found: asyncio.Future[HookVerdict] = asyncio.get_running_loop().create_future()
    hook.submit(credentials, address, found.set_result)
    assert not found.done(), "never at once"
    return await asyncio.wait_for(found, 60)


def asked_once(asker: Scripted, table: HookTable | None = None, credentials: Credentials = ANN) -> HookVerdict:
    return asyncio.run(verdict(AccessHook(table or HookTable(url="x"), asker, "north"), credentials))


def test_the_answer_says_who_it_is_and_what_it_may_do() -> None:
    asker = saying('{"result": "allow", "user": "boss", "rules": [{"filters": ["a/%u"], "access": "publish"}]}')
    found = asked_once(asker)
    assert found.verdict == Accepted("boss")
    assert [(rule.filters, rule.access, rule.effect) for rule in found.granted] == [(("a/%u",), "publish", "allow")]
    assert asker.asked == [
        {
            "client": "meter",
            "user": "ann",
            "password": "secret",
            "certificate": None,
            "address": ADDRESS,
            "node": "north",
        }
    ]
    assert asked_once(saying('{"result": "allow"}')).verdict == Accepted("ann")
    assert asked_once(saying('{"result": "ignore"}')) == HookVerdict(None)
    refused = asked_once(saying('{"result": "deny"}')).verdict
    assert isinstance(refused, Refused)
    assert refused.code == Reason.NOT_AUTHORIZED


def test_a_password_that_is_no_text_comes_as_base64() -> None:
    asker = saying('{"result": "deny"}')
    asked_once(asker, credentials=Credentials("meter", "ann", b"\xff"))
    assert (asker.asked[0].get("password"), asker.asked[0]["password_base64"]) == (None, "/w==")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yes",
        "{}",
        '{"result": "maybe"}',
        '{"result": "allow", "admin": true}',
        '{"result": "allow", "user": "anonymous"}',
        '{"result": "allow", "rules": [{"filters": ["a/#/b"]}]}',
        '{"result": "allow", "rules": [{"filters": []}]}',
        json.dumps({"result": "allow", "rules": [{"filters": ["a"]}] * 101}),
        '{"result": "allow", "expires_s": -1}',
    ],
)
def test_an_answer_that_makes_no_sense_lets_nobody_in(text: str) -> None:
    found = asked_once(saying(text)).verdict
    assert isinstance(found, Refused)
    assert found.code == Reason.SERVER_UNAVAILABLE


def test_no_answer_in_time_lets_nobody_in() -> None:
    async def never(_question: dict[str, Any]) -> bytes:
        await asyncio.Event().wait()
        return b""

    found = asked_once(Scripted(never), HookTable(url="x", time_out_s=0.05)).verdict
    assert isinstance(found, Refused)
    assert "time_out_s" in found.reason


def test_those_who_wait_are_bounded() -> None:
    async def test() -> None:
        release = asyncio.Event()

        async def later(_question: dict[str, Any]) -> bytes:
            await release.wait()
            return b'{"result": "allow"}'

        hook = AccessHook(HookTable(url="x", waiting=2, time_out_s=60), Scripted(later), "")
        first = [asyncio.ensure_future(verdict(hook)) for _ in range(2)]
        await asyncio.sleep(0)
        full = (await verdict(hook)).verdict
        assert isinstance(full, Refused)
        assert full.code == Reason.SERVER_BUSY
        release.set()
        assert [found.verdict for found in await asyncio.gather(*first)] == [Accepted("ann")] * 2

    asyncio.run(test())


def test_answers_are_remembered_for_the_same_client_and_no_other() -> None:
    async def test() -> None:
        asker = saying('{"result": "allow"}')
        hook = AccessHook(HookTable(url="x", cache_s=3600), asker, "")
        for port in (1, 2, 3):
            assert (await verdict(hook, address=f"192.0.2.1:{port}")).verdict == Accepted("ann")
        assert len(asker.asked) == 1
        for other in (Credentials("meter", "ann", b"x"), Credentials("lamp", "ann", b"secret")):
            await verdict(hook, other)
        await verdict(hook, address="192.0.2.2:1")
        assert len(asker.asked) == 4

    asyncio.run(test())


def test_a_failure_is_not_remembered() -> None:
    async def test() -> None:
        asker = saying("oops")
        hook = AccessHook(HookTable(url="x", cache_s=3600), asker, "")
        for _ in range(2):
            await verdict(hook)
        assert (len(asker.asked), hook.failures) == (2, 2)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("said", "part"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n" + b'{"result": "allow"}', ""),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "status 500"),
        (b"220 smtp.example.org\r\n", "no HTTP"),
        (b"", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n" + bytes(70000), "status 502"),
    ],
)
def test_the_hook_is_asked_by_http(said: bytes, part: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"}"))
        writer.write(said)
        writer.close()

    async def test() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        table = HookTable(url=f"http://127.0.0.1:{port}/mqtt?x=1", token_file=tmp_path / "token", time_out_s=30)
        async with server:
            found = (await verdict(AccessHook(table, HttpAsker(table), ""))).verdict
        assert isinstance(found, Refused) == bool(part)
        assert not part or (isinstance(found, Refused) and part in found.reason), found

    asyncio.run(test())
    head = asked[0].lower()
    assert head.startswith(b"post /mqtt?x=1 http/1.1\r\n")
    assert b"authorization: bearer t0ken\r\n" in head


def test_nobody_at_the_address_lets_nobody_in() -> None:
    async def test() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        table = HookTable(url=f"http://127.0.0.1:{port}/", time_out_s=30)
        found = (await verdict(AccessHook(table, HttpAsker(table), ""))).verdict
        assert isinstance(found, Refused)

    asyncio.run(test())


MODULE = """
import os, time

def check(question):
    if question["user"] == "hang":
        time.sleep(3600)
    if question["user"] == "die":
        os.abort()
    if question["user"] == "bug":
        return question["nothing"]
    return {"result": "allow" if question["password"] == "secret" else "deny"}
"""


@pytest.mark.slow
def test_a_function_may_hang_die_and_fail_without_harm(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(MODULE)

    async def test() -> None:
        table = HookTable(call="rules:check", directory=tmp_path, time_out_s=20)
        hook = AccessHook(table, ProcessAsker(table), "")
        await hook.start()
        assert (await verdict(hook)).verdict == Accepted("ann")
        for user in ("die", "bug"):
            found = (await verdict(hook, Credentials("c", user, b"secret"))).verdict
            assert isinstance(found, Refused)
            assert found.code == Reason.SERVER_UNAVAILABLE
        found = (await verdict(hook, Credentials("c", "ann", b"wrong"))).verdict
        assert isinstance(found, Refused)
        assert found.code == Reason.NOT_AUTHORIZED
        await hook.stop()
        table = HookTable(call="rules:check", directory=tmp_path, time_out_s=0.5)
        hook = AccessHook(table, ProcessAsker(table), "")
        await hook.start()
        found = (await verdict(hook, Credentials("c", "hang", b"secret"))).verdict
        assert isinstance(found, Refused)
        await hook.stop()

    asyncio.run(test())


@pytest.mark.slow
def test_a_function_that_cannot_be_loaded_lets_nobody_in(tmp_path: Path) -> None:
    async def test() -> None:
        table = HookTable(call="nowhere:check", directory=tmp_path, time_out_s=20)
        hook = AccessHook(table, ProcessAsker(table), "")
        await hook.start()
        found = (await verdict(hook)).verdict
        assert isinstance(found, Refused)
        assert "cannot be loaded" in found.reason
        await hook.stop()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("table", "part"),
    [
        ("", "set one of url and call"),
        ('url = "http://127.0.0.1:1/"\ncall = "a:b"', "set one of url and call"),
        ('url = "ftp://127.0.0.1/"', "write https://"),
        ('url = "nonsense"', "write https://"),
        ('url = "http://auth.example.org/"', "say unencrypted = true"),
        ('call = "a"', "write module:function"),
        ('url = "http://127.0.0.1:1/"\ntoken_file = "nowhere"', "cannot be read"),
    ],
)
def test_a_hook_that_cannot_work_is_refused_with_the_remedy(table: str, part: str, tmp_path: Path) -> None:
    file = tmp_path / "sterna.toml"
    file.write_text(f"[authentication.hook]\n{table}\n")
    with pytest.raises(ConfigurationError, match=part):
        load(file, {})


def test_with_a_hook_clients_have_to_show_who_they_are(tmp_path: Path) -> None:
    file = tmp_path / "sterna.toml"
    file.write_text('[authentication.hook]\nurl = "http://127.0.0.1:1/"\n[[listener]]\nbind = "0.0.0.0:1883"\n')
    assert not load(file, {}).listeners[0].anonymous
