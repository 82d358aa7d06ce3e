"""Everything an operator can set about a worker, and the checks of it."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from sterna.adaptation.draining import DrainingTuning
from sterna.adaptation.measuring import MeasuringTuning
from sterna.overlay.vivaldi_settings import ADJUSTMENT_WINDOW, PRESETS, VivaldiSettings
from sterna.runtime.adaptation.node_hosts import HOSTS
from sterna.runtime.adaptation.tables import SealedAdaptationTable, check_adaptation, check_key, check_name
from sterna.runtime.config.feed_rules import clients_address
from sterna.runtime.config.loading import load
from sterna.runtime.config.problems import InvalidConfiguration, ProblemReport
from sterna.runtime.config.process_rules import check_admin, check_ranges
from sterna.runtime.config.process_tables import Admin, Log
from sterna.runtime.config.reader import load_as
from sterna.runtime.config.schema import Bind, Table
from sterna.vocabulary.settings import Allowed, Choice, ShownDefault


class WorkerTable(Table, frozen=True):
    """A host, and the node that it can run."""

    name: Annotated[str, ShownDefault("host name")] = msgspec.field(default_factory=socket.gethostname)
    """Name of this worker, and of its node each time that runs."""
    site: str = ""
    """Where it is; floors and ceilings of a coordinator are per site."""
    fixed: bool = False
    """Its node always runs: the worker starts it, and no order stops it.  A region needs one."""
    price: Annotated[float, Allowed(0.000001, 1e9)] = 1.0
    """Of an hour of its node, in any money, the same for all workers."""
    data: Path = Path("sterna-worker")
    """Directory in which the worker remembers its node, its coordinate and the highest term; made when missing."""
    echo: Bind = Bind("127.0.0.1", 7886)
    """Where it answers to echoes, UDP and TCP."""
    advertise: Annotated[str, ShownDefault("`echo`")] = ""
    """Address (host:port) by which others reach the echo port."""
    host: Annotated[str, Choice(HOSTS)] = "process"
    """How the node is run: as a `process` of this machine, or by a `command` of the operator's."""
    node_file: Path | None = None
    """Configuration of the node.  Its name is replaced by the worker's, and unless `fixed` its weights in a spanning
    tree by 0: such a node never becomes the root."""
    leave_node: bool = True
    """A worker that is stopped leaves its node running; the next worker adopts it."""
    start: tuple[str, ...] = ()
    """With `host = "command"`: starts the node and ends, such as `["systemctl", "start", "sterna-node@{name}"]`."""
    stop: tuple[str, ...] = ()
    """With `host = "command"`: asks the node to end as SIGTERM does, and ends itself."""
    status: tuple[str, ...] = ()
    """With `host = "command"`: ends with 0 while the node runs."""
    command_s: Annotated[float, Allowed(0.1, 600)] = 30.0
    """A command that takes longer has failed."""
    admin: Annotated[str, ShownDefault("that of `node_file`")] = ""
    """Admin port of the node, host:port or unix:PATH.  Nobody else needs to reach it."""
    admin_token_file: Path | None = None
    """A file with its token, if it asks for one."""
    clients: Annotated[str, ShownDefault("that of `node_file`")] = ""
    """Address (host:port) where the node takes clients: gateways are told it, by the coordinator and by nodes."""
    report_s: Annotated[float, Allowed(0.1, 600)] = 2.0
    """How often it reports."""
    look_s: Annotated[float, Allowed(0.05, 60)] = 0.5
    """How often it looks at its node."""
    evacuation_rate: Annotated[float, Allowed(0.1, 100_000)] = 50.0
    """Clients a second that are moved from a node that stops, if no gateway holds them."""
    wait_for_absent: bool = False
    """A node that is away holds up the stop of this one.  Else this one is started again when it is back, closed to
    clients, until that node has what it is owed."""


class Coordinates(Table, frozen=True):
    """How coordinates are learned; the same for all of a network."""

    preset: Annotated[str, Choice(PRESETS)] = "default"
    """`seed`: the constants of the paper's experiments, with 8 dimensions and nothing of the following but heights."""
    heights: bool = True
    """A coordinate has a height, the access link of its host."""
    median: bool = True
    """A sample counts as the median of the last three to the same peer."""
    replays: bool = True
    """With each sample, some earlier ones to other peers are learned again."""
    gravity: bool = True
    """All are pulled to the origin a little, so that the crowd does not drift away."""
    remembered: bool = True
    """A participant begins where it last was."""
    adjustment: bool = False
    """Half the mean of the last 20 remaining errors is added.  Hosts that are near each other then seem far apart."""

    def settings(self) -> VivaldiSettings:
        """The preset, without what is switched off and with what is switched on."""
        off: dict[str, Any] = {
            name: nothing
            for on, name, nothing in (
                (self.heights, "heights", False),
                (self.median, "median_of", 1),
                (self.replays, "replays", 0),
                (self.gravity, "gravity_s", 0.0),
                (self.remembered, "remembered_error", 0.0),
            )
            if not on
        }
        found = dataclasses.replace(PRESETS[self.preset], **off)
        return dataclasses.replace(found, adjustment_window=ADJUSTMENT_WINDOW) if self.adjustment else found


class WorkerAdmin(Admin, frozen=True):
    bind: Bind | None = Bind("127.0.0.1", 9886)


class WorkerConfiguration(Table, frozen=True):
    """The whole file, every default filled in and every path absolute."""

    worker: WorkerTable = msgspec.field(default_factory=WorkerTable)
    adaptation: SealedAdaptationTable = msgspec.field(default_factory=SealedAdaptationTable)
    draining: DrainingTuning = msgspec.field(default_factory=DrainingTuning)
    measuring: MeasuringTuning = msgspec.field(default_factory=MeasuringTuning)
    coordinates: Coordinates = msgspec.field(default_factory=Coordinates)
    admin: WorkerAdmin = msgspec.field(default_factory=WorkerAdmin)
    log: Log = msgspec.field(default_factory=Log)


def load_worker(path: Path | None, environ: Mapping[str, str]) -> WorkerConfiguration:
    """Read, check and complete the configuration; raise InvalidConfiguration with everything that is wrong."""
    return load_as(WorkerConfiguration, _apply_rules, path, environ)


def _apply_rules(
    configuration: WorkerConfiguration, tree: dict[str, Any], report: ProblemReport
) -> WorkerConfiguration:
    worker = replace(configuration.worker, data=configuration.worker.data.absolute())
    words = tree.get("admin")
    admin = configuration.admin
    if admin.bind and not (isinstance(words, dict) and "anonymous" in words):
        admin = replace(admin, anonymous=admin.bind.is_local)
    completed = replace(configuration, worker=_with_node(worker, report), admin=admin)
    check_ranges(completed, (), report)
    check_name(worker.name, ("worker", "name"), report)
    check_adaptation(completed.adaptation, report)
    check_key(completed.adaptation, report)
    check_admin(completed.admin, report)
    _check_worker(completed.worker, report)
    return completed


def _with_node(worker: WorkerTable, report: ProblemReport) -> WorkerTable:
    """Addresses that the node's own file says."""
    if worker.node_file is None:
        return worker
    try:
        node = load(worker.node_file, {})
    except InvalidConfiguration as error:
        report.add(("worker", "node_file"), f"{worker.node_file} cannot be used: {error.problems[0]}", "correct it")
        return worker
    if node.network is None:
        text = f"{worker.node_file} has no table [network]: its clients could go nowhere"
        report.add(("worker", "node_file"), text, "add [network]")
    bind = node.admin.bind
    if not worker.admin and bind is not None and (bind.port or bind.path):
        worker = replace(worker, admin=str(bind))
    return worker if worker.clients else replace(worker, clients=clients_address(node))


def _check_worker(worker: WorkerTable, report: ProblemReport) -> None:
    for key, text in (("admin", "where the node's admin port is"), ("clients", "where the node takes clients")):
        if not getattr(worker, key) and report.is_sound("worker"):
            fix = f"give it a fixed port in node_file, or set {key}"
            report.add(("worker", key), f"nothing says {text}", fix)
    if worker.host == "process" and worker.node_file is None:
        report.add(("worker", "node_file"), "is missing, and a process needs it", "name the node's configuration")
    for key in ("start", "stop", "status"):
        if worker.host == "command" and not getattr(worker, key):
            report.add(("worker", key), 'is missing, and host = "command" needs it', f'write {key} = ["program", ...]')
    if worker.echo.path:
        report.add(("worker", "echo"), "echoes do not come over Unix sockets", 'write "127.0.0.1:7886"')
    if worker.echo.host in ("0.0.0.0", "::") and not worker.advertise:
        report.add(("worker", "advertise"), "is missing, and nobody can reach every address", "add advertise")
