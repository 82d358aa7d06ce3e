"""A node on this machine: event loop, listeners, clocks, and the order of start and stop.

`Driver` has the order of a turn, `Committing` says when the journal is written, `Housekeeping` what is done once a
second.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import platform
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from sterna import __version__
from sterna.broker import administration
from sterna.broker.access.access_register import EntryKind
from sterna.broker.access.identity import Accepted, Credentials, Refused
from sterna.broker.expressions.function_calls import Done
from sterna.broker.limits import LIMITS_TOLD, Limits
from sterna.broker.session.connection import Connection, ConnectionState
from sterna.broker.statistics import SessionView, Statistics
from sterna.journal.memory_store import MemoryStore
from sterna.node.committing import Committing
from sterna.node.driver import Driver
from sterna.node.housekeeping import ROUND_S, Housekeeping
from sterna.node.management import Gathered, Management, NoOtherNodes
from sterna.node.message_tracing import MessageTracing
from sterna.node.network_settings import for_strategy
from sterna.node.node import Changes, Node, Saved, epoch_before
from sterna.operators.functions import Functions
from sterna.runtime.admin.access_api import change_access
from sterna.runtime.admin.backup_api import Backups, PartOfBackup
from sterna.runtime.admin.move_api import ALONE, LoneMoveApi, MoveApi
from sterna.runtime.admin.port import CONNECTIONS_MAX, AdminPort
from sterna.runtime.admin.publish_api import PublishOrder, publish
from sterna.runtime.admin.reloading import AdminAndLog
from sterna.runtime.admin.site import Guard, Request, guard
from sterna.runtime.clocks import both_clocks
from sterna.runtime.committer import Committer
from sterna.runtime.config import access
from sterna.runtime.config.feed_rules import clients_address, feed_address
from sterna.runtime.config.networks import networks
from sterna.runtime.config.schema import keys_of
from sterna.runtime.config.settings import Configuration, NodeListener
from sterna.runtime.config.toml_source import Place
from sterna.runtime.dashboard.dashboard import Dashboard
from sterna.runtime.disk.backups import Backup, DataCopy, back_up
from sterna.runtime.disk.segment_files import FileStore
from sterna.runtime.disk.session_store import SessionStore
from sterna.runtime.feed.view import FeedView
from sterna.runtime.functions.pool import FunctionPool, functions_of
from sterna.runtime.hangups import hold_back_hangups
from sterna.runtime.interworking import Interworking
from sterna.runtime.links.network_sockets import Networking
from sterna.runtime.links.network_view import NetworkView, lone_view
from sterna.runtime.listeners.listeners import Listeners
from sterna.runtime.listeners.socket_quota import Descriptors, SocketQuota, divided
from sterna.runtime.listeners.verifiers import Verifiers
from sterna.runtime.logs import configure
from sterna.runtime.process_setup import allow_many_sockets, is_compiled, outdated_modules
from sterna.runtime.process_view import LoopLag, ProcessView, Timings
from sterna.runtime.reloading import (
    ADMIN_AND_LOG,
    PreparedLimits,
    PreparedListeners,
    ReloadedPart,
    Reloader,
    ReloadOutcome,
    Swap,
    limits_reloaded,
    needing_restart,
)
from sterna.runtime.reports import Reports
from sterna.runtime.service_manager import ServiceManager
from sterna.runtime.timers import LoopTimers
from sterna.runtime.without_pandas import do_without_pandas
from sterna.vocabulary.errors import ConfigurationError, JournalError, SternaError

if TYPE_CHECKING:
    from sterna.runtime.feed.feed import Feed
    from sterna.runtime.hooks.access_hook import AccessHook, HookVerdict
    from sterna.runtime.telemetry.span_exporter import SpanExporter

log = logging.getLogger("sterna.node")

FAREWELL_S = 1.0
"""How long stopping waits for clients to go."""

FILES = 64
"""Descriptors for the journal, the sessions, listening sockets and function workers."""
LINKS = 64
"""Descriptors for links to other nodes."""


#: The settings that a reload puts in place.  The rest of the configuration waits for a restart.
RELOADED: tuple[Place, ...] = (
    ("authentication",),
    ("authorization",),
    ("adaptation",),
    *ADMIN_AND_LOG,
    ("feed", "certificate"),
    ("feed", "key"),
    ("network", "tls", "certificate"),
    ("network", "tls", "key"),
    ("network", "tls", "ca"),
    ("network", "tls", "check_names"),
)


def run_node(
    configuration: Configuration, reread: Callable[[], Configuration] | None = None, *, shared_ports: bool = False
) -> int:
    """Run until SIGTERM or SIGINT; the process's exit status.  `reread` reads the configuration again.  With
    `shared_ports` other processes listen on the same ports."""
    hold_back_hangups()
    configure(configuration.log.level, configuration.log.format)
    if configuration.feed is not None or configuration.journal.deliveries:
        do_without_pandas()
    descriptors = divided(allow_many_sockets(), _other_descriptors(configuration))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            server = NodeServer(
                configuration, descriptors, reread or (lambda: configuration), shared_ports=shared_ports
            )
            return runner.run(server.run())
    except SternaError as error:
        log.error("cannot run", extra={"reason": str(error)})
        return 1


def _other_descriptors(configuration: Configuration) -> int:
    """How many descriptors a node may need besides its clients'."""
    feed = configuration.feed.connections if configuration.feed is not None else 0
    return FILES + CONNECTIONS_MAX + feed + (LINKS if configuration.network is not None else 0)


class NodeServer:
    """The world of one node."""

    def __init__(
        self,
        configuration: Configuration,
        descriptors: Descriptors,
        reread: Callable[[], Configuration],
        *,
        shared_ports: bool,
    ) -> None:
        self._configuration = configuration
        self._descriptors = descriptors
        self._reports = Reports(log)
        self._durable = configuration.journal.durability != "memory"
        self._store, self._sessions = self._open_stores()
        self.feed = self._new_feed()
        self._authenticator = access.authenticator(configuration.authentication)
        self._hook = access.access_hook(configuration.authentication, configuration.node.name)
        functions = functions_of(configuration.functions)
        self._functions = FunctionPool(configuration.functions, functions, self.work)
        self._node = self._new_node(functions)
        self.broker = self._node.broker
        self.broker.packets.may_be_gateway = partial(access.may_be_gateway, networks(configuration.mqtt.gateways))
        self._alone = Management(configuration.node.name, self.broker, NoOtherNodes())
        network = configuration.network
        self.networking: Networking | None = None
        if network is not None:
            self.networking = Networking(network, configuration.node.name, self._node, self, random.SystemRandom())
        committing = Committing(self._node, configuration.journal)
        self._timings = Timings(delivery=self.broker.counters.delivery_took, move=self.broker.counters.moves_took)
        self._loop_lag = LoopLag(self._timings.loop_lag)
        self._committer = Committer(committing, self.broker, self._store, self._save, self._turn, self._timings)
        self._driver = Driver(self._node, committing, self._committer.perform, networked=network is not None)
        #: Something was done for somebody: see that what came of it goes out.
        self.after_work = self._driver.after_work
        if self.feed is not None:
            self._attach_feed(self.feed)
        self.interworking = self._attached()
        self._service_manager = ServiceManager()
        self._reloader = Reloader(reread, self._prepare, self._service_manager)
        self._deserted = asyncio.Event()
        #: Client sockets that are open, those included that were told goodbye.
        self.sockets = SocketQuota(
            descriptors.sockets, self.broker.limits, self.broker.counters.refused, self._deserted.set
        )
        self._listeners = Listeners(self, descriptors.backlog, shared=shared_ports)
        self._relaying = self._new_relaying()
        self._admin = AdminPort(self, guard(configuration.admin))
        self._admin_and_log = AdminAndLog(configuration, self._admin)
        self.dashboard = Dashboard(self, self._alone)
        self.backups = Backups(self._back_up if self._durable else None)
        self.part_of_backup = PartOfBackup(
            configuration.node.backups_directory,
            self._copy_to if self._durable else None,
            lambda: self.broker.log.came_or_went,
        )
        self._verifiers = Verifiers(self._verified)
        self._stopping = asyncio.Event()
        self._serving = False

    def _new_node(self, functions: Functions) -> Node:
        """As the last checkpoint and the journal have it."""
        configuration = self._configuration
        saved = Saved()
        if self._sessions is not None:
            found = self._sessions.load()
            saved = Saved(found.position, found.sessions, found.retained, found.epoch)
        network = configuration.network
        now, wall = both_clocks()
        return Node(
            limits=replace(configuration.limits),
            settings=configuration.journal,
            store=self._store,
            saved=saved,
            next_epoch=self._next_epoch,
            authenticator=self._authenticator,
            access=access.access_list(configuration.authorization, configuration.adaptation),
            world=self,
            rng=random.SystemRandom(),
            now=now,
            wall=wall,
            name=configuration.node.name,
            held=self.feed.held if self.feed is not None else lambda: None,
            alone=network is None,
            operators=for_strategy(configuration.operators, network.strategy if network is not None else ""),
            functions=functions,
        )

    def _new_feed(self) -> Feed | None:
        settings, node = self._configuration.feed, self._configuration.node
        if settings is None:
            return None
        from sterna.runtime.feed.feed import Feed  # brings much with it that a node without a feed does not need

        identity = self._store.identity if isinstance(self._store, FileStore) else ""
        return Feed(settings, node.name, node.data, durable=self._durable, identity=identity)

    def _attach_feed(self, feed: Feed) -> None:
        feed.attach(self._node.journal, self._store)
        self._committer.told = feed.committed
        feed.serve_spark(self.broker, self._configuration.operators, self.after_work)
        if self.networking is not None:
            feed.found = self.networking.feeds

    def _attached(self) -> Interworking | None:
        configuration = self._configuration
        table, network = configuration.interworking, configuration.network
        if table is None:
            return None
        network_name = network.name if network is not None else ""
        # A relayed client takes two descriptors: its own connection, and the one to the foreign broker.
        sockets = max(1, self._descriptors.sockets // 2)
        name = configuration.node.name
        return Interworking(table, network_name, name, self._node, self.report, self.after_work, sockets)

    def _new_relaying(self) -> Listeners | None:
        """For clients of a foreign broker, in proxy mode."""
        relay = self.interworking.relay if self.interworking is not None else None
        return Listeners(relay, self._descriptors.backlog) if relay is not None else None

    def _next_epoch(self, last: int) -> int:
        before = epoch_before(last, time.time())
        return self._sessions.next_epoch(before) if self._sessions else before + 1

    def _open_stores(self) -> tuple[FileStore | MemoryStore, SessionStore | None]:
        node, journal = self._configuration.node, self._configuration.journal
        if not self._durable:
            return MemoryStore(journal, node.name), None
        store = FileStore(node.data / "journal", journal, node.name)
        return store, SessionStore(node.data / "sessions.sqlite")

    # -- start and stop --

    async def run(self) -> int:
        self._loop = asyncio.get_running_loop()
        #: Referred to here, or the loop might lose them.
        self._background: set[asyncio.Task[None]] = set()
        self._driver.begin(LoopTimers(self._loop))
        configuration = self._configuration
        self._spans = self._new_exporter()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopping.set)
        self._report_start()
        self.after_work()
        await self._functions.start()
        if self._hook is not None:
            await self._hook.start()
        feed = await self.feed.start() if self.feed is not None else None
        if feed is not None:
            log.info("feed", extra={"address": str(feed)})
        if self.networking is not None:
            door = await self.networking.start(
                feed_address(self._configuration, feed), clients_address(self._configuration), configuration.migration
            )
            log.info("open to other nodes", extra={"address": str(door) if door else None})
            self.dashboard.answer_for(self.management())
        if self._spans is not None:
            self._trace_messages(self._spans)
        if self.interworking is not None:
            self.interworking.prepare()
        for listener in self._configuration.listeners:
            await self._listen(listener)
        if self._configuration.admin.bind is not None:
            address = await self._admin.start(self._configuration.admin.bind)
            log.info("admin port", extra={"address": f"http://{address}"})
        self._serving = True
        if self.interworking is not None:
            self.interworking.start()
        # Objects that live now live for long: keep the collector from looking at them again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        self._loop_lag.start()
        self._service_manager.ready()
        housekeeping = self._loop.create_task(self._keep_house())
        hangups = self._loop.create_task(self._reloader.heed_hangups())
        await self._stopping.wait()
        self._loop_lag.stop()
        hangups.cancel()
        await housekeeping  # it may be in the middle of a checkpoint
        await self._stop()
        return 0

    def _new_exporter(self) -> SpanExporter | None:
        endpoint, name = self._configuration.telemetry.endpoint, self._configuration.node.name
        if endpoint is None:
            return None
        from sterna.runtime.telemetry.span_exporter import SpanExporter

        log.info("messages are traced", extra={"endpoint": endpoint})
        return SpanExporter(endpoint, name)

    def _trace_messages(self, spans: SpanExporter) -> None:
        name, share = self._configuration.node.name, self._configuration.telemetry.share
        tracing = MessageTracing(name, self.broker.clock, share, spans.export)
        self.broker.ingress.watcher = tracing
        network = self.networking.network if self.networking is not None else None
        if network is not None:
            network.router.watcher = tracing
            tracing.link_to = network.router.paths.link_to

    async def _listen(self, listener: NodeListener) -> None:
        fields: dict[str, Any] = {"transport": listener.transport}
        if listener.serves == "broker" and self._relaying is not None:
            address = await self._relaying.open(listener)
            fields["serves"] = listener.serves
        else:
            address = await self._listeners.open(listener)
            if self.networking is not None:
                self.networking.listens(listener, address)
        log.info("listening", extra={"address": str(address), **fields})

    def _report_start(self) -> None:
        started = self._node.started
        log.info(
            "node starting",
            extra={
                "version": __version__,
                "compiled": is_compiled(),
                "node": self._configuration.node.name,
                "durability": self._configuration.journal.durability,
                "sessions": started.sessions,
                "retained": started.retained,
                "next_offset": started.next_offset,
                "away_s": round(started.away_s),
            },
        )
        for cut in started.cuts:
            log.warning("cut a torn tail off the journal", extra=cut._asdict())
        for damage in started.damage:
            log.error("the journal is damaged", extra=damage._asdict())
        for what in started.impossible:
            log.error("an entry in the data directory cannot be, and was passed over", extra={"entry": what})
        if started.impossible_count > len(started.impossible):
            log.error("more such entries were passed over", extra={"entries": started.impossible_count})
        if started.behind_checkpoint:
            log.error("the journal ends before the last checkpoint: its tail was never synced, or was removed")
        if outdated := outdated_modules():
            log.warning(
                "compiled modules are older than their sources; run: make compiled", extra={"modules": outdated}
            )
        self._report_descriptors()

    def _report_descriptors(self) -> None:
        wanted, possible = self._configuration.limits.connections, self._descriptors.sockets
        if wanted > possible:
            # A limit that nobody chose is no reason for a warning.
            level = logging.INFO if wanted == Limits().connections else logging.WARNING
            remedy = "raise `ulimit -n` (LimitNOFILE= of a systemd unit)"
            fields = {"possible": possible, "limits.connections": wanted, "remedy": remedy}
            log.log(level, "open files bound the number of clients", extra=fields)

    async def _stop(self) -> None:
        """Every promise kept: clients told, the journal written, the sessions saved."""
        log.info("node stopping")
        self._service_manager.stopping()
        self._serving = False
        await self._listeners.close()
        if self._relaying is not None:
            await self._relaying.close()
        if self.interworking is not None:
            self.interworking.stop()
        self.broker.at(time.monotonic())
        await self._committer.settle()
        self._node.send_clients_away()
        await self._committer.settle()
        if self.networking is not None:
            await self.networking.stop()
        if self.feed is not None:
            await self.feed.stop()
        await self._functions.stop()
        if self._hook is not None:
            await self._hook.stop()
        if self._spans is not None:
            await self._spans.close(FAREWELL_S)
        await self._let_go()
        if self._sessions is not None:
            await self._committer.checkpoint()
            self._sessions.close()
        await self._admin.stop()
        self._committer.close()
        self._verifiers.close()
        if isinstance(self._store, FileStore):
            self._store.close()
        self._service_manager.close()
        log.info("node stopped", extra={"next_offset": self._node.journal.next_offset})

    async def _let_go(self) -> None:
        """A moment for clients to read why they are sent away: what is still open when the process ends is reset."""
        if self.sockets.open:
            self._deserted.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._deserted.wait(), FAREWELL_S)

    def _turn(self) -> None:
        self._driver.after_work()

    # -- the configuration read again --

    async def reload(self) -> ReloadOutcome:
        return await self._reloader.reload()

    def _prepare(self, new: Configuration) -> Swap:
        """Build what the new configuration asks for; what comes back puts it in place, in one turn."""
        old = self._configuration
        authenticator = access.authenticator(new.authentication)
        if authenticator.is_like(self._authenticator):
            authenticator = self._authenticator  # it remembers who has just shown a right password
        rules = access.access_list(new.authorization, new.adaptation)
        hook = self._hook
        if new.authentication.hook != (hook.table if hook is not None else None):
            hook = access.access_hook(new.authentication, self._configuration.node.name)
        listeners = PreparedListeners(self._listeners, [one for one in new.listeners if one.serves == "node"])
        relayed = [one for one in new.listeners if one.serves == "broker"]
        relaying = PreparedListeners(self._relaying, relayed) if self._relaying is not None else None
        admin_and_log = self._admin_and_log.prepare(new)
        links = feed = None
        if self.networking is not None and new.network is not None:
            links = self.networking.prepare_tls(new.network.tls)
        if self.feed is not None and self.feed.tls is not None and new.feed is not None and new.feed.certificate:
            from sterna.runtime.feed.feed import feed_context

            feed = feed_context(new.feed)
        fixed = LIMITS_TOLD if self.interworking is None else set(keys_of(Limits))
        limits = PreparedLimits(self.broker.limits, new.limits, fixed)
        reloaded = (*RELOADED, *limits_reloaded(Limits, fixed))
        needs_restart = [*listeners.needs_restart, *needing_restart(old, new, reloaded)]
        if relaying is not None:
            needs_restart += relaying.needs_restart

        def swap() -> ReloadOutcome:
            users = "none" if authenticator.users is None else f"{authenticator.users} users"
            parts = [
                ReloadedPart("passwords and tokens", authenticator is not self._authenticator, users),
                ReloadedPart(
                    "access rules", not rules.is_like(self.broker.access.configured[1]), f"{len(rules)} rules"
                ),
                limits.apply(),
                *listeners.apply(),
                *(relaying.apply() if relaying is not None else ()),
            ]
            self._authenticator = authenticator
            self._renew_hook(hook)
            if links is not None:
                parts.append(ReloadedPart("certificates of links", links()))
            if feed is not None and self.feed is not None and self.feed.tls is not None:
                parts.append(ReloadedPart("certificate of the feed", self.feed.tls.renew(*feed)))
            parts += admin_and_log()
            self.broker.at(time.monotonic())
            self.broker.limits_changed()
            disconnected = self.broker.renewal.apply(authenticator, rules)
            self.after_work()
            return ReloadOutcome(parts, disconnected, needs_restart)

        return swap

    def _renew_hook(self, hook: AccessHook | None) -> None:
        before, self._hook = self._hook, hook
        if hook is before:
            return
        for begun in (before.stop() if before is not None else None, hook.start() if hook is not None else None):
            if begun is not None:
                task = self._loop.create_task(begun)
                self._background.add(task)
                task.add_done_callback(self._background.discard)

    # -- housekeeping --

    async def _keep_house(self) -> None:
        housekeeping = Housekeeping(self._node, self._configuration.mqtt.sys_interval_s, time.monotonic())
        while not self._stopping.is_set():
            now, wall = both_clocks()
            self._reports.turn_over(now)
            if housekeeping.round(now, wall):
                self._driver.send()
            if self._node.checkpoint_due():
                await self._committer.checkpoint()
            if housekeeping.is_tidying_due:
                await self._tidy()
            if self.feed is not None:
                self.feed.tidy()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), ROUND_S)

    async def _tidy(self) -> None:
        """Retention, in steps: however much has to go, clients are served between two of them."""
        try:
            more = True
            while more and not self._stopping.is_set():
                more = self._node.tidy()
                await asyncio.sleep(0)
        except JournalError as error:
            log.error("the journal cannot be trimmed", extra={"reason": str(error)})

    async def _back_up(self, name: str, _asked: Request) -> Backup:
        directory = self._configuration.node.backups_directory
        return await self._loop.run_in_executor(None, back_up, *self._stores(), directory, name)

    def _copy_to(self, target: Path) -> DataCopy:
        return DataCopy(*self._stores(), target)

    def _stores(self) -> tuple[SessionStore, FileStore]:
        assert self._sessions is not None
        assert isinstance(self._store, FileStore)
        return self._sessions, self._store

    def _save(self, changes: Changes) -> None:
        assert self._sessions is not None
        self._sessions.checkpoint(
            changes.position, changes.sessions, changes.sessions_gone, changes.retained, changes.retained_gone
        )

    # -- what the broker asks of its world --

    def report(self, event: str, fields: dict[str, Any]) -> None:
        self._reports.report(event, fields)

    def verify_elsewhere(self, connection: Connection, credentials: Credentials) -> None:
        hook = self._hook
        if hook is None or not self.broker.access.authenticator.is_for_hook(credentials):
            self._verify(connection, credentials)
            return

        def answered(answer: HookVerdict) -> None:
            if connection.state == ConnectionState.CLOSED:
                return
            connection.granted = answer.granted
            if answer.verdict is None:
                self._verify(connection, credentials)
            else:
                self._verified(connection, answer.verdict)

        hook.submit(credentials, connection.peer.address, answered)

    def _verify(self, connection: Connection, credentials: Credentials) -> None:
        wall = self.broker.wall
        authenticator = self.broker.access.authenticator
        self._verifiers.submit(connection, lambda: authenticator.verify(credentials, now=wall))

    def compute_elsewhere(self, function: str, payload: bytes, done: Done) -> bool:
        return self._functions.submit(function, payload, done)

    def work(self, piece: Callable[[], None]) -> None:
        self.broker.at(time.monotonic())
        piece()
        self.after_work()

    def _verified(self, connection: Connection, verdict: Accepted | Refused) -> None:
        self.broker.at(time.monotonic())
        connection.proceed_with(verdict)
        self.after_work()

    # -- what the admin port asks --

    @property
    def configuration(self) -> Configuration:
        return self._configuration

    @property
    def admin_guard(self) -> Guard:
        return self._admin.guard

    def statistics(self) -> Statistics:
        self.broker.at(time.monotonic())
        return self.broker.statistics()

    def process_view(self) -> ProcessView:
        listeners = self._listeners.counters()
        if self._relaying is not None:
            listeners |= self._relaying.counters()
        python = platform.python_version()
        return ProcessView(__version__, python, is_compiled(), self._timings, self._certificates(), listeners)

    def _certificates(self) -> dict[str, float]:
        """Address of a listener, or the other purpose -> second of the wall clock at which it expires."""
        found = self._listeners.certificates()
        if self._relaying is not None:
            found |= self._relaying.certificates()
        if self.networking is not None and self.networking.certificate_expires_at is not None:
            found["links"] = self.networking.certificate_expires_at
        if self.feed is not None and self.feed.tls is not None:
            found["feed"] = self.feed.tls.expires_at
        if self.interworking is not None and self.interworking.certificate_expires_at is not None:
            found["interworking"] = self.interworking.certificate_expires_at
        return found

    def sessions(self, most: int) -> list[SessionView]:
        return self.broker.views(most)

    def why_not_ready(self) -> str | None:
        if not self._serving:
            return "starting or stopping"
        return self._committer.trouble

    def network_view(self, *, tables: bool = False) -> NetworkView:
        self.broker.at(time.monotonic())
        view = self.networking.view(tables=tables) if self.networking is not None else None
        view = view or lone_view(self._configuration.node.name, self._node.journal.epoch)
        found = self.interworking_view()
        if found is None:
            return view
        return replace(view, foreign={key: found[key] for key in ("broker", "state", "trouble", "abilities")})

    def moves(self) -> MoveApi:
        moves = self.networking.moves if self.networking is not None else None
        return moves or LoneMoveApi(self.broker, self._configuration.node.name)

    async def ask(self, kind: str, argument: str, most: int) -> Gathered:
        answer: asyncio.Future[Gathered] = self._loop.create_future()
        self.broker.at(time.monotonic())
        self.management().ask(kind, argument, most, answer.set_result)
        self.after_work()
        return await answer

    async def change_access(self, kind: EntryKind, name: str, value: dict[str, Any] | None) -> Gathered:
        self.broker.at(time.monotonic())
        argument = administration.order(self.broker, self._configuration.node.name, kind, name, value)
        return await change_access(self.broker, self.management(), argument, self.after_work)

    async def publish(self, order: PublishOrder) -> dict[str, Any]:
        return await publish(self.broker, order, self.after_work)

    def management(self) -> Management:
        network = self.networking.network if self.networking is not None else None
        return network.management if network is not None else self._alone

    def feed_view(self) -> FeedView | None:
        return self.feed.view() if self.feed is not None else None

    def interworking_view(self) -> dict[str, Any] | None:
        self.broker.at(time.monotonic())
        return self.interworking.attachment.view() if self.interworking is not None else None

    def neighbours(self) -> list[str]:
        return self.networking.neighbours() if self.networking is not None else []

    def change_neighbours(self, add: list[str], remove: list[str]) -> None:
        if self.networking is None:
            raise ConfigurationError(f"{ALONE}; add one and start it again")
        self.broker.at(time.monotonic())
        self.networking.change_neighbours(add, remove)
        self.after_work()
