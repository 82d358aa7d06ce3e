"""Real nodes linked over several connections: one of them is cut under load, and nothing is lost."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from .crowd import Crowd
from .networks import LiveNetwork, hears
from .nodes import wait_until

pytestmark = pytest.mark.slow

CONNECTIONS = 4


class Relay:
    """Stands between two nodes; `cut` ends the oldest connection that stands."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._door = socket.create_server(("127.0.0.1", 0))
        self._standing: list[tuple[socket.socket, socket.socket]] = []
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self.connections = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        while self._standing:
            self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                far = socket.create_connection(self._target)
                self.connections += 1
                self._standing.append((near, far))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        self._end((source, sink) if (source, sink) in self._standing else (sink, source))

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with suppress(ValueError):  # the other direction was quicker
            self._standing.remove(pair)
        for end in pair:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut(self) -> None:
        self._end(self._standing[0])


def test_a_connection_cut_out_of_a_bundle_costs_a_pause_and_no_message(tmp_path: Path) -> None:
    network = LiveNetwork(tmp_path, ["ab"])
    with ExitStack() as stack:
        a = stack.enter_context(network["a"])
        relay = stack.enter_context(Relay(network.door("a")))
        b = network.make("b", [relay.address], network.strategy, f"connections = {CONNECTIONS}")
        stack.enter_context(b)
        wait_until(lambda: hears(a, "ab") and hears(b, "ab"), "the nodes hear each other")
        assert b.network()["dialled"] == {relay.address: f"linked with node a over {CONNECTIONS} connections"}
        assert relay.connections == CONNECTIONS
        (link,) = b.network()["links"]
        with Crowd([a, b], random.Random(1), 300) as crowd:
            for _ in range(2):
                crowd.run(lambda: False, 0.4)
                relay.cut()
            crowd.run(lambda: False, 0.4)
            crowd.drain()
            crowd.check()
        (after,) = b.network()["links"]
        assert (after["session"], after["resumptions"]) == (link["session"], 2)
        assert relay.connections == 3 * CONNECTIONS
        assert "Traceback" not in a.log() + b.log()
