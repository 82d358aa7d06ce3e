"""A node tells the service manager that started it how it is; the test listens in systemd's place."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .nodes import LiveNode, wait_until

pytestmark = pytest.mark.slow


class Manager:
    """The socket of a service manager, and all that was said to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self._said: list[str] = []

    def said(self) -> list[str]:
        while True:
            try:
                self._said += self._socket.recv(4096).decode().splitlines()
            except BlockingIOError:
                return [word.partition("=")[0] if "USEC" in word else word for word in self._said]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path / "notify")
    yield manager
    manager.close()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_service_manager_hears_how_a_node_is(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    toml = f'[node]\nname = "live"\ndata = "{tmp_path}/data"\nprocesses = {processes}\n[admin]\nbind = "127.0.0.1:0"\n'
    with LiveNode(tmp_path / "node", toml) as node:
        wait_until(lambda: manager.said().count("WATCHDOG=1") >= 3, "the watchdog is answered")
        assert manager.said().count("READY=1") == 1  # members of a group do not speak for it
        assert "STOPPING=1" not in manager.said()
        if processes == 1:
            os.kill(node.pid, signal.SIGHUP)
            wait_until(lambda: manager.said().count("READY=1") == 2, "the reload is over")
            reload = [word for word in manager.said() if not word.startswith("WATCHDOG")]
            assert reload == ["READY=1", "RELOADING=1", "MONOTONIC_USEC", "READY=1"]
        node.stop()
        assert "STOPPING=1" in manager.said()


def test_a_node_that_hangs_falls_silent_and_its_watchdog_hears_it_again_when_it_goes_on(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped by SIGSTOP for ten times as long as a word of the watchdog takes."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    with LiveNode(tmp_path / "node") as node:
        wait_until(lambda: "WATCHDOG=1" in manager.said(), "the watchdog is answered")
        os.kill(node.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: state_of(node.pid) == "T", "the node hangs")
            before = manager.said().count("WATCHDOG=1")
            time.sleep(1.0)
            assert manager.said().count("WATCHDOG=1") == before
        finally:
            os.kill(node.pid, signal.SIGCONT)
        wait_until(lambda: manager.said().count("WATCHDOG=1") > before, "it goes on")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_service_manager_that_is_not_there_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    with LiveNode(tmp_path / "node") as node:
        assert node.events("the service manager cannot be reached")
