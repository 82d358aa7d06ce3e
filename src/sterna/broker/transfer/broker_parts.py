"""The parts of a broker that a session's move touches; `Broker` has them."""

from __future__ import annotations

from typing import Protocol

from sterna.broker.access.access_control import AccessControl
from sterna.broker.broker_state import BrokerState
from sterna.broker.counters import Counters
from sterna.broker.deadlines import Deadlines
from sterna.broker.delivery.delivery import Delivery
from sterna.broker.delivery.delivery_audit import DeliveryNotes
from sterna.broker.delivery.retained import Retained
from sterna.broker.delivery.routes import Routes
from sterna.broker.limits import Limits
from sterna.broker.network import BrokerNetwork
from sterna.broker.packets.acknowledgements import Acknowledgements
from sterna.broker.session.session import Session
from sterna.broker.session.session_log import SessionLog
from sterna.broker.session_lifecycle import SessionLifecycle
from sterna.journal.journal import Journal
from sterna.mqtt.message import Message
from sterna.vocabulary.identity import Identity


class BrokerParts(Protocol):
    delivered_upto: int
    """Everything up to this offset has been delivered."""

    @property
    def state(self) -> BrokerState: ...
    @property
    def sessions(self) -> dict[bytes, Session]: ...
    @property
    def retained(self) -> Retained: ...
    @property
    def routes(self) -> Routes: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def log(self) -> SessionLog: ...
    @property
    def delivery(self) -> Delivery: ...
    @property
    def lifecycle(self) -> SessionLifecycle: ...
    @property
    def acknowledgements(self) -> Acknowledgements: ...
    @property
    def access(self) -> AccessControl: ...
    @property
    def deadlines(self) -> Deadlines: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def network(self) -> BrokerNetwork | None: ...
    @property
    def records(self) -> DeliveryNotes | None: ...
    @property
    def now(self) -> float: ...
    @property
    def wall(self) -> float: ...
    @property
    def running_clock(self) -> float:
        """Seconds by which sessions age."""

    def identity_of(self, message: Message) -> Identity | None: ...
