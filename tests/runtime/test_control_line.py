"""A control line whose node falls silent: it is asked for life, at the latest when somebody doubts it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sterna.runtime.adaptation import control_line
from sterna.runtime.adaptation.control_line import ControlAccount, ControlLine

CONNACK, PINGREQ, PINGRESP = bytes.fromhex("20020000"), bytes.fromhex("c000"), bytes.fromhex("d000")
WITHIN_S = 60


class SilentNode:
    """It accepts everybody, and answers as many pings as it is told to."""

    def __init__(self, answers: int) -> None:
        self.pings = 0
        self._answers = answers
        self._open = 0

    async def __aenter__(self) -> SilentNode:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await until(lambda: not self._open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        await reader.read(1000)
        writer.write(CONNACK)
        while data := await reader.read(1000):
            for _ in range(data.count(PINGREQ)):
                self.pings += 1
                if self.pings <= self._answers:
                    writer.write(PINGRESP)
        writer.close()
        await writer.wait_closed()
        self._open -= 1


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def a_moment_after_the_answer_was_due() -> None:
    later = asyncio.Event()
    asyncio.get_running_loop().call_later(control_line.ANSWER_S, later.set)
    await later.wait()


def line_to(node: SilentNode, keep_alive_s: int) -> ControlLine:
    line = ControlLine(ControlAccount("one", [node.address]), [b"topic"], lambda *_: None, 1, keep_alive_s)
    line.start()
    return line


def test_a_node_that_is_silent_for_a_keep_alive_is_left() -> None:
    async def work() -> None:
        async with SilentNode(answers=0) as node:
            line = line_to(node, keep_alive_s=1)
            await until(lambda: line.connections == 2)
            await line.stop()

    asyncio.run(work())


@pytest.mark.slow
def test_a_node_that_is_doubted_and_silent_is_left_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with SilentNode(answers=1) as node:
            line = line_to(node, keep_alive_s=3600)
            await until(lambda: line.connections == 1)
            line.doubt()
            await until(lambda: node.pings == 1)
            await a_moment_after_the_answer_was_due()
            assert (line.connections, line.trouble) == (1, ""), "it has answered"
            line.doubt()
            await until(lambda: line.connections == 2)
            await line.stop()

    monkeypatch.setattr(control_line, "ANSWER_S", 2.0)
    asyncio.run(work())


def test_one_without_a_connection_can_be_doubted() -> None:
    async def work() -> None:
        ControlLine(ControlAccount("one", ["127.0.0.1:1"]), [], lambda _topic, _data: None, 1).doubt()

    asyncio.run(work())
