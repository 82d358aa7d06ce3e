"""Checks of the `[feed]` table, and the addresses that other nodes and readers are told.

Nothing is served beyond this machine without a token.
"""

from __future__ import annotations

import re
from functools import partial

from sterna.mqtt.topics import is_control, is_topic_filter
from sterna.overlay.neighbours import checked_address
from sterna.runtime import without_pandas
from sterna.runtime.config.files import attempt, check_pair, contents
from sterna.runtime.config.problems import ProblemReport
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.secrets import FEED_TOKEN
from sterna.runtime.config.settings import Configuration, FeedTable, NetworkTable
from sterna.runtime.config.toml_source import Place
from sterna.vocabulary.errors import ConfigurationError
from sterna.vocabulary.extras import how_to_add

_EXTRA = how_to_add("feed")
EVERY_ADDRESS = ("0.0.0.0", "::")


def feed_peers(settings: FeedTable) -> dict[str, str]:
    """Node -> address of its feed.  May raise ConfigurationError."""
    found = {}
    for entry in settings.peers:
        name, _, address = entry.partition("=")
        if not re.fullmatch(r"[\w.-]{1,64}", name, re.ASCII):
            raise ConfigurationError(f'"{entry}" names no node and its feed; write "plant-2=10.0.0.2:7885"')
        found[name] = checked_address(address)
    return found


def feed_address(configuration: Configuration, bind: Bind | None) -> str:
    """Where readers elsewhere find the feed that listens there; empty if nobody can say."""
    feed, network = configuration.feed, configuration.network
    if feed is None or bind is None:
        return ""
    if feed.advertise or bind.host not in EVERY_ADDRESS:
        return feed.advertise or str(bind)
    return _at_our_host(network, bind.port)


def _at_our_host(network: NetworkTable | None, port: int) -> str:
    known = network.advertise or str(network.bind or "") if network is not None else ""
    host = known.rpartition(":")[0]
    return f"{host}:{port}" if host.strip("[]") not in (*EVERY_ADDRESS, "") else ""


def clients_address(configuration: Configuration) -> str:
    """Where clients are sent to reach this node; empty if nobody can say."""
    network = configuration.network
    if network is not None and network.clients:
        return network.clients
    for listener in configuration.listeners:
        bind = listener.bind
        if listener.transport == "tcp" and bind.port and listener.serves == "node":
            return str(bind) if bind.host not in EVERY_ADDRESS else _at_our_host(network, bind.port)
    return ""


def check_filter(topic_filter: str, place: Place, report: ProblemReport) -> None:
    if not is_topic_filter(topic_filter.encode(), 512, 65535) or topic_filter.startswith("$share/"):
        report.add(place, f'"{topic_filter}" is no topic filter', 'write filters such as "plant/#"')


def check_feed(configuration: Configuration, report: ProblemReport) -> None:
    for topic_filter in configuration.journal.keep:
        check_filter(topic_filter, ("journal", "keep"), report)
        if is_control(topic_filter.encode()):
            report.add(
                ("journal", "keep"), f'"{topic_filter}" is about control topics, which no journal keeps', "remove it"
            )
    if configuration.journal.deliveries and configuration.journal.durability == "memory":
        text = "a journal in memory keeps no records of deliveries"
        report.add(("journal", "deliveries"), text, 'set [journal] durability to "os" or "fsync"')
    if configuration.journal.deliveries and not without_pandas.is_installed():
        report.add(("journal", "deliveries"), "records of deliveries are Arrow tables, and pyarrow is missing", _EXTRA)
    feed = configuration.feed
    if feed is not None and not without_pandas.is_installed():
        report.add(("feed",), "a feed serves Arrow tables, and pyarrow is missing", _EXTRA)
    if feed is None:
        if configuration.operators.has_spark:
            text = "Spark reads the feeds of nodes, and this one has none"
            key = "engine" if configuration.operators.engine != "node" else "engines"
            report.add(("operators", key), text, 'add a table [feed], or set engine to "node"')
        return
    if feed.bind.path:
        report.add(("feed", "bind"), "readers do not come over Unix sockets", 'write "127.0.0.1:7885"')
    attempt(partial(feed_peers, feed), ("feed", "peers"), report)
    if feed.advertise:
        attempt(partial(checked_address, feed.advertise), ("feed", "advertise"), report)
    _check_token(feed, report)
    _check_tls(feed, report)
    if feed.parquet is not None and configuration.journal.durability == "memory":
        text = "a journal in memory begins empty with every start, and its files would contradict each other"
        report.add(("feed", "parquet"), text, 'set [journal] durability to "os" or "fsync"')


def _check_token(feed: FeedTable, report: ProblemReport) -> None:
    if not FEED_TOKEN.check(feed, report) and not feed.bind.is_local and not feed.bind.path:
        text = f"{feed.bind} shows every message to everybody who can reach it"
        report.add(("feed", "bind"), text, "use 127.0.0.1, or set token_file in [feed]")


def _check_tls(feed: FeedTable, report: ProblemReport) -> None:
    if bool(feed.certificate) != bool(feed.key):
        missing = "key" if feed.certificate else "certificate"
        report.add(("feed", missing), "is missing: TLS needs a certificate and its key", f"add {missing}")
    named = {key: file for key in ("certificate", "key") if (file := getattr(feed, key))}
    readable = {key for key, file in named.items() if contents(file, ("feed", key), report) is not None}
    if feed.certificate and feed.key and {"certificate", "key"} <= readable:
        check_pair(feed.certificate, feed.key, ("feed",), report)
