"""Everything an operator can set about a gateway, and the checks of it.

The file has the form of a node's and is read by the same reader; `[[listener]]`, `[admin]` and `[log]` are the same.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from msgspec import field
from msgspec.structs import replace

from sterna.adaptation.measuring import MeasuringTuning
from sterna.gateway.servers import checked_pattern
from sterna.gateway.settings import GatewayLimits, Patience
from sterna.overlay.neighbours import checked_address
from sterna.runtime.adaptation.tables import AdaptationTable, check_adaptation
from sterna.runtime.adaptation.worker_settings import Coordinates
from sterna.runtime.config.files import attempt, check_authority, check_pair, contents
from sterna.runtime.config.networks import networks
from sterna.runtime.config.problems import ProblemReport
from sterna.runtime.config.process_rules import check_admin, check_origins, check_ranges, check_tls
from sterna.runtime.config.process_tables import Admin, ListenerTable, Log
from sterna.runtime.config.reader import load_as
from sterna.runtime.config.schema import Bind, Table
from sterna.runtime.config.toml_source import Place
from sterna.vocabulary.settings import ShownDefault


class Name(Table, frozen=True):
    name: Annotated[str, ShownDefault("host name")] = field(default_factory=socket.gethostname)
    """Name of this gateway, which nodes are told."""


class UpstreamTable(Table, frozen=True):
    """The nodes behind the gateway."""

    nodes: tuple[str, ...] = ("127.0.0.1:1883",)
    """Addresses (host:port) where nodes take clients, in the order they are tried."""
    references: tuple[str, ...] = ()
    """Hosts besides those of `nodes` that nodes may send clients to, with their passwords: `"node.example.org"`,
    `"*.example.org"`, `"*"`. Passwords go nowhere else."""
    ca: Path | None = None
    """Authorities (PEM) whose certificates are believed.  With it nodes are spoken to by TLS."""
    certificate: Path | None = None
    """This gateway's certificate chain (PEM), for nodes that ask for one."""
    key: Path | None = None
    """Private key of the certificate (PEM, not encrypted)."""
    check_names: bool = True
    """A node's certificate must name the host that was dialled."""
    control: bool = True
    """Tell nodes that this is a gateway, so that they can move clients without their noticing."""


class GatewayAdaptation(AdaptationTable, frozen=True):
    """The control line of a gateway that [measures](adaptation.md).  Without `network` there is none.  Nodes know the
    gateway by its name, which must be its user name there unless they let it in among `users`."""

    nodes: Annotated[tuple[str, ...], ShownDefault("`nodes` of `[upstream]`")] = ()
    """Addresses (host:port) of nodes that take clients, in the order they are tried."""
    remember: Path | None = None
    """A file for its coordinate, so that it need not begin anew."""


class GatewayListener(ListenerTable, frozen=True):
    bind: Bind = Bind("127.0.0.1", 1884)


class GatewayAdmin(Admin, frozen=True):
    bind: Bind | None = Bind("127.0.0.1", 9884)


class GatewayConfiguration(Table, frozen=True):
    """The whole file, every default filled in and every path absolute."""

    gateway: Name = field(default_factory=Name)
    upstream: UpstreamTable = field(default_factory=UpstreamTable)
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    patience: Patience = field(default_factory=Patience)
    listeners: tuple[GatewayListener, ...] = field(default=(GatewayListener(),), name="listener")
    adaptation: GatewayAdaptation = field(default_factory=GatewayAdaptation)
    measuring: MeasuringTuning = field(default_factory=MeasuringTuning)
    coordinates: Coordinates = field(default_factory=Coordinates)
    admin: GatewayAdmin = field(default_factory=GatewayAdmin)
    log: Log = field(default_factory=Log)


def load_gateway(path: Path | None, environ: Mapping[str, str]) -> GatewayConfiguration:
    """Read, check and complete the configuration; raise InvalidConfiguration with everything that is wrong."""
    return load_as(GatewayConfiguration, _apply_rules, path, environ)


def outward_context(upstream: UpstreamTable) -> ssl.SSLContext | None:
    """How nodes are spoken to; None: without TLS."""
    if upstream.ca is None:
        return None
    context = ssl.create_default_context(cafile=str(upstream.ca))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = upstream.check_names
    if upstream.certificate is not None:
        context.load_cert_chain(upstream.certificate, upstream.key)
    return context


def _apply_rules(
    configuration: GatewayConfiguration, tree: dict[str, Any], report: ProblemReport
) -> GatewayConfiguration:
    completed = _completed(configuration, tree)
    check_ranges(completed, (), report)
    if not re.fullmatch(r"[\w.-]{1,64}", completed.gateway.name, re.ASCII):
        report.add(("gateway", "name"), f'"{completed.gateway.name}" is no name', "use up to 64 letters, digits, . _ -")
    _check_upstream(completed.upstream, report)
    _check_listeners(completed, report)
    check_admin(completed.admin, report)
    if completed.adaptation.network:
        check_adaptation(completed.adaptation, report)
    patience = completed.patience
    if patience.dead_after_s < 2 * patience.ping_s:
        text = "one ping that is late would drop a node"
        report.add(("patience", "dead_after_s"), text, f"use {2 * patience.ping_s:g} or more")
    return completed


def _completed(configuration: GatewayConfiguration, tree: dict[str, Any]) -> GatewayConfiguration:
    said = tree.get("listener")
    words = said if isinstance(said, list) else [{}]
    listeners = tuple(
        one if isinstance(word, dict) and "anonymous" in word else replace(one, anonymous=one.bind.is_local)
        for one, word in zip(configuration.listeners, words, strict=False)
    )
    admin, admin_words = configuration.admin, tree.get("admin")
    if admin.bind and not (isinstance(admin_words, dict) and "anonymous" in admin_words):
        admin = replace(admin, anonymous=admin.bind.is_local)
    adaptation = configuration.adaptation
    if not adaptation.nodes:
        adaptation = replace(adaptation, nodes=configuration.upstream.nodes)
    return replace(configuration, listeners=listeners, admin=admin, adaptation=adaptation)


def _check_upstream(upstream: UpstreamTable, report: ProblemReport) -> None:
    if not upstream.nodes:
        report.add(("upstream", "nodes"), "there are none", 'write nodes = ["127.0.0.1:1883"]')
    for address in upstream.nodes:
        attempt(partial(checked_address, address), ("upstream", "nodes"), report)
    for pattern in upstream.references:
        attempt(partial(checked_pattern, pattern), ("upstream", "references"), report)
    named = {key: file for key in ("ca", "certificate", "key") if (file := getattr(upstream, key))}
    readable = {key for key, file in named.items() if contents(file, ("upstream", key), report) is not None}
    if upstream.ca is not None and "ca" in readable:
        check_authority(upstream.ca, ("upstream", "ca"), report)
    if (upstream.certificate is None) != (upstream.key is None):
        report.add(("upstream", "certificate"), "a certificate and its key go together", "name both")
    elif upstream.certificate and upstream.key and {"certificate", "key"} <= readable:
        check_pair(upstream.certificate, upstream.key, ("upstream",), report)
    if upstream.certificate is not None and upstream.ca is None:
        report.add(("upstream", "ca"), "is missing, and certificates need TLS", "name the authority of the nodes")


def _check_listeners(configuration: GatewayConfiguration, report: ProblemReport) -> None:
    if not configuration.listeners:
        report.add(("listener",), "there is none, so no client could connect", "add a [[listener]] table")
    for index, listener in enumerate(configuration.listeners):
        place: Place = ("listener", index)
        check_tls(listener, place, report)
        check_origins(listener, (*place, "allowed_origins"), report)
        attempt(partial(networks, listener.proxies), (*place, "proxies"), report)
        guarded = listener.anonymous or (listener.require_certificate and listener.client_ca)
        if not guarded:
            text = f"{listener.bind} lets other machines reach the nodes as if they were this one"
            fix = "set require_certificate and client_ca, or say anonymous = true if the nodes ask for passwords"
            report.add((*place, "bind"), text, fix)
