"""A measurement of one workload against one broker, and the summary of several."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.load.shapes import Figure

GENERATOR_BUSY = 0.95
BROKER_IDLE = 0.90
LATE_SHARE_MAX = 0.01
WAITED_SHARE_MAX = 0.05


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and CPU time are of the measured interval, `lost` of the whole run after all had time to arrive."""

    seconds: float
    published: int = 0
    delivered: int = 0
    lost: int = 0
    broker_cpu_s: float = 0.0
    cpu_s_of_each: list[float] = []
    """The same of each of the brokers."""
    broker_waited_s: float = 0.0
    """Time the broker was ready to run while something else had its core."""
    generator_busy: float = 0.0
    """Share of the interval the generator was at work."""
    late: int = 0
    """Messages of a paced load sent more than a millisecond after their time."""
    latency_p50_us: float | None = None
    latency_p99_us: float | None = None
    latency_samples: int = 0
    kib_per_connection: float | None = None
    cost_spread: float | None = None
    """Of several loads in turn, the dearest per message as a multiple of the cheapest."""
    cpu_us_of_each: list[float] = []
    """CPU time per message of each of them."""

    @property
    def cpu_us_per_message(self) -> float | None:
        return self.broker_cpu_s * 1e6 / self.delivered if self.delivered else None

    @property
    def throughput(self) -> float:
        """Delivered messages per second."""
        return self.delivered / self.seconds

    @property
    def broker_busy(self) -> float:
        return self.broker_cpu_s / self.seconds

    @property
    def generator_bound(self) -> bool:
        """The generator, not the broker, set the pace: CPU per message holds, throughput is a lower bound."""
        return self.generator_busy > GENERATOR_BUSY and self.broker_busy < BROKER_IDLE

    @property
    def disturbed(self) -> bool:
        """Something else used the machine: throughput and latency tell more about that than about the broker."""
        return self.late > LATE_SHARE_MAX * self.published or self.broker_waited_s > WAITED_SHARE_MAX * self.seconds


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Several rounds of one broker on one workload: medians, and the worst of what should be zero."""

    figure: float
    """The figure of merit of the workload; lower is better."""
    figure_min: float
    figure_max: float
    cpu_us_per_message: float | None
    throughput: float
    latency_p50_us: float | None
    latency_p99_us: float | None
    kib_per_connection: float | None
    broker_busy: float
    generator_busy: float
    generator_bound: bool
    disturbed: bool
    lost: int
    rounds: list[Measurement]


def summarise(figure: Figure, rounds: Sequence[Measurement]) -> Summary:
    figures = _values(figure, rounds)
    if not figures:
        raise MeasurementError(f"no message arrived in any round, so there is no {figure}")
    return Summary(
        figure=median(figures),
        figure_min=min(figures),
        figure_max=max(figures),
        cpu_us_per_message=_median("cpu_us_per_message", rounds),
        throughput=median(one.throughput for one in rounds),
        latency_p50_us=_median("latency_p50_us", rounds),
        latency_p99_us=_median("latency_p99_us", rounds),
        kib_per_connection=_median("kib_per_connection", rounds),
        broker_busy=median(one.broker_busy for one in rounds),
        generator_busy=median(one.generator_busy for one in rounds),
        generator_bound=any(one.generator_bound for one in rounds),
        disturbed=any(one.disturbed for one in rounds),
        lost=max(one.lost for one in rounds),
        rounds=list(rounds),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that at least `share` of the values do not exceed."""
    assert 0 < share <= 1, share
    rank = -int(-share * len(ordered) // 1)
    return ordered[rank - 1]


def _median(name: str, rounds: Sequence[Measurement]) -> float | None:
    values = _values(name, rounds)
    return median(values) if values else None


def _values(name: str, rounds: Sequence[Measurement]) -> list[float]:
    return [value for one in rounds if (value := getattr(one, name)) is not None]
