"""Ports that are given out are free, and given to nobody else, in this process or another."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from sterna.measure.harness import ports

ASK = "from sterna.measure.harness import ports; print(ports._take_name(%d))"


def asked_elsewhere(port: int) -> str:
    run = subprocess.run([sys.executable, "-c", ASK % port], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_a_port_is_given_once_and_can_be_listened_on() -> None:
    found = ports.free_ports(300)
    assert len(set(found)) == 300
    with socket.create_server(("127.0.0.1", found[-1])):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="names without files are Linux's")
def test_another_process_is_not_given_the_same() -> None:
    port = ports.free_port()
    assert asked_elsewhere(port) == "False"
    for _ in range(ports.NAMES_MAX):
        ports.free_port()
    assert asked_elsewhere(port) == "True"


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not ports._is_free("127.0.0.1", server.getsockname()[1])
