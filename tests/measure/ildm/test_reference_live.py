"""The paper's node as processes in front of real Mosquittos: every client gets every message once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import paho.mqtt.client as paho
import paho.mqtt.enums as paho_enums
import pytest

from sterna.measure.harness.brokers import mosquitto_command, mosquitto_settings
from sterna.measure.harness.ports import free_ports
from sterna.measure.harness.processes import Process, answers, wait_until
from sterna.measure.ildm.reference import server

WITHIN_S = 60.0
SERVER = [sys.executable, "-m", "sterna.measure.ildm.reference.server"]


def process(stack: ExitStack, name: str, command: list[str], directory: Path, port: int) -> Process:
    made = Process(name, command, directory)
    made.start()
    stack.callback(made.stop)
    wait_until(lambda: answers("127.0.0.1", port), f"{name} answers: {made.last_words()}", WITHIN_S)
    return made


@pytest.fixture(params=["PF", "SF"])
def row(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[list[int], list[Process]]]:
    """Three nodes in a row; their ports and processes."""
    if shutil.which("mosquitto") is None and not Path("/usr/sbin/mosquitto").exists():
        pytest.skip("mosquitto is not installed")
    ports = free_ports(6)
    nodes, brokers = ports[:3], ports[3:]
    with ExitStack() as stack:
        made = []
        for number, (port, broker) in enumerate(zip(nodes, brokers, strict=True)):
            conf = tmp_path / f"mosquitto{number}.conf"
            conf.write_text(mosquitto_settings(broker))
            process(stack, f"mosquitto{number}", mosquitto_command(conf), tmp_path, broker)
            file = tmp_path / f"node{number}.json"
            settings = server.Settings(
                name=f"I{number}",
                algorithm=request.param,
                port=port,
                broker=broker,
                neighbours=tuple(nodes[number - 1 : number]) if number else (),
            )
            file.write_bytes(msgspec.json.encode(settings))
            made.append(process(stack, f"node{number}", [*SERVER, str(file)], tmp_path, port))
        yield nodes, made


class Paho:
    def __init__(self, port: int, name: str) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.granted = 0
        self.client = paho.Client(paho_enums.CallbackAPIVersion.VERSION2, client_id=name)
        self.client.on_message = lambda client, data, message: self.got.append((message.topic, bytes(message.payload)))
        self.client.on_subscribe = self._granted
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()

    def _granted(self, *told: object) -> None:
        self.granted += 1

    def subscribe(self, topic: str) -> None:
        before = self.granted
        self.client.subscribe(topic)
        _until(lambda: self.granted > before)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()
        self.client._reset_sockets()  # which paho leaves to the collector


def _until(holds: Callable[[], bool]) -> None:
    wait_until(holds, "it has come", WITHIN_S)


@pytest.mark.slow
def test_messages_cross_a_row_of_real_brokers_once(row: tuple[list[int], list[Process]]) -> None:
    ports, processes = row
    with ExitStack() as stack:
        clients = []
        for number, port in enumerate(ports):
            client = Paho(port, f"c{number}")
            stack.callback(client.close)
            client.subscribe("t/#")
            clients.append(client)
        # Interest travels behind SUBACK: until it is known everywhere, messages of the ends do not reach each other.
        for source in clients[0], clients[-1]:
            for target in clients:
                while not any(
                    topic == "t/ready" and payload == source.client._client_id for topic, payload in target.got
                ):
                    source.client.publish("t/ready", source.client._client_id)
                    time.sleep(0.02)
        for number in range(50):
            for source in clients:
                source.client.publish("t/x", f"{source.client._client_id.decode()} {number}", qos=number % 3)
        wanted = sorted(
            f"{source.client._client_id.decode()} {number}".encode() for source in clients for number in range(50)
        )
        for target in clients:
            _until(lambda target=target: len([1 for topic, _ in target.got if topic == "t/x"]) >= len(wanted))  # type: ignore[misc]
        for source in clients:
            source.client.publish("t/end", source.client._client_id)
        for target in clients:
            _until(lambda target=target: len([1 for topic, _ in target.got if topic == "t/end"]) == len(clients))  # type: ignore[misc]
            assert sorted(payload for topic, payload in target.got if topic == "t/x") == wanted
        clients[0].client.publish("other", b"nobody wants it", qos=1).wait_for_publish(WITHIN_S)
    for one in processes:
        one.stop()
    counts = [int(one.log.read_text().split(server.TRANSFERRED)[1].split()[0]) for one in processes]
    assert all(counts)


def test_the_server_names_what_is_wrong_with_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"name": 1}')
    run = subprocess.run([*SERVER, str(file)], capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 1
    assert f"{file}: " in run.stderr
    assert "Traceback" not in run.stderr
