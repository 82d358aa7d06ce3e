"""The protocols that run on the radio, by name.  A new one is a module and a row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, runtime_checkable

from sterna.simulation.papers.first_approach import FirstApproach
from sterna.simulation.papers.ledger import EventLedger
from sterna.simulation.papers.messages import Event, Name
from sterna.simulation.papers.mft import EXPLAINED, PRINTED, MftBroker, Reading
from sterna.simulation.papers.mobile_broker import Routed
from sterna.simulation.papers.radio_nodes import (
    AodvStation,
    BrokerStation,
    PublisherStation,
    RadioBroker,
    SubscriberStation,
)
from sterna.simulation.papers.simple_routing import Send
from sterna.simulation.radio.port import RadioPort, RadioProtocol

Role = Literal["broker", "subscriber", "publisher"]
StationFactory = Callable[[RadioPort, Role, list[str], EventLedger], RadioProtocol]
"""Given its port, its role, the filters of a subscriber, and the ledger."""


@runtime_checkable
class RadioPublisher(Protocol):
    """A station that can be made to publish."""

    def publish(self, event: Event) -> object: ...


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
    broker: RadioBroker, port: RadioPort, role: Role, filters: list[str], ledger: EventLedger
) -> RadioProtocol:
    match role:
        case "broker":
            return BrokerStation(port, broker, ledger)
        case "subscriber":
            return SubscriberStation(port, filters, ledger)
        case "publisher":
            return PublisherStation(port)


def mft(reading: Reading, name: Name, send: Send, routed: Routed) -> MftBroker:
    return MftBroker(name, send, reading, routed)


def aodv(port: RadioPort, role: Role, filters: list[str], ledger: EventLedger) -> RadioProtocol:
    return AodvStation(port, ledger)


PROTOCOLS: Mapping[str, RadioProtocolEntry] = {
    "mft": RadioProtocolEntry(
        "MFT-PubSub as its text explains it", partial(publish_subscribe, partial(mft, EXPLAINED))
    ),
    "mft-printed": RadioProtocolEntry(
        "MFT-PubSub as its algorithms are printed", partial(publish_subscribe, partial(mft, PRINTED))
    ),
    "first": RadioProtocolEntry("the thesis' first approach", partial(publish_subscribe, FirstApproach)),
    "aodv": RadioProtocolEntry("AODV, a unicast per subscriber", aodv),
}
