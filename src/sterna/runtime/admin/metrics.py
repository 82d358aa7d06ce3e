"""The node's statistics as Prometheus reads them.

One line of `METRICS` per metric: a snapshot goes in, the text format comes out.  Nothing is kept between two calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from sterna.broker.statistics import Statistics
from sterna.runtime.feed.view import FeedView
from sterna.runtime.links.network_view import LinkView, NetworkView
from sterna.runtime.process_view import Histogram, ProcessView, Timings

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_Family = type[CounterMetricFamily] | type[GaugeMetricFamily]


class Metric(NamedTuple):
    name: str
    help: str
    family: _Family
    read: Callable[[Statistics], float | Mapping[str, int]]
    """A number, or numbers by reason."""


_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily

METRICS = (
    Metric("uptime_seconds", "Time since the node started.", _GAUGE, lambda s: s.uptime_s),
    Metric("packets_received", "MQTT packets of every kind from clients.", _COUNTER, lambda s: s.packets_received),
    Metric("packets_sent", "MQTT packets of every kind to clients.", _COUNTER, lambda s: s.packets_sent),
    Metric("bytes_received", "Bytes from clients.", _COUNTER, lambda s: s.bytes_received),
    Metric("bytes_sent", "Bytes to clients.", _COUNTER, lambda s: s.bytes_sent),
    Metric("publish_received", "PUBLISH packets from clients.", _COUNTER, lambda s: s.publish_received),
    Metric("publish_sent", "PUBLISH packets to clients.", _COUNTER, lambda s: s.publish_sent),
    Metric("publish_bytes_received", "Payload bytes from clients.", _COUNTER, lambda s: s.publish_bytes_received),
    Metric("publish_bytes_sent", "Payload bytes to clients.", _COUNTER, lambda s: s.publish_bytes_sent),
    Metric("publish_dropped", "Messages a recipient did not get, by reason.", _COUNTER, lambda s: s.publish_dropped),
    Metric("connections_refused", "Connections refused, by reason.", _COUNTER, lambda s: s.connections_refused),
    Metric("subscriptions_refused", "Topic filters refused, by reason.", _COUNTER, lambda s: s.subscriptions_refused),
    Metric("connections", "Connections taken in.", _COUNTER, lambda s: s.connections),
    Metric("sessions_expired", "Sessions that ran out.", _COUNTER, lambda s: s.sessions_expired),
    Metric("clients_connected", "Clients connected now.", _GAUGE, lambda s: s.clients_connected),
    Metric("clients_maximum", "Most clients ever connected at once.", _GAUGE, lambda s: s.clients_maximum),
    Metric("sessions", "Sessions, connected or not.", _GAUGE, lambda s: s.sessions),
    Metric("subscriptions", "Subscriptions of all sessions.", _GAUGE, lambda s: s.subscriptions),
    Metric("shared_subscriptions", "Shared subscriptions among them.", _GAUGE, lambda s: s.shared_subscriptions),
    Metric("expressions", "Different subscriptions that compute.", _GAUGE, lambda s: s.expressions),
    Metric("expression_results", "Results of expressions.", _COUNTER, lambda s: s.expression_results),
    Metric("expression_values", "Values that did not count as sent.", _COUNTER, lambda s: s.expression_values),
    Metric("function_calls", "Messages that wait for data processing functions.", _GAUGE, lambda s: s.function_calls),
    Metric("retained", "Retained messages.", _GAUGE, lambda s: s.retained),
    Metric("retained_bytes", "Bytes of retained messages.", _GAUGE, lambda s: s.retained_bytes),
    Metric("inflight", "QoS 1 and 2 messages sent and not yet acknowledged.", _GAUGE, lambda s: s.inflight),
    Metric("queued", "Messages waiting for their sessions.", _GAUGE, lambda s: s.queued),
    Metric("journal_bytes", "Size of the journal.", _GAUGE, lambda s: s.journal_bytes),
    Metric("journal_lost", "Messages whose bytes in the journal are damaged.", _GAUGE, lambda s: s.journal_lost),
    Metric(
        "impossible_entries",
        "Entries of the data directory that cannot be and were passed over at the start.",
        _GAUGE,
        lambda s: s.impossible_entries,
    ),
    Metric("journal_first_offset", "Oldest message the journal keeps.", _GAUGE, lambda s: s.journal_first_offset),
    Metric("journal_next_offset", "Offset of the next message.", _GAUGE, lambda s: s.journal_next_offset),
)


class FeedMetric(NamedTuple):
    name: str
    help: str
    family: _Family
    read: Callable[[FeedView], int]


FEED_METRICS = (
    FeedMetric("feed_connections", "Readers of the feed connected now.", _GAUGE, lambda v: v.connections),
    FeedMetric("feed_readers", "Registered readers of the feed.", _GAUGE, lambda v: v.readers),
    FeedMetric("feed_lag", "Messages the slowest registered reader has not committed.", _GAUGE, lambda v: v.lag),
    FeedMetric("feed_rows_sent", "Rows sent to readers.", _COUNTER, lambda v: v.rows_sent),
    FeedMetric("feed_bytes_sent", "Bytes of rows sent to readers.", _COUNTER, lambda v: v.bytes_sent),
    FeedMetric("feed_lost", "Messages retention took before their reader committed.", _COUNTER, lambda v: v.lost),
    FeedMetric("feed_parquet_files", "Sealed segments kept as Parquet files.", _GAUGE, lambda v: v.parquet_files),
)


class NetworkMetric(NamedTuple):
    name: str
    help: str
    family: _Family
    read: Callable[[NetworkView], float | Mapping[str, int]]
    """A number, or numbers by reason."""


NETWORK_METRICS = (
    NetworkMetric("links", "Links with a connection now.", _GAUGE, lambda v: sum(one.connected for one in v.links)),
    NetworkMetric(
        "network_messages_forwarded",
        "Messages sent on to neighbours; of QoS 0 on one topic as many as come in one piece count once.",
        _COUNTER,
        lambda v: v.forwarded,
    ),
    NetworkMetric("network_messages_taken", "Messages from other nodes for clients here.", _COUNTER, lambda v: v.taken),
    NetworkMetric("network_messages_refused", "Messages that came again or astray.", _COUNTER, lambda v: v.refused),
    NetworkMetric(
        "network_nonsense",
        "Frames of neighbours that made no sense: their links ended.",
        _COUNTER,
        lambda v: v.nonsense,
    ),
    NetworkMetric(
        "network_spoilt",
        "Words of nodes further away that made no sense and were left out.",
        _COUNTER,
        lambda v: v.spoilt,
    ),
    NetworkMetric(
        "network_messages_dropped",
        "QoS 0 messages that did not go on to another node, by reason.",
        _COUNTER,
        lambda v: v.loose_dropped,
    ),
    NetworkMetric(
        "network_unconfirmed", "Times SUBACK went out before every node answered.", _COUNTER, lambda v: v.unconfirmed
    ),
)


class LinkMetric(NamedTuple):
    name: str
    help: str
    read: Callable[[LinkView], int]


LINK_METRICS = (
    LinkMetric("messages", "Frames given to a link.", lambda one: one.messages),
    LinkMetric("bytes", "Bytes sent to a neighbour.", lambda one: one.bytes_sent),
    LinkMetric("received_bytes", "Bytes from a neighbour.", lambda one: one.bytes_received),
    LinkMetric("control_bytes", "Bytes sent to a neighbour that carry no message.", lambda one: one.control_bytes),
    LinkMetric("resends", "Frames sent again on another connection.", lambda one: one.resends),
    LinkMetric("resumptions", "Connections that carried on a link session.", lambda one: one.resumptions),
    LinkMetric("sessions", "Link sessions begun.", lambda one: one.sessions),
)

_STREAM_STATES = ("synced", "fetching", "unsynced")


class _NetworkSnapshot(Collector):
    def __init__(self, view: NetworkView) -> None:
        self._view = view

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for metric in NETWORK_METRICS:
            yield _family(metric, metric.read(self._view))
        for of_link in LINK_METRICS:
            links = CounterMetricFamily(f"sterna_link_{of_link.name}", of_link.help, labels=["peer"])
            for link in self._view.links:
                links.add_metric([link.peer], of_link.read(link))
            yield links
        streams = GaugeMetricFamily("sterna_streams", "Other nodes by how their messages come in.", labels=["state"])
        found = Counter(self._view.streams.values())
        for state in _STREAM_STATES:
            streams.add_metric([state], found[state])
        yield streams
        moves = CounterMetricFamily("sterna_session_moves", "Sessions that changed their node.", labels=["outcome"])
        for outcome, number in self._view.moves.items():
            moves.add_metric([outcome.replace("_", "-")], number)
        yield moves


class _FeedSnapshot(Collector):
    def __init__(self, view: FeedView) -> None:
        self._view = view

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for metric in FEED_METRICS:
            yield metric.family(f"sterna_{metric.name}", metric.help, value=metric.read(self._view))


class InterworkingMetric(NamedTuple):
    name: str
    help: str
    family: _Family
    read: Callable[[Mapping[str, Any]], float | Mapping[str, int]]
    """A number, or numbers by reason."""


INTERWORKING_METRICS = (
    InterworkingMetric(
        "interworking_attached", "1 while attached to the foreign broker.", _GAUGE, lambda v: v["state"] == "attached"
    ),
    InterworkingMetric("interworking_taken", "Messages from the foreign broker.", _COUNTER, lambda v: v["taken"]),
    InterworkingMetric("interworking_injected", "Messages to the foreign broker.", _COUNTER, lambda v: v["injected"]),
    InterworkingMetric(
        "interworking_held_back",
        "Messages of the foreign broker that did not go into the network, by reason.",
        _COUNTER,
        lambda v: v["held_back"],
    ),
    InterworkingMetric(
        "interworking_not_injected",
        "Messages of the network that the foreign broker did not get, by reason.",
        _COUNTER,
        lambda v: v["not_injected"],
    ),
    InterworkingMetric(
        "interworking_in_doubt",
        "Messages in flight when the foreign broker lost its session, by what became of them.",
        _COUNTER,
        lambda v: v["in_doubt"],
    ),
    InterworkingMetric(
        "interworking_sessions_lost", "Sessions the foreign broker lost.", _COUNTER, lambda v: v["sessions_lost"]
    ),
    InterworkingMetric("interworking_failures", "Connections that failed or ended.", _COUNTER, lambda v: v["failures"]),
    InterworkingMetric(
        "interworking_round_trip_seconds",
        "The way of the last fence through the foreign broker and back.",
        _GAUGE,
        lambda v: (v["round_trip_ms"] or 0.0) / 1000,
    ),
    InterworkingMetric(
        "interworking_storms", "Topics held because messages went round.", _COUNTER, lambda v: v["storms"]
    ),
    InterworkingMetric(
        "interworking_clients",
        "Clients of the foreign broker that are relayed to it now.",
        _GAUGE,
        lambda v: v.get("proxy", {}).get("relayed", 0),
    ),
    InterworkingMetric(
        "interworking_witnessed",
        "Publications of relayed clients that the foreign broker passed on.",
        _COUNTER,
        lambda v: v.get("proxy", {}).get("witnessed", 0),
    ),
    InterworkingMetric(
        "interworking_not_witnessed",
        "Publications of relayed clients that the foreign broker acknowledged and passed on to nobody.",
        _COUNTER,
        lambda v: v.get("proxy", {}).get("not_witnessed", 0),
    ),
    InterworkingMetric(
        "interworking_publications_in_doubt",
        "Publications at QoS 2 of relayed clients whose session the foreign broker lost, by what became of them.",
        _COUNTER,
        lambda v: v.get("proxy", {}).get("in_doubt", {}),
    ),
)


class _InterworkingSnapshot(Collector):
    def __init__(self, view: Mapping[str, Any]) -> None:
        self._view = view

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for metric in INTERWORKING_METRICS:
            yield _family(metric, metric.read(self._view))


class TimingMetric(NamedTuple):
    name: str
    help: str
    read: Callable[[Timings], Histogram]


TIMING_METRICS = (
    TimingMetric("journal_write_seconds", "Writing a group to the journal, sync included.", lambda t: t.journal_write),
    TimingMetric("commit_seconds", "From closing a group to delivering what it holds.", lambda t: t.commit),
    TimingMetric("event_loop_lag_seconds", "How late the event loop calls back.", lambda t: t.loop_lag),
)


class _ProcessSnapshot(Collector):
    def __init__(self, view: ProcessView) -> None:
        self._view = view

    def collect(self) -> Iterator[GaugeMetricFamily | HistogramMetricFamily]:
        view = self._view
        build = GaugeMetricFamily("sterna_build_info", "1, with the build.", labels=["version", "python", "compiled"])
        build.add_metric([view.version, view.python, str(view.compiled).lower()], 1)
        yield build
        for metric in TIMING_METRICS:
            timing = metric.read(view.timings)
            yield HistogramMetricFamily(f"sterna_{metric.name}", metric.help, timing.buckets(), timing.sum)
        expiry = GaugeMetricFamily(
            "sterna_certificate_expiry_timestamp_seconds", "When a listener's certificate expires.", labels=["listener"]
        )
        for listener, instant in view.certificates.items():
            expiry.add_metric([listener], instant)
        yield expiry


class _Snapshot(Collector):
    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for metric in METRICS:
            yield _family(metric, metric.read(self._statistics))


def _family(
    metric: Metric | NetworkMetric | InterworkingMetric, value: float | Mapping[str, int]
) -> CounterMetricFamily | GaugeMetricFamily:
    name = f"sterna_{metric.name}"
    if not isinstance(value, Mapping):
        return metric.family(name, metric.help, value=value)
    family = metric.family(name, metric.help, labels=["reason"])
    for reason, number in sorted(value.items()):
        family.add_metric([reason], number)
    return family


def exposition(
    statistics: Statistics,
    view: NetworkView | None = None,
    feed: FeedView | None = None,
    interworking: Mapping[str, Any] | None = None,
    process: ProcessView | None = None,
) -> bytes:
    """The page served under /metrics, the process's own CPU, memory and files included."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(statistics))
    if view is not None and view.network:
        registry.register(_NetworkSnapshot(view))
    if feed is not None:
        registry.register(_FeedSnapshot(feed))
    if interworking is not None:
        registry.register(_InterworkingSnapshot(interworking))
    if process is not None:
        registry.register(_ProcessSnapshot(process))
    ProcessCollector(registry=registry)
    return generate_latest(registry)
