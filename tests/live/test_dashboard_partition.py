"""A network that falls in two, as the dashboard shows it on either side: who is missing, and what waits for whom."""

from __future__ import annotations

import re
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest
from playwright.sync_api import Browser, expect

from .browsers import axe_findings, chromium, opened
from .conftest import Join
from .networks import LiveNetwork
from .test_dashboard import address, go

pytestmark = pytest.mark.slow

MESSAGES = 7
BACK = 3
"""Messages from the island for the others."""
READ_BYTES = 65536


class Cable:
    """Carries bytes from a port of its own to another one; while it is cut, it takes nobody."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._is_whole = True
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        for one in (self._listener, self._woken):
            self._selector.register(one, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run)

    @property
    def port(self) -> int:
        found: int = self._listener.getsockname()[1]
        return found

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._wake.send(b"e")
        self._thread.join()

    def cut(self) -> None:
        self._wake.send(b"c")

    def heal(self) -> None:
        self._wake.send(b"h")

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one is self._woken:
                    word = one.recv(1)
                    self._is_whole = word == b"h"
                    if not self._is_whole:
                        self._drop(*self._pairs)
                    if word == b"e":
                        self._drop(self._listener, self._woken, self._wake)
                        self._selector.close()
                        return
                elif one is self._listener:
                    self._take(one.accept()[0])
                elif one in self._pairs:
                    self._carry(one, self._pairs[one])

    def _take(self, ours: socket.socket) -> None:
        if not self._is_whole:
            ours.close()
            return
        try:
            theirs = socket.create_connection(("127.0.0.1", self._to))
        except OSError:
            ours.close()
            return
        for one, other in ((ours, theirs), (theirs, ours)):
            self._pairs[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            if data := one.recv(READ_BYTES):
                other.sendall(data)
                return
        self._drop(one, other)

    def _drop(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with suppress(KeyError):
                self._selector.unregister(one)
            self._pairs.pop(one, None)
            one.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@contextmanager
def two_shores(directory: Path) -> Iterator[tuple[LiveNetwork, Cable]]:
    """Nodes a and b, and c beyond a cable."""
    network = LiveNetwork(directory, ("ab",))
    with Cable(network.ports["b"]) as cable:
        network.nodes["c"] = network.make("c", [f"127.0.0.1:{cable.port}"], network.strategy)
        with network:
            yield network, cable


def test_either_side_of_a_cut_shows_who_is_missing_and_what_waits(tmp_path: Path, browser: Browser, join: Join) -> None:
    with two_shores(tmp_path) as (network, cable):
        islander = join(network["c"], client_id="islander")
        islander.subscribe("post/1", 1)
        postman = join(network["a"], client_id="postman")
        postman.subscribe("post/back", 1)
        with opened(browser, address(network["a"])) as shore, opened(browser, address(network["c"])) as island:
            for page in (shore, island):
                expect(page.locator("[data-node]")).to_have_count(3)
            cable.cut()
            expect(shore.locator('[data-other="c"]')).to_contain_text("not reachable")
            for number in range(MESSAGES):
                postman.publish("post/1", b"%d" % number, 1)
            expect(shore.locator('[data-other="c"]')).to_contain_text(f"up to {MESSAGES} messages wait")
            expect(shore.locator('[data-link="b c"], [data-link="c b"]')).to_have_text("no link")
            expect(shore.locator("[data-node]")).to_have_count(2)
            for number in range(BACK):
                islander.publish("post/back", b"%d" % number, 1)
            for name in "ab":
                expect(island.locator(f'[data-other="{name}"]')).to_contain_text(f"up to {BACK} messages wait")
                expect(island.locator(f'[data-other="{name}"]')).to_contain_text("not reachable")
            expect(island.locator("[data-node]")).to_have_count(1)
            assert axe_findings(shore) == []
            go(shore, "waiting")
            expect(shore.get_by_text("2 nodes reach each other")).to_be_visible()
            row = shore.get_by_role("region", name="Nodes that cannot be reached").locator("tbody tr")
            expect(row).to_have_text(re.compile(f"^c.* agoa, bup to {MESSAGES} messages, in the journals"))
            go(island, "waiting")
            expect(island.get_by_text("One node answers")).to_be_visible()
            rows = island.get_by_role("region", name="Nodes that cannot be reached").locator("tbody tr")
            expect(rows).to_have_text([re.compile(f"^{name}.* agocup to {BACK} messages") for name in "ab"])
            cable.heal()
            for page in (shore, island):
                expect(page.get_by_text("3 nodes reach each other")).to_be_visible()
                go(page, "map")
                expect(page.locator("[data-node]")).to_have_count(3)
                expect(page.locator(".missing")).to_have_count(0)
        assert islander.payloads(MESSAGES) == [b"%d" % number for number in range(MESSAGES)]
        assert postman.payloads(BACK) == [b"%d" % number for number in range(BACK)]
