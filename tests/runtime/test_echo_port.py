"""Echoes over real sockets: by UDP, and by TCP on the same port."""

from __future__ import annotations

import asyncio
import time
from random import Random

import pytest

from sterna.overlay.coordinates import Coordinate
from sterna.overlay.echoes import EchoAnswerer, EchoAsker, EchoSample
from sterna.runtime.adaptation.echo_port import EchoClient, EchoPort
from sterna.runtime.config.schema import Bind
from sterna.vocabulary.errors import ConfigurationError

KEY = b"k" * 32


@pytest.mark.parametrize("by_tcp", [False, True])
def test_a_ping_comes_back(by_tcp: bool) -> None:
    async def work() -> None:
        answerer, asker = EchoAnswerer(), EchoAsker(Random(1))
        port = EchoPort(lambda data, source, now: answerer.came(data, source, [KEY], Coordinate(), now))
        samples: list[EchoSample] = []
        client = EchoClient(lambda data: samples.extend(filter(None, [asker.came(data, [KEY], time.monotonic())])))
        bind = await port.start(Bind("127.0.0.1", 0))
        await client.open()
        try:
            async with asyncio.timeout(60):
                while len(samples) < 3:
                    client.send(str(bind), asker.ping("w", KEY, time.monotonic()), by_tcp=by_tcp)
                    client.send("127.0.0.1:no", b"x", by_tcp=by_tcp)
                    await asyncio.sleep(0.01)
        finally:
            client.close()
            port.stop()
        assert {sample.peer for sample in samples} == {"w"}
        assert client.received_bytes >= 3 * 44

    asyncio.run(work())


def test_a_stream_that_is_not_sealed_is_ended() -> None:
    async def work() -> None:
        answerer = EchoAnswerer()
        port = EchoPort(lambda data, source, now: answerer.came(data, source, [KEY], Coordinate(), now))
        bind = await port.start(Bind("127.0.0.1", 0))
        reader, writer = await asyncio.open_connection(bind.host, bind.port)
        writer.write(b"x" * 4000)
        async with asyncio.timeout(60):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        writer.close()
        port.stop()

    asyncio.run(work())


def test_a_port_in_use_is_told_of() -> None:
    async def work() -> None:
        first, second = (EchoPort(lambda *_: None) for _ in range(2))
        bind = await first.start(Bind("127.0.0.1", 0))
        with pytest.raises(ConfigurationError, match="echo port cannot listen"):
            await second.start(bind)
        first.stop()

    asyncio.run(work())
