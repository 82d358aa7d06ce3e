"""The promises of every overlay: it says which addresses the node keeps dialled, and whose link may stand.

An overlay never opens a connection itself.  It tells the world what it wants, and the world tells it what happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from sterna.vocabulary.errors import ConfigurationError

ADDRESS_BYTES_MAX = 255
"""A host name has at most 253 characters; a port at most five digits.  Together they must fit one length byte."""

Now = Callable[[], float]
Schedule = Callable[[float, Callable[[], None]], None]


class OverlayWorld(Protocol):
    """The services of the world that an overlay uses."""

    def send_datagram(self, address: str, data: bytes) -> None:
        """Send one datagram to `address` ("host:port"); it may be lost."""

    def send_discovery(self, data: bytes) -> None:
        """Send one datagram to the multicast group and to every configured seed address."""

    def hold_links(self, dial: dict[str, str]) -> None:
        """Keep exactly these dialled from now on: peer name -> address.  A static neighbour's name is not known before
        it answers, so it stands under its address.  Links held before that are not in `dial` are closed first, then
        new ones are dialled; those in both stay as they are.  Links that others dialled are not meant."""

    def drop_link(self, peer: str, reason: str) -> None:
        """End the link with this peer, whoever dialled: it is of no use any more."""

    def silent_s(self, peer: str) -> float:
        """For how long nothing has come over the link with this peer; for ever if there is none."""

    def report(self, event: str, **fields: object) -> None:
        """Tell people."""


class Overlay(Protocol):
    """The services of an overlay for the node."""

    @property
    def name(self) -> str:
        """The overlay's name in the configuration."""

    @property
    def may_form_rings(self) -> bool:
        """Whether the links it asks for may form rings, so that one of them has to stand by."""

    @property
    def upward(self) -> tuple[str, ...] | None:
        """Neighbours towards the root of its tree, the one to keep first; None: it builds no tree."""

    @property
    def addresses(self) -> list[str]:
        """Those given by people, at start or later."""

    def start(self) -> None:
        """Begin to look for neighbours."""

    def stop(self) -> None:
        """Say goodbye where that helps, and ask for nothing more."""

    def datagram(self, sender: str, data: bytes) -> None:
        """A datagram came in from `sender`; whatever it holds, nothing is raised."""

    def accepts(self, peer: str) -> str | None:
        """May the link of this authenticated peer stand?  None: yes; otherwise the reason why not."""

    def link_started(self, peer: str) -> None:
        """A link session with this peer began, whoever dialled."""

    def link_interrupted(self, peer: str) -> None:
        """The connection with this peer was lost; the link session waits for another."""

    def link_ended(self, peer: str) -> None:
        """The link session with this peer ended."""

    def add(self, *addresses: str) -> None:
        """Know these addresses too.  All or, with a ConfigurationError, none."""

    def remove(self, *addresses: str) -> None:
        """Forget these addresses.  All or, with a ConfigurationError, none."""

    def view(self) -> dict[str, object]:
        """The state, for people."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node as its configuration and its machine describe it to an overlay."""

    network: str
    node: str
    key: bytes = field(repr=False)
    address: str = ""
    """Where others reach this node ("host:port"); empty: nowhere, or where its datagrams come from."""
    neighbours: tuple[str, ...] = ()
    """Addresses given by people."""
    cpu: float = 0.0
    """The processors of the machine, in MHz."""
    memory: float = 0.0
    """Its memory, in MiB."""


class OverlayMaker(Protocol):
    """Makes the overlay of a node that has all else."""

    def __call__(self, world: OverlayWorld, *, now: Now, schedule: Schedule, rng: Random) -> Overlay: ...


def checked_address(address: str) -> str:
    """`address` if it is "host:port" (IPv6 hosts in brackets); else a ConfigurationError that says what to change."""
    host, colon, port = address.rpartition(":")
    well_formed = colon and host and not any(character.isspace() for character in address)
    bracketed = host.startswith("[") and host.endswith("]")
    if not well_formed or (":" in host and not bracketed):
        raise ConfigurationError(f"{address!r} is not an address: write host:port, an IPv6 host in brackets")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise ConfigurationError(f"{address!r} has no usable port: write a number from 1 to 65535 after the last colon")
    if len(address.encode()) > ADDRESS_BYTES_MAX:
        raise ConfigurationError(f"the address {address[:40]!r}... is longer than {ADDRESS_BYTES_MAX} bytes")
    return address


class AddressBook:
    """Addresses given by people, in the order given; changed several at once, wholly or not at all."""

    def __init__(self, addresses: tuple[str, ...], addresses_max: int) -> None:
        self._max = addresses_max
        self.addresses: dict[str, None] = {}
        self.add(addresses)

    def add(self, addresses: tuple[str, ...]) -> bool:
        """Take these too; True if any of them is new."""
        merged = self.addresses | dict.fromkeys(checked_address(address) for address in addresses)
        if len(merged) > self._max:
            raise ConfigurationError(f"{len(merged)} addresses; at most {self._max} are kept")
        changed = len(merged) > len(self.addresses)
        self.addresses = merged
        return changed

    def remove(self, addresses: tuple[str, ...]) -> None:
        """Let these go."""
        unknown = [address for address in addresses if address not in self.addresses]
        if unknown:
            known = ", ".join(self.addresses) or "none"
            raise ConfigurationError(f"not known here: {', '.join(unknown)}; known: {known}")
        gone = dict.fromkeys(addresses)
        self.addresses = {address: None for address in self.addresses if address not in gone}
