"""One run of the thesis' experiment: a configuration, a speed, a protocol and a seed; the figures that it gives.

Publishers send a message a second for 500 s; 200 s of silence follow.  Positions, shadowing and the moments of
publication depend on the seed alone, so that all protocols meet the same.  The same run gives the same figures, and the
same `digest`, in any process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from statistics import fmean
from typing import Literal

import msgspec

from sterna.simulation.kernel import Kernel
from sterna.simulation.papers.ledger import EventLedger
from sterna.simulation.papers.messages import Name, PaperEvent
from sterna.simulation.papers.protocols import PROTOCOLS, InTree, RadioPublisher, Role
from sterna.simulation.radio.medium import HopAcks, Medium
from sterna.simulation.radio.port import RadioProtocol, StationPort
from sterna.simulation.radio.propagation import Propagation
from sterna.simulation.radio.waypoint import Waypoints

TICK_S = 0.1
"""Between two looks at where everybody is."""
INTERVAL_S = 1.0
Workload = Literal["all", "direct"]
"""Every subscriber wants everything, or each message is for one subscriber."""
DATA_KINDS = ("Pub", "Rep", "AodvPacket", "EventBatch")
"""Of messages that carry events; all others are control."""


@dataclass(frozen=True, slots=True)
class RadioConfiguration:
    """A row of the thesis' Table 4.2."""

    publishers: int
    subscribers: int
    brokers: int
    side_m: float

    @property
    def stations(self) -> int:
        return self.publishers + self.subscribers + self.brokers


CONFIGURATIONS: Mapping[str, RadioConfiguration] = {
    "C2": RadioConfiguration(2, 2, 2, 35),
    "C4": RadioConfiguration(2, 4, 4, 45),
    "C8": RadioConfiguration(2, 8, 8, 60),
    "C16": RadioConfiguration(2, 16, 16, 80),
    "C32": RadioConfiguration(2, 32, 32, 110),
}


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    configuration: str
    speed_m_s: float
    protocol: str
    seed: int
    workload: Workload = "all"
    acks: bool = True
    """Whether hops are acknowledged."""
    kbit_s: int = 250
    """Of the radio."""
    publish_s: float = 500.0
    silence_s: float = 200.0


class RoleFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Per station of a role, over the whole run."""

    frames: float
    """Without acknowledgements of hops."""
    control_frames: float
    acks: float
    sent_bytes: float


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    plan: RunPlan
    stations: int
    meant: int
    """Messages times subscribers that want them."""
    routed: int
    """Of those, what the thesis counts as sent to a subscriber."""
    delivered: int
    duplicates: int
    delay_s: float | None
    hops: float | None
    roles: dict[str, RoleFigures]
    frames: float
    """Per station, of all roles."""
    control_frames: float
    sent_bytes: float
    changes_a_minute: float | None
    """Of parents, per broker; None for protocols without a tree."""
    depth: float | None
    """Mean hops of brokers to their leader."""
    load_near_leader: float | None
    """Frames of the half of the brokers that was nearer to its leader, divided by those of the other half."""
    kinds: dict[str, int]
    """Frames by kind of message."""
    digest: str

    @property
    def rate(self) -> float:
        """The thesis' delivery rate: a subscriber that no broker knew of does not count."""
        return self.delivered / self.routed if self.routed else 0.0

    @property
    def fair_rate(self) -> float:
        return self.delivered / self.meant


class RadioWorld:
    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._shape = CONFIGURATIONS[plan.configuration]
        self.kernel = Kernel(plan.seed)
        propagation = Propagation(self._shape.side_m, self.kernel.dice("shadowing"))
        self._walk = Waypoints(self._shape.stations, self._shape.side_m, plan.speed_m_s, self.kernel.dice("waypoints"))
        self._propagation = propagation
        self.medium = Medium(self.kernel, propagation, HopAcks() if plan.acks else None, 1000 * plan.kbit_s)
        subscribers = _names("s", self._shape.subscribers)
        self._topics = _topics(plan.workload, subscribers, _names("p", self._shape.publishers))
        self.ledger = EventLedger(self._topics)
        self.roles: dict[Name, Role] = {
            **dict.fromkeys(_names("b", self._shape.brokers), "broker"),
            **dict.fromkeys(subscribers, "subscriber"),
            **dict.fromkeys(_names("p", self._shape.publishers), "publisher"),
        }
        self.protocols: dict[Name, RadioProtocol] = {}
        self._in_tree: dict[Name, InTree] = {}
        self._depths: dict[Name, list[int]] = {}

    def run(self) -> RunFigures:
        plan = self._plan
        entry = PROTOCOLS[plan.protocol]
        for name, role in self.roles.items():
            station = self.medium.add(name)
            filters = [topic for topic, wanted in self._topics.items() if name in wanted]
            port = StationPort(self.kernel, self.medium, station)
            protocol = entry.station(port, role, filters, self.ledger)
            station.listener = self.protocols[name] = protocol
        self._in_tree = {name: one for name, one in self.protocols.items() if isinstance(one, InTree)}
        self._depths = {name: [] for name in self._in_tree}
        self._tick()
        for protocol in self.protocols.values():
            protocol.start()
        dice = self.kernel.dice("publications")
        for name in _names("p", self._shape.publishers):
            self.kernel.at(dice.random() * INTERVAL_S, self._publish, name, 0)
        self.kernel.run_until(plan.publish_s + plan.silence_s)
        return self._figures()

    def _tick(self) -> None:
        cells = self._propagation.cells_of(self._walk.positions(self.kernel.now))
        for station, cell in zip(self.medium.stations.values(), cells, strict=True):
            station.cell = cell
        self.kernel.after(TICK_S, self._tick)

    def _publish(self, publisher: Name, number: int) -> None:
        if self.kernel.now >= self._plan.publish_s:
            return
        self.kernel.after(INTERVAL_S, self._publish, publisher, number + 1)
        topics = [topic for topic in self._topics if topic.startswith(publisher)]
        event = PaperEvent(topics[number % len(topics)], publisher, number)
        self.ledger.publish(event, self.kernel.now)
        station = self.protocols[publisher]
        assert isinstance(station, RadioPublisher)
        station.publish(event)
        for name, one in self._in_tree.items():
            self._depths[name].append(one.depth)

    def _figures(self) -> RunFigures:
        ledger, stations = self.ledger, self.medium.stations
        minutes = self.kernel.now / 60
        changes = [one.changes / minutes for one in self._in_tree.values()]
        kinds: dict[str, int] = {}
        for station in stations.values():
            for kind, count in station.frames.items():
                kinds[kind] = kinds.get(kind, 0) + count
        came = ledger.delivered.values()
        return RunFigures(
            plan=self._plan,
            stations=len(stations),
            meant=ledger.meant,
            routed=ledger.sent_to_subscribers,
            delivered=len(ledger.delivered),
            duplicates=ledger.duplicates,
            delay_s=fmean(delay for delay, _ in came) if came else None,
            hops=fmean(hops for _, hops in came) if came else None,
            roles={role: self._of_role(role) for role in ("broker", "subscriber", "publisher")},
            frames=sum(kinds.values()) / len(stations),
            control_frames=sum(count for kind, count in kinds.items() if kind not in DATA_KINDS) / len(stations),
            sent_bytes=fmean(station.sent_bytes for station in stations.values()),
            changes_a_minute=fmean(changes) if changes else None,
            depth=fmean(map(fmean, self._depths.values())) if self._depths else None,
            load_near_leader=self._load_near_leader(),
            kinds=dict(sorted(kinds.items())),
            digest=self._digest(),
        )

    def _of_role(self, role: str) -> RoleFigures:
        stations = [self.medium.stations[name] for name, one in self.roles.items() if one == role]
        control = [sum(count for kind, count in one.frames.items() if kind not in DATA_KINDS) for one in stations]
        return RoleFigures(
            frames=fmean(sum(one.frames.values()) for one in stations),
            control_frames=fmean(control),
            acks=fmean(one.acks for one in stations),
            sent_bytes=fmean(one.sent_bytes for one in stations),
        )

    def _load_near_leader(self) -> float | None:
        ordered = sorted(self._depths, key=lambda name: fmean(self._depths[name]))
        half = len(ordered) // 2
        if not half:
            return None
        frames = [sum(self.medium.stations[name].frames.values()) for name in ordered]
        return fmean(frames[:half]) / fmean(frames[half:])

    def _digest(self) -> str:
        """Of all deliveries and all that was sent."""
        sent = [(one.name, sorted(one.frames.items()), one.acks) for one in self.medium.stations.values()]
        return blake2b(repr((list(self.ledger.delivered.items()), sent)).encode(), digest_size=8).hexdigest()


def run(plan: RunPlan) -> RunFigures:
    return RadioWorld(plan).run()


def _names(kind: str, count: int) -> list[Name]:
    """The smallest is a broker's: it leads where it is."""
    return [f"{kind}{number:02}" for number in range(1, count + 1)]


def _topics(workload: Workload, subscribers: list[Name], publishers: list[Name]) -> dict[str, list[Name]]:
    """Topics and those who want them; a publisher's topics begin with its name."""
    if workload == "all":
        return dict.fromkeys(publishers, subscribers)
    return {f"{publisher}/{one}": [one] for publisher in publishers for one in subscribers}
