"""The records of one run of a playbook, second by second: the same of a simulated town and of real processes.

As files they are Parquet, a directory per table and a file per run.  An analysis needs nothing else (`analysis.py`,
`on_spark.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sterna.adaptation.picture import WorkerNodeState
from sterna.measure.papers.emma.playbooks import Playbook
from sterna.simulation.geography import Geography, Location

Way = Literal["coordinates", "measure-all"]
RUNNING: Final = frozenset({WorkerNodeState.SERVING, WorkerNodeState.LEAVING, WorkerNodeState.DRAINING})


class TopicSecond(NamedTuple):
    """The messages of a second that went from the clients of one gateway to those of another."""

    topic: str
    publisher: str
    subscriber: str
    latency_ms: float
    """Mean, from the publisher to the subscriber."""
    messages: float


class TrafficSecond(NamedTuple):
    management: int = 0
    """Messages."""
    management_bytes: int = 0
    data: int = 0
    data_bytes: int = 0
    wire: int = 0
    """True bytes of management, with headers."""


@dataclass(slots=True)
class Second:
    """One second of a run."""

    states: dict[str, WorkerNodeState]
    """Worker: the state of its node, if that is not off."""
    latency_ms: dict[str, float]
    """By topic."""
    traffic: TrafficSecond
    on: dict[str, str]
    """Gateway: its node."""
    at: dict[str, Location]
    """Gateway: where it is."""
    slowest_ms: dict[str, float]
    """Of a hundred messages the slowest but one, by topic."""
    acting: int
    """Coordinators that lead and may give orders."""
    moves: int
    """Until then."""
    topics: Sequence[TopicSecond] = ()
    """Where records are kept."""

    @property
    def nodes(self) -> int:
        return sum(state in RUNNING for state in self.states.values())


class TownAccount(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of messages in a run with real clients."""

    published: int = 0
    """Acknowledged."""
    delivered: int = 0
    lost: int = 0
    """At QoS 1 and 2."""
    twice: int = 0
    """At QoS 2."""
    disconnected: int = 0
    """Clients."""


@dataclass(slots=True)
class RunRecords:
    playbook: Playbook
    way: Way
    seconds: list[Second] = field(default_factory=list)
    starts: list[tuple[float, str]] = field(default_factory=list)
    """Ordered by a coordinator."""
    stops: list[tuple[float, str]] = field(default_factory=list)
    came_s: dict[tuple[str, float], float] = field(default_factory=dict)
    """Gateway, and when it appears by the playbook: when its clients were there."""
    left_s: dict[tuple[str, float], float] = field(default_factory=dict)
    """Gateway, and when it leaves by the playbook: when its clients had left."""
    account: TownAccount | None = None
    """None: nobody kept books."""
    _usual: dict[tuple[Location, str], float] = field(default_factory=dict)
    _geography: Geography = field(default_factory=Geography)

    @property
    def name(self) -> str:
        return f"{self.playbook.title}, {self.way}"

    def usual_s(self, at: Location, node: str) -> float:
        """The true round trip from there to a worker."""
        key = at, node
        if key not in self._usual:
            there = next(one.at for one in self.playbook.events if one.name == node and one.at is not None)
            self._usual[key] = self._geography.usual_round_trip_s(at, there)
        return self._usual[key]

    def write(self, directory: Path) -> None:
        file = self.name.replace(" ", "-").replace(",", "").replace("(", "").replace(")", "") + ".parquet"
        for name, (schema, rows) in TABLES.items():
            (directory / name).mkdir(parents=True, exist_ok=True)
            found = [(self.name, *row) for row in rows(self)]
            columns = [pa.array([row[place] for row in found], kind.type) for place, kind in enumerate(schema)]
            pq.write_table(pa.Table.from_arrays(columns, schema=schema), directory / name / file)

    # -- rows --

    def _runs(self) -> Iterator[tuple[Any, ...]]:
        last = self.seconds[-1].moves if self.seconds else 0
        yield self.playbook.title, self.way, self.playbook.minute_s, last

    def _topics(self) -> Iterator[tuple[Any, ...]]:
        for number, second in enumerate(self.seconds):
            for one in second.topics:
                yield number, *one

    def _traffic(self) -> Iterator[tuple[Any, ...]]:
        for number, second in enumerate(self.seconds):
            yield number, *second.traffic

    def _nodes(self) -> Iterator[tuple[Any, ...]]:
        for number, second in enumerate(self.seconds):
            for name, state in second.states.items():
                yield number, name, state.value, state in RUNNING

    def _gateways(self) -> Iterator[tuple[Any, ...]]:
        for number, second in enumerate(self.seconds):
            for name, node in second.on.items():
                yield number, name, node, 1000 * self.usual_s(second.at[name], node)

    def _orders(self) -> Iterator[tuple[Any, ...]]:
        for what, orders in (("start", self.starts), ("stop", self.stops)):
            for at_s, node in orders:
                yield what, at_s, node


def _schema(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([("run", pa.string()), *columns])


_TEXT, _WHOLE, _REAL, _TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()
TABLES: Final[dict[str, tuple[pa.Schema, Callable[[RunRecords], Iterator[tuple[Any, ...]]]]]] = {
    "runs": (
        _schema(("title", _TEXT), ("way", _TEXT), ("minute_s", _REAL), ("moves", _WHOLE)),
        RunRecords._runs,
    ),
    "topics": (
        _schema(
            ("second", _WHOLE), ("topic", _TEXT), ("publisher", _TEXT), ("subscriber", _TEXT), ("latency_ms", _REAL),
            ("messages", _REAL),
        ),
        RunRecords._topics,
    ),
    "traffic": (
        _schema(
            ("second", _WHOLE), ("management", _WHOLE), ("management_bytes", _WHOLE), ("data", _WHOLE),
            ("data_bytes", _WHOLE), ("wire", _WHOLE),
        ),
        RunRecords._traffic,
    ),
    "nodes": (_schema(("second", _WHOLE), ("node", _TEXT), ("state", _TEXT), ("runs", _TRUTH)), RunRecords._nodes),
    "gateways": (
        _schema(("second", _WHOLE), ("gateway", _TEXT), ("node", _TEXT), ("round_trip_ms", _REAL)),
        RunRecords._gateways,
    ),
    "orders": (_schema(("what", _TEXT), ("at_s", _REAL), ("node", _TEXT)), RunRecords._orders),
}  # fmt: skip
