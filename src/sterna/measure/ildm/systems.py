"""The systems under test: a single broker of any kind, and rows of brokers that cooperate.  A further one is a row.

`sterna` links its own nodes.  `reference` puts the paper's node in front of other brokers, `proxy` a node of Sterna.
These are Mosquittos unless the scenario names a kind for each node.  Each process is a host of its own, and its role
says which share of a core it gets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.harness import admin, node_tables
from sterna.measure.harness.brokers import MOSQUITTO, STERNA, BrokerKind, started, sterna_command
from sterna.measure.harness.foreign_brokers import FOREIGN, installed
from sterna.measure.harness.node_tables import Tables
from sterna.measure.harness.ports import free_port, free_ports
from sterna.measure.harness.processes import Process, answers, wait_until
from sterna.measure.harness.rows import READY_TOPIC, row_of_sterna, started_row, wait_until_joined
from sterna.measure.ildm.reference import server
from sterna.measure.ildm.scenario import Scenario
from sterna.measure.load.shapes import Idle, Workload

Role = Literal["broker", "node"]
Algorithm = Literal["PF", "SF"]
PATTERNS = ("A", "B", "C", "D", "mixed")
JOINING = f"{READY_TOPIC}/#"
FORWARDED = "sterna_network_messages_forwarded_total"
ALGORITHMS: tuple[Algorithm, ...] = ("PF", "SF")
STRATEGIES = {"PF": "publication-flooding", "SF": "subscription-flooding"}
START_S = 60.0
PLAIN = Workload("ildm", "load of the paper", Idle(0, 0), figure="cpu_us_per_message")


SINGLES: Mapping[str, BrokerKind] = {"sterna": STERNA, "mosquitto": MOSQUITTO}
KINDS: Mapping[str, BrokerKind] = {**SINGLES, **{name: kind for name, (kind, _) in FOREIGN.items()}}


@dataclass(frozen=True, slots=True)
class BrokerHost:
    name: str
    role: Role
    pid: int


@dataclass(slots=True)
class RunningSystem:
    ports: tuple[int, ...]
    """Where clients connect, node by node."""
    hosts: list[BrokerHost]
    stop_and_count: Callable[[], int | None] = field(default=lambda: None)
    """End the nodes; transfers between them, if they count them."""


@dataclass(frozen=True, slots=True)
class CooperatingSystem:
    name: str
    about: str
    patterns: tuple[str, ...]
    start: Callable[[ExitStack, Scenario, Algorithm], RunningSystem]
    hears_all_with_pf: bool = False
    """The broker passes everything on to its node, though there may be no other node to send it to."""


@contextmanager
def single(kind: BrokerKind) -> Iterator[RunningSystem]:
    with started(kind, PLAIN, None) as broker:
        yield RunningSystem((broker.port,), [BrokerHost(kind.name, "broker", broker.pid)])


@contextmanager
def cooperating(system: CooperatingSystem, scenario: Scenario, algorithm: Algorithm) -> Iterator[RunningSystem]:
    with ExitStack() as stack:
        yield system.start(stack, scenario, algorithm)


def missing_kinds(kinds: Iterable[str]) -> list[str]:
    """Those that are not installed here, or known."""
    return [name for name in dict.fromkeys(kinds) if name not in SINGLES and name not in installed()]


def _start_sterna(stack: ExitStack, scenario: Scenario, algorithm: Algorithm) -> RunningSystem:
    if scenario.brokers:
        raise MeasurementError("Sterna's nodes have no brokers behind them: leave `brokers` out of the scenario")
    nodes = scenario.nodes
    admins = free_ports(nodes)
    strategy = {"network": {"strategy": STRATEGIES[algorithm]}} if nodes > 1 else {}

    def tables(number: int) -> Tables:
        return {**strategy, "admin": {"bind": f"127.0.0.1:{admins[number - 1]}"}}

    row = stack.enter_context(started_row(row_of_sterna(tables), nodes, PLAIN, None))
    hosts = [BrokerHost(f"node{number}", "broker", pid) for number, pid in enumerate(row.pids, 1)]
    return RunningSystem(row.ports, hosts, lambda: _forwarded(admins) if nodes > 1 else None)


def _start_reference(stack: ExitStack, scenario: Scenario, algorithm: Algorithm) -> RunningSystem:
    directory, brokers = _start_brokers(stack, scenario)
    processes: list[Process] = []
    ports: list[int] = []
    for number, broker in enumerate(brokers, 1):
        port = free_port()
        settings = server.Settings(
            name=f"I{number}",
            algorithm=algorithm,
            port=port,
            broker=broker.port,
            neighbours=tuple(ports[-1:]),
        )
        processes.append(_reference_process(stack, settings, directory))
        ports.append(port)
    return _paired("reference", ports, brokers, processes, lambda: _count_transfers(processes))


def _start_proxy(stack: ExitStack, scenario: Scenario, algorithm: Algorithm) -> RunningSystem:
    directory, brokers = _start_brokers(stack, scenario)
    nodes = scenario.nodes
    admins, links, ports = free_ports(nodes), free_ports(nodes), free_ports(nodes)
    processes: list[Process] = []
    for place, broker in enumerate(brokers):
        name = f"proxy{place + 1}"
        tables: dict[str, Any] = {
            "node": {"name": name, "data": f"{directory}/data{place + 1}"},
            "listener": [{"bind": f"127.0.0.1:{ports[place]}"}],
            "admin": {"bind": f"127.0.0.1:{admins[place]}"},
            "limits": {"connections_per_address": 20_000},
            "interworking": {"broker": f"127.0.0.1:{broker.port}", "mode": "proxy"},
        }
        if algorithm == "SF":
            crossing = {"from_broker": _leaving(scenario, place + 1), "only_wanted": True}
            tables["interworking"].update(crossing)
        if nodes > 1:
            before = [f"127.0.0.1:{links[place - 1]}"] if place else []
            network = node_tables.network("bench", f"127.0.0.1:{links[place]}", before, overlay="static")
            tables["network"] = {**network, "strategy": STRATEGIES[algorithm]}
        processes.append(_proxy_process(stack, name, tables, directory))
    return _paired("proxy", ports, brokers, processes, lambda: _forwarded(admins) if nodes > 1 else None)


def _leaving(scenario: Scenario, node: int) -> list[str]:
    """Topics that leave the broker at this node, as its operator would write them; what goes there the node learns from
    the broker's clients."""
    wanted = {(place.node, place.topic) for place in scenario.places if place.subscribers}
    wanted |= {(at, scenario.latency.topic) for at in scenario.latency.subscribers}
    offered = {(place.node, place.topic) for place in scenario.places if place.publishers}
    offered.add((scenario.latency.publisher, scenario.latency.topic))
    elsewhere = {topic for at, topic in wanted if at != node}
    return sorted({topic for at, topic in offered if at == node and topic in elsewhere} | {JOINING})


@dataclass(frozen=True, slots=True)
class _Behind:
    """A broker behind a node."""

    name: str
    port: int
    pid: int


def _start_brokers(stack: ExitStack, scenario: Scenario) -> tuple[Path, list[_Behind]]:
    kinds = scenario.brokers
    directory = Path(stack.enter_context(TemporaryDirectory(prefix="sterna-ildm-")))
    if missing := missing_kinds(kinds):
        raise MeasurementError(f"{', '.join(missing)}: not installed")
    found = []
    for number in range(1, scenario.nodes + 1):
        kind = KINDS[kinds[number - 1]] if kinds else MOSQUITTO
        one = stack.enter_context(started(kind, PLAIN, None))
        found.append(_Behind(f"{kind.name}{number}" if kinds else f"broker{number}", one.port, one.pid))
    return directory, found


def _paired(
    name: str,
    ports: Sequence[int],
    brokers: Sequence[_Behind],
    processes: Sequence[Process],
    count: Callable[[], int | None],
) -> RunningSystem:
    """Brokers with a node in front of each, that pass messages on."""
    for speaks in ports[:-1]:
        wait_until_joined(name, ports[-1], [speaks])
    hosts = [BrokerHost(one.name, "broker", one.pid) for one in brokers]
    hosts += [BrokerHost(f"node{number}", "node", one.pid) for number, one in enumerate(processes, 1)]
    return RunningSystem(tuple(ports), hosts, count)


def _proxy_process(stack: ExitStack, name: str, tables: Tables, directory: Path) -> Process:
    file = directory / f"{name}.toml"
    file.write_text(node_tables.toml(tables))
    process = Process(name, sterna_command("interwork", "--config", str(file)), directory)
    process.start()
    stack.callback(process.stop)
    wait_until(lambda: "attached" in process.log.read_text() or not process.is_running, f"{name} is attached", START_S)
    process.check()
    return process


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


def _forwarded(admins: Sequence[int]) -> int:
    """Messages that nodes of Sterna sent on to their neighbours."""
    total = 0
    for port in admins:
        told = admin.page("127.0.0.1", port, "/metrics") or ""
        said = [line.split()[1] for line in told.splitlines() if line.startswith(FORWARDED)]
        if not said:
            raise MeasurementError(f"the node with the admin port {port} did not say how much it transferred")
        total += int(float(said[0]))
    return total


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
    "proxy": CooperatingSystem(
        "proxy", "Sterna's nodes in front of brokers", PATTERNS, _start_proxy, hears_all_with_pf=True
    ),
    "reference": CooperatingSystem(
        "reference", "the paper's PF and SF in front of brokers", PATTERNS, _start_reference
    ),
}
