"""Checks of the `[interworking]` table."""

from __future__ import annotations

from functools import partial

from sterna.interworking.filters import checked_filters, disjoint_filters
from sterna.overlay.neighbours import checked_address
from sterna.runtime.config.files import attempt, check_authority, check_pair, contents
from sterna.runtime.config.problems import ProblemReport
from sterna.runtime.config.schema import Bind, Unusable
from sterna.runtime.config.settings import Configuration, InterworkingTable

TABLE = "interworking"


def check_interworking(configuration: Configuration, report: ProblemReport) -> None:
    table = configuration.interworking
    if table is None:
        return
    attempt(partial(checked_address, table.broker), (TABLE, "broker"), report)
    _check_that_it_is_another(configuration, table, report)
    attempt(partial(disjoint_filters, table.from_broker), (TABLE, "from_broker"), report)
    attempt(partial(checked_filters, table.to_broker), (TABLE, "to_broker"), report)
    if not table.from_broker and not table.to_broker:
        report.add((TABLE, "from_broker"), "nothing crosses in either direction", 'write ["#"] for all topics')
    if table.password_file is not None:
        contents(table.password_file, (TABLE, "password_file"), report)
        if table.user is None:
            report.add((TABLE, "password_file"), "a password without a user name", "add user")
    if table.pause_max_s < table.pause_s:
        report.add((TABLE, "pause_max_s"), "is below pause_s", f"use {table.pause_s:g} or more")
    if table.mode == "proxy":
        _check_proxy(configuration, report)
    elif table.only_wanted:
        fix = 'use mode = "proxy", or name topics in to_broker'
        report.add((TABLE, "only_wanted"), "in attach mode nobody tells the node what the broker's clients want", fix)
    _check_tls(table, report)


def _check_proxy(configuration: Configuration, report: ProblemReport) -> None:
    if not any(listener.serves == "broker" for listener in configuration.listeners):
        fix = 'leave `serves` out of a [[listener]], or use mode = "attach"'
        report.add((TABLE, "mode"), "no listener relays clients to the broker", fix)
    if configuration.node.processes > 1:
        fix = "set processes = 1 in [node]"
        report.add((TABLE, "mode"), "all relayed clients go through one process", fix)


def _check_that_it_is_another(configuration: Configuration, table: InterworkingTable, report: ProblemReport) -> None:
    try:
        broker = Bind.parse(table.broker)
    except Unusable:
        return  # reported as no address
    for listener in configuration.listeners:
        own = listener.bind
        is_here = own.host == broker.host or (own.is_local and broker.is_local) or own.host in ("0.0.0.0", "::")
        if not own.path and own.port == broker.port and own.port and is_here and (broker.is_local or own == broker):
            text = f"{table.broker} is this node itself, which listens on {own}"
            report.add((TABLE, "broker"), text, "name the other broker, or give one of the two another port")


def _check_tls(table: InterworkingTable, report: ProblemReport) -> None:
    named = {key: file for key in ("ca", "certificate", "key") if (file := getattr(table, key))}
    if named and not table.tls:
        report.add((TABLE, "tls"), f"is false, and {', '.join(named)} would not be used", "set tls = true")
    readable = {key for key, file in named.items() if contents(file, (TABLE, key), report) is not None}
    if table.ca is not None and "ca" in readable:
        check_authority(table.ca, (TABLE, "ca"), report)
    if (table.certificate is None) != (table.key is None):
        report.add((TABLE, "certificate"), "a certificate and its key go together", "name both")
    elif table.certificate and table.key and {"certificate", "key"} <= readable:
        check_pair(table.certificate, table.key, (TABLE,), report)
