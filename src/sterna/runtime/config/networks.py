"""Addresses and networks as the configuration names them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from sterna.vocabulary.errors import ConfigurationError

Networks = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]


def networks(texts: Iterable[str]) -> Networks:
    try:
        return tuple(ipaddress.ip_network(text) for text in texts)
    except ValueError as error:
        raise ConfigurationError(f'{error}; write addresses such as "192.0.2.7", or networks "192.0.2.0/24"') from None


def is_among(allowed: Networks, host: str) -> bool:
    """Is this host, an address without a port, in one of the networks?"""
    found = ipaddress.ip_address(host.partition("%")[0])
    return any(found in network for network in allowed)
