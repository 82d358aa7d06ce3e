"""The node's statistics as Prometheus reads them.

One line of `METRICS` per metric: a snapshot goes in, the text format comes out.  Nothing is kept between two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from sterna.broker.statistics import Statistics

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
    Metric("connections", "Connections taken in.", _COUNTER, lambda s: s.connections),
    Metric("sessions_expired", "Sessions that ran out.", _COUNTER, lambda s: s.sessions_expired),
    Metric("clients_connected", "Clients connected now.", _GAUGE, lambda s: s.clients_connected),
    Metric("clients_maximum", "Most clients ever connected at once.", _GAUGE, lambda s: s.clients_maximum),
    Metric("sessions", "Sessions, connected or not.", _GAUGE, lambda s: s.sessions),
    Metric("subscriptions", "Subscriptions of all sessions.", _GAUGE, lambda s: s.subscriptions),
    Metric("shared_subscriptions", "Shared subscriptions among them.", _GAUGE, lambda s: s.shared_subscriptions),
    Metric("retained", "Retained messages.", _GAUGE, lambda s: s.retained),
    Metric("retained_bytes", "Bytes of retained messages.", _GAUGE, lambda s: s.retained_bytes),
    Metric("inflight", "QoS 1 and 2 messages sent and not yet acknowledged.", _GAUGE, lambda s: s.inflight),
    Metric("queued", "Messages waiting for their sessions.", _GAUGE, lambda s: s.queued),
    Metric("journal_bytes", "Size of the journal.", _GAUGE, lambda s: s.journal_bytes),
    Metric("journal_lost", "Messages whose bytes in the journal are damaged.", _GAUGE, lambda s: s.journal_lost),
    Metric("journal_first_offset", "Oldest message the journal keeps.", _GAUGE, lambda s: s.journal_first_offset),
    Metric("journal_next_offset", "Offset of the next message.", _GAUGE, lambda s: s.journal_next_offset),
)


class _Snapshot(Collector):
    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for metric in METRICS:
            value = metric.read(self._statistics)
            name = f"sterna_{metric.name}"
            if not isinstance(value, Mapping):
                yield metric.family(name, metric.help, value=value)
                continue
            family = metric.family(name, metric.help, labels=["reason"])
            for reason, number in sorted(value.items()):
                family.add_metric([reason], number)
            yield family


def exposition(statistics: Statistics) -> bytes:
    """The page served under /metrics, the process's own CPU, memory and files included."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(statistics))
    ProcessCollector(registry=registry)
    return generate_latest(registry)
