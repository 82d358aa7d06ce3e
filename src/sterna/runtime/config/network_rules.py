"""What must hold in the `[network]` table.  Nodes on different machines never believe each other without a key."""

from __future__ import annotations

import re
from functools import partial

from sterna.overlay.bundle import COUNT_MAX
from sterna.overlay.link_settings import GATHER_BYTES_MAX
from sterna.overlay.neighbours import checked_address
from sterna.runtime.config.files import attempt, check_authority, check_pair, contents
from sterna.runtime.config.network_settings import network_key
from sterna.runtime.config.problems import Report
from sterna.runtime.config.settings import Bind, Configuration, Network, NetworkTls, Unusable

NETWORK_RANGES: dict[str, tuple[float, float]] = {
    "dial_s": (0.01, 3600),
    "dial_max_s": (0.01, 3600),
    "keep_alive_s": (0.05, 3600),
    "dead_after_s": (0.1, 86400),
    "resume_s": (0, 86400),
    "handshake_s": (0.1, 3600),
    "resend_bytes": (64 * 1024, 2**40),
    "batch_bytes": (1024, GATHER_BYTES_MAX),
    "ack_bytes": (1024, 2**30),
    "frame_bytes": (512 * 1024, 2**29),
    "pending_handshakes": (1, 65535),
    "connections": (1, COUNT_MAX),
}

ROUTING_RANGES: dict[str, tuple[float, float]] = {
    "filters_per_link": (1000, 2**40),
    "filter_bytes_per_link": (1024 * 1024, 2**40),
}

MIGRATION_RANGES: dict[str, tuple[float, float]] = {
    "owner_absent_s": (0, 86400 * 365),
    "drain_s": (0, 10),
    "retry_s": (0.02, 60),
    "patience_s": (0.1, 3600),
    "at_once": (1, 10_000),
    "rate": (0.01, 100_000),
}

FRAME_OVERHEAD_BYTES = 16 * 1024
"""What a link may add to a message: where it came from and how far it got."""


def check_network(configuration: Configuration, report: Report) -> None:
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


def _check_addresses(network: Network, report: Report) -> None:
    if network.bind is not None and network.bind.path:
        report.add(("network", "bind"), "nodes do not link over Unix sockets", 'write "127.0.0.1:7883"')
    for address in network.neighbours:
        attempt(partial(checked_address, address), ("network", "neighbours"), report)
    if network.advertise is not None:
        attempt(partial(checked_address, network.advertise), ("network", "advertise"), report)
    if network.clients is not None:
        attempt(partial(checked_address, network.clients), ("network", "clients"), report)
    if network.overlay == "spanning-tree" and network.bind is None:
        report.add(("network", "bind"), "is missing, and in a tree every node may become a parent", "add bind = ...")


def _check_key(network: Network, report: Report) -> None:
    if network.key is not None and network.key_file is not None:
        report.add(("network", "key"), "there is a key and a key_file", "keep one of them")
    place = ("network", "key_file" if network.key_file else "key")
    if network.key is not None or network.key_file is not None:
        attempt(partial(network_key, network), place, report)
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


def _check_sizes(network: Network, packet_bytes: int, report: Report) -> None:
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


def _check_tls(tls: NetworkTls, report: Report) -> None:
    place = ("network", "tls")
    named = {"certificate": tls.certificate, "key": tls.key, "ca": tls.ca}
    readable = {key for key, file in named.items() if contents(file, (*place, key), report) is not None}
    if {"certificate", "key"} <= readable:
        check_pair(tls.certificate, tls.key, place, report)
    if "ca" in readable:
        check_authority(tls.ca, (*place, "ca"), report)
