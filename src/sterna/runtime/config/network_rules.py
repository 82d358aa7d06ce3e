"""Checks of the `[network]` table.  Nodes on different machines never believe each other without a key."""

from __future__ import annotations

import ipaddress
import re
from functools import partial

from sterna.overlay.kinds import OVERLAYS, DatagramUse
from sterna.overlay.neighbours import checked_address
from sterna.routing.carried import NONE
from sterna.routing.mobile import MobileRouting
from sterna.runtime.config.files import attempt, check_authority, check_pair, contents
from sterna.runtime.config.problems import ProblemReport
from sterna.runtime.config.schema import Bind, Unusable
from sterna.runtime.config.secrets import NETWORK_KEY
from sterna.runtime.config.settings import Configuration, NetworkTable, NetworkTls

FRAME_OVERHEAD_BYTES = 16 * 1024
"""Bytes that a link may add to a message: where it came from and how far it got."""


def check_network(configuration: Configuration, report: ProblemReport) -> None:
    network = configuration.network
    if network is None:
        return
    if not re.fullmatch(r"[\w.-]{1,64}", network.name, re.ASCII):
        report.add(("network", "name"), f'"{network.name}" is no name', "use up to 64 letters, digits, . _ -")
    _check_addresses(network, report)
    _check_key(network, report)
    _check_sizes(network, configuration.limits.packet_bytes, report)
    if network.tls is not None:
        _check_tls(network.tls, report)


def _check_addresses(network: NetworkTable, report: ProblemReport) -> None:
    if network.bind is not None and network.bind.path:
        report.add(("network", "bind"), "nodes do not link over Unix sockets", 'write "127.0.0.1:7883"')
    for address in network.neighbours:
        attempt(partial(checked_address, address), ("network", "neighbours"), report)
    if network.advertise is not None:
        attempt(partial(checked_address, network.advertise), ("network", "advertise"), report)
    if network.clients is not None:
        attempt(partial(checked_address, network.clients), ("network", "clients"), report)
    kind = OVERLAYS[network.overlay]
    why_bind = kind.why_bind
    if why_bind and network.bind is None:
        report.add(("network", "bind"), f"is missing, and {why_bind}", "add bind = ...")
    if kind.datagrams is DatagramUse.HELLOS:
        _check_hellos(network, report)
    if network.routing.carry != NONE and network.strategy != MobileRouting.name:
        text = f'carries nothing with strategy = "{network.strategy}"'
        report.add(("network", "routing", "carry"), text, 'set strategy = "mobile" in [network], or leave it out')


def _check_hellos(network: NetworkTable, report: ProblemReport) -> None:
    """Hellos, and the links they lead to, are of one family of addresses."""
    bind = network.bind
    if bind is None:
        return
    group = network.overlay_table.group(bind)
    place = ("network", OVERLAYS[network.overlay].table, "multicast")
    try:
        is_group = ipaddress.ip_address(group.host).is_multicast
    except ValueError:
        is_group = False
    if not is_group:
        report.add(place, f"{group} is no multicast group", 'write "[ff02::5354]:7886" or "239.255.83.85:7886"')
    elif (":" in group.host) != (":" in bind.host):
        text = f"{group} and bind {bind} are of different families"
        report.add(place, text, 'use bind = "[::]:7883", or multicast = "239.255.83.85:7886"')
    if network.neighbours:
        report.add(
            ("network", "neighbours"),
            f"a {network.overlay} overlay finds those within reach by itself",
            "leave it out",
        )


def _check_key(network: NetworkTable, report: ProblemReport) -> None:
    if NETWORK_KEY.check(network, report):
        return
    fix = "set key_file (head -c 32 /dev/urandom | base64 > secret, the same file on every node)"
    if network.bind is not None and not network.bind.is_local:
        text = f"{network.bind} can be reached from other machines and nothing checks which nodes connect"
        report.add(("network", "bind"), text, fix)
    for address in network.neighbours:
        if not _is_local(address):
            report.add(("network", "neighbours"), f"nothing checks who answers at {address}", fix)


def _is_local(address: str) -> bool:
    try:
        return Bind.parse(address).is_local
    except Unusable:
        return True  # reported as no address


def _check_sizes(network: NetworkTable, packet_bytes: int, report: ProblemReport) -> None:
    if network.dead_after_s < 2 * network.keep_alive_s:
        place = ("network", "dead_after_s")
        report.add(
            place, "one keep-alive that is late would drop the link", f"use {2 * network.keep_alive_s:g} or more"
        )
    if network.frame_bytes < packet_bytes + FRAME_OVERHEAD_BYTES:
        text = f"a message of {packet_bytes} bytes, which [limits] packet_bytes allows, would not fit"
        report.add(("network", "frame_bytes"), text, f"use {packet_bytes + FRAME_OVERHEAD_BYTES} or more")
    if network.resend_bytes < 2 * network.frame_bytes:
        text = "two frames of frame_bytes would not fit"
        report.add(("network", "resend_bytes"), text, f"use {4 * network.frame_bytes} or more")
    if network.dial_max_s < network.dial_s:
        report.add(("network", "dial_max_s"), "is below dial_s", f"use {network.dial_s:g} or more")


def _check_tls(tls: NetworkTls, report: ProblemReport) -> None:
    place = ("network", "tls")
    named = {"certificate": tls.certificate, "key": tls.key, "ca": tls.ca}
    readable = {key for key, file in named.items() if contents(file, (*place, key), report) is not None}
    if {"certificate", "key"} <= readable:
        check_pair(tls.certificate, tls.key, place, report)
    if "ca" in readable:
        check_authority(tls.ca, (*place, "ca"), report)
