"""The protocols that run on the radio, by name.  A new one is a module and a row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol, runtime_checkable

from sterna.simulation.papers.first_approach import FirstApproach
from sterna.simulation.papers.ledger import EventLedger
from sterna.simulation.papers.messages import Name, PaperEvent
from sterna.simulation.papers.mft import EXPLAINED, PRINTED, MftBroker, MftReading
from sterna.simulation.papers.mobile_broker import Routed
from sterna.simulation.papers.radio_nodes import (
    LEADER,
    STEADY,
    AodvStation,
    BrokerStation,
    PublisherStation,
    RadioBroker,
    SubscriberStation,
    TreeKind,
)
from sterna.simulation.papers.simple_routing import Send
from sterna.simulation.papers.sterna_node import SternaNode
from sterna.simulation.radio.port import RadioPort, RadioProtocol

Role = Literal["broker", "subscriber", "publisher"]
StationFactory = Callable[[RadioPort, Role, list[str], EventLedger], RadioProtocol]
"""Given its port, its role, the filters of a subscriber, and the ledger."""


@runtime_checkable
class RadioPublisher(Protocol):
    """A station that can be made to publish."""

    def publish(self, event: PaperEvent) -> object: ...


@runtime_checkable
class InTree(Protocol):
    """A broker that has a place in a tree."""

    @property
    def changes(self) -> int:
        """How often it has got another parent."""

    @property
    def depth(self) -> int:
        """Hops to its leader."""


@dataclass(frozen=True, slots=True)
class RadioProtocolEntry:
    summary: str
    station: StationFactory


def publish_subscribe(
    kind: TreeKind, broker: RadioBroker, port: RadioPort, role: Role, filters: list[str], ledger: EventLedger
) -> RadioProtocol:
    match role:
        case "broker":
            return BrokerStation(port, kind, broker, ledger)
        case "subscriber":
            return SubscriberStation(port, kind, filters, ledger)
        case "publisher":
            return PublisherStation(port, kind)


def mft(reading: MftReading, name: Name, send: Send, routed: Routed) -> MftBroker:
    return MftBroker(name, send, reading, routed)


def aodv(port: RadioPort, role: Role, filters: list[str], ledger: EventLedger) -> RadioProtocol:
    return AodvStation(port, ledger)


def sterna(port: RadioPort, role: Role, filters: list[str], ledger: EventLedger) -> RadioProtocol:
    return SternaNode(port, filters, ledger)


PROTOCOLS: Mapping[str, RadioProtocolEntry] = {
    "mft": RadioProtocolEntry(
        "MFT-PubSub as its text explains it", partial(publish_subscribe, LEADER, partial(mft, EXPLAINED))
    ),
    "mft-printed": RadioProtocolEntry(
        "MFT-PubSub as its algorithms are printed", partial(publish_subscribe, LEADER, partial(mft, PRINTED))
    ),
    "first": RadioProtocolEntry("the thesis' first approach", partial(publish_subscribe, LEADER, FirstApproach)),
    "mft-steady": RadioProtocolEntry(
        "MFT-PubSub as explained, on the tree of the overlay `mobile`, and never claiming through a dead link",
        partial(publish_subscribe, STEADY, partial(mft, replace(EXPLAINED, dead_links_claimed=False))),
    ),
    "sterna": RadioProtocolEntry("the product's overlay and strategy `mobile`, every station a node", sterna),
    "aodv": RadioProtocolEntry("AODV, a unicast per subscriber", aodv),
}
