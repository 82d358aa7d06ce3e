"""The systems under test: a single broker of any kind, and rows of brokers that cooperate.  A further one is a row.

`sterna` links its own nodes.  `reference` puts the paper's node in front of Mosquittos, `mixed` in front of one broker
of each kind, and `proxy` puts a node of Sterna in front of one Mosquitto.  Each process is a host of its own, and its
role says which share of a core it gets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.brokers import MOSQUITTO, STERNA, BrokerKind, RunningBroker, started
from sterna.measure.harness.foreign_brokers import installed
from sterna.measure.harness.ports import free_port
from sterna.measure.harness.processes import Process, answers, wait_until
from sterna.measure.harness.rows import row_of_sterna, started_row, wait_until_joined
from sterna.measure.ildm.reference import server
from sterna.measure.load.shapes import Idle, Workload

Role = Literal["broker", "node"]
Algorithm = Literal["PF", "SF"]
ALGORITHMS: tuple[Algorithm, ...] = ("PF", "SF")
STRATEGIES = {"PF": "publication-flooding", "SF": "subscription-flooding"}
START_S = 60.0
PLAIN = Workload("ildm", "load of the paper", Idle(0, 0), figure="cpu_us_per_message")


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    role: Role
    pid: int


@dataclass(slots=True)
class RunningSystem:
    ports: tuple[int, ...]
    """Where clients connect, node by node."""
    hosts: list[Host]
    stop_and_count: Callable[[], int | None] = field(default=lambda: None)
    """End the nodes; transfers between them, if they count them."""


@dataclass(frozen=True, slots=True)
class CooperatingSystem:
    name: str
    about: str
    patterns: tuple[str, ...]
    start: Callable[[ExitStack, int, Algorithm], RunningSystem]


@contextmanager
def single(kind: BrokerKind) -> Iterator[RunningSystem]:
    with started(kind, PLAIN, None) as broker:
        yield RunningSystem((broker.port,), [Host(kind.name, "broker", broker.pid)])


@contextmanager
def cooperating(system: CooperatingSystem, nodes: int, algorithm: Algorithm) -> Iterator[RunningSystem]:
    with ExitStack() as stack:
        yield system.start(stack, nodes, algorithm)


def _start_sterna(stack: ExitStack, nodes: int, algorithm: Algorithm) -> RunningSystem:
    strategy = {"network": {"strategy": STRATEGIES[algorithm]}} if nodes > 1 else {}
    row = stack.enter_context(started_row(row_of_sterna(lambda number: strategy), nodes, PLAIN, None))
    hosts = [Host(f"node{number}", "broker", pid) for number, pid in enumerate(row.pids, 1)]
    return RunningSystem(row.ports, hosts)


def _start_reference(stack: ExitStack, nodes: int, algorithm: Algorithm) -> RunningSystem:
    return _start_in_front(stack, [MOSQUITTO] * nodes, algorithm)


def _start_mixed(stack: ExitStack, nodes: int, algorithm: Algorithm) -> RunningSystem:
    """Every kind that is installed, ours included, in turn."""
    kinds = [*installed().values(), STERNA]
    return _start_in_front(stack, [kinds[number % len(kinds)] for number in range(nodes)], algorithm)


def _start_in_front(stack: ExitStack, kinds: Sequence[BrokerKind], algorithm: Algorithm) -> RunningSystem:
    directory = Path(stack.enter_context(TemporaryDirectory(prefix="sterna-ildm-")))
    brokers: list[RunningBroker] = []
    processes: list[Process] = []
    ports: list[int] = []
    for number, kind in enumerate(kinds, 1):
        brokers.append(stack.enter_context(started(kind, PLAIN, None)))
        port = free_port()
        settings = server.Settings(
            name=f"I{number}",
            algorithm=algorithm,
            port=port,
            broker=brokers[-1].port,
            neighbours=tuple(ports[-1:]),
        )
        processes.append(_reference_process(stack, settings, directory))
        ports.append(port)
    if len(kinds) > 1:
        wait_until_joined("reference", ports[-1], ports[:1])
    names = [f"broker{number}" if kind is MOSQUITTO else f"{kind.name}{number}" for number, kind in enumerate(kinds, 1)]
    hosts = [Host(name, "broker", one.pid) for name, one in zip(names, brokers, strict=True)]
    hosts += [Host(f"node{number}", "node", one.pid) for number, one in enumerate(processes, 1)]
    return RunningSystem(tuple(ports), hosts, lambda: _count_transfers(processes))


_PROXY = """
[node]
name = "proxy"
data = "{directory}/data"
[[listener]]
bind = "127.0.0.1:{port}"
[admin]
bind = ""
[interworking]
broker = "127.0.0.1:{broker}"
mode = "proxy"
"""


def _start_proxy(stack: ExitStack, nodes: int, _algorithm: Algorithm) -> RunningSystem:
    """A node of Sterna in front of one Mosquitto: everything its clients publish is heard by the node, too."""
    if nodes != 1:
        raise MeasurementError("proxy stands in front of one broker: use a scenario with one node")
    directory = Path(stack.enter_context(TemporaryDirectory(prefix="sterna-ildm-")))
    broker, port = stack.enter_context(started(MOSQUITTO, PLAIN, None)), free_port()
    file = directory / "sterna.toml"
    file.write_text(_PROXY.format(directory=directory, port=port, broker=broker.port))
    process = Process("proxy", [sys.executable, "-m", "sterna", "interwork", "--config", str(file)], directory)
    process.start()
    stack.callback(process.stop)
    wait_until(lambda: "attached" in process.log.read_text(), "the node is attached", START_S)
    process.check()
    return RunningSystem((port,), [Host("broker1", "broker", broker.pid), Host("node1", "node", process.pid)])


def _reference_process(stack: ExitStack, settings: server.Settings, directory: Path) -> Process:
    file = directory / f"{settings.name}.json"
    file.write_bytes(msgspec.json.encode(settings))
    command = [sys.executable, "-m", "sterna.measure.ildm.reference.server", str(file)]
    process = Process(settings.name, command, directory)
    process.start()
    stack.callback(process.stop)
    wait_until(lambda: answers("127.0.0.1", settings.port), f"{settings.name} answers", START_S)
    process.check()
    return process


def _count_transfers(processes: list[Process]) -> int:
    total = 0
    for process in processes:
        process.stop()
        said = process.log.read_text().partition(server.TRANSFERRED)[2].split()
        if not said:
            raise MeasurementError(f"{process.name} did not say how much it transferred: {process.last_words()}")
        total += int(said[0])
    return total


SYSTEMS: Mapping[str, CooperatingSystem] = {
    "sterna": CooperatingSystem("sterna", "Sterna's nodes, linked", ("B", "C", "D"), _start_sterna),
    "reference": CooperatingSystem(
        "reference", "the paper's PF and SF in front of Mosquittos", ("A", "B", "C", "D"), _start_reference
    ),
    "proxy": CooperatingSystem("proxy", "a Sterna node in front of a Mosquitto", ("A",), _start_proxy),
    "mixed": CooperatingSystem(
        "mixed", "the paper's PF and SF in front of one broker of each installed kind", ("C",), _start_mixed
    ),
}

SINGLES: Mapping[str, BrokerKind] = {"sterna": STERNA, "mosquitto": MOSQUITTO}
