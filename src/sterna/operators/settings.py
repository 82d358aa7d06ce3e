"""Settings of expressions: the `[operators]` table of a node's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from sterna.mqtt.topics import covers, levels_of
from sterna.vocabulary.settings import Allowed

EngineName = Literal["auto", "node", "spark"]


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine that computes expressions over these topics: the first table whose filter has all topics of an
    expression decides, before `engine` in `[operators]`."""

    filter: str
    """Topics the choice is for."""
    engine: EngineName
    """Engine of expressions over these topics."""

    def covers(self, topic_filter: bytes) -> bool:
        """Are all topics of that filter meant?"""
        return covers(levels_of(self.filter.encode()), levels_of(topic_filter))


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Subscriptions that compute, see [operators](operators.md)."""

    expiry_s: Annotated[float, Allowed(0.001)] = 3600.0
    """A topic's last value stops counting in spatial aggregates this long after the topic's last message."""

    anchor: Literal["subscription", "wall"] = "subscription"
    """Where periods begin: at the instant of subscription, or (`"wall"`) at multiples of their length since 1970, so
    at full hours and days (UTC)."""

    daily_s: Annotated[float, Allowed(0.001)] = 86_400.0
    """Length of the windows of the DAILY operators.  Shorter ones are for trying things out."""

    hourly_s: Annotated[float, Allowed(0.001)] = 3600.0
    """Length of the windows of the HOURLY operators."""

    quarter_hourly_s: Annotated[float, Allowed(0.001)] = 900.0
    """Length of the windows of the QUARTERHOURLY operators."""

    topics: Annotated[int, Allowed(1)] = 100_000
    """Topics of one expression of which something is remembered; with one more it stops and says so."""

    window_values: Annotated[int, Allowed(1)] = 100_000
    """Values a sliding aggregate holds (MIN and MAX hold fewer than come); with one more the expression stops."""

    buckets: Annotated[int, Allowed(1)] = 1_000_000
    """Buckets that the quantile sketches of a period hold, all topics together; with one more the expression stops.
    One topic needs at most 10,241, and usually some dozens."""

    field_payload_bytes: int = 65_536
    """Structured payloads longer than this are ignored and counted: taking one apart costs time before it is known
    whether the field is there."""

    partials: bool = True
    """In a network: have other nodes compute [their part](operators.md#in-a-network) of what their own clients publish,
    where that gives the same answer, instead of asking them for the messages."""

    pace_ms: Annotated[int, Allowed(0, 3_600_000)] = 100
    """How often another node's part is told at most, while it changes; 0: at once."""

    grace_s: Annotated[float, Allowed(0.0, 3600.0)] = 10.0
    """How long the end of a period waits for other nodes' parts of it; a part that comes later is counted (`late-part`)
    and left out.  More than their clocks differ by."""

    engine: EngineName = "node"
    """Where expressions are computed: in the node, by the job `sterna pipeline operators` (`"spark"`), or (`"auto"`) by
    that job if they have windows as long as `spark_period_s` that can be computed in parts, see
    [operators](operators.md#on-spark)."""

    engines: tuple[EngineChoice, ...] = ()

    spark_period_s: Annotated[float, Allowed(0.001)] = 3600.0
    """With `engine = "auto"`: windows at least this long are Spark's."""

    def engine_of(self, topic_filter: bytes) -> tuple[EngineName, str]:
        """The engine for expressions over these topics, and the words of the configuration that say so."""
        for choice in self.engines:
            if choice.covers(topic_filter):
                return choice.engine, f'[[operators.engines]] filter = "{choice.filter}" engine = "{choice.engine}"'
        return self.engine, f'[operators] engine = "{self.engine}"'

    @property
    def has_spark(self) -> bool:
        """May there be expressions that nodes leave to Spark?"""
        return any(engine != "node" for engine in (self.engine, *(choice.engine for choice in self.engines)))

    def period_us(self, period: str) -> int:
        lengths = {"DAILY": self.daily_s, "HOURLY": self.hourly_s, "QUARTERHOURLY": self.quarter_hourly_s}
        return max(1, round(lengths[period] * 1e6))

    @property
    def expiry_us(self) -> int:
        return max(1, round(self.expiry_s * 1e6))
