"""The `$SYS` tree, under the names Mosquitto gave it, so that existing dashboards find what they look for."""

from __future__ import annotations

from collections.abc import Callable

from sterna.broker.statistics import Statistics

#: topic below `$SYS/broker/` -> value.
_VALUES: dict[str, Callable[[Statistics], int]] = {
    "clients/connected": lambda s: s.clients_connected,
    "clients/active": lambda s: s.clients_connected,
    "clients/disconnected": lambda s: s.sessions - s.clients_connected,
    "clients/inactive": lambda s: s.sessions - s.clients_connected,
    "clients/total": lambda s: s.sessions,
    "clients/maximum": lambda s: s.clients_maximum,
    "messages/received": lambda s: s.packets_received,
    "messages/stored": lambda s: s.retained + s.queued,
    "store/messages/count": lambda s: s.retained + s.queued,
    "messages/inflight": lambda s: s.inflight,
    "retained messages/count": lambda s: s.retained,
    "subscriptions/count": lambda s: s.subscriptions,
    "shared_subscriptions/count": lambda s: s.shared_subscriptions,
    "bytes/received": lambda s: s.bytes_received,
    "bytes/sent": lambda s: s.bytes_sent,
    "publish/messages/received": lambda s: s.publish_received,
    "publish/messages/sent": lambda s: s.publish_sent,
    "publish/messages/dropped": lambda s: sum(s.publish_dropped.values()),
    "publish/bytes/received": lambda s: s.publish_bytes_received,
    "publish/bytes/sent": lambda s: s.publish_bytes_sent,
    "messages/sent": lambda s: s.publish_sent,
}


class SysTree:
    """Publishes what changed since the last time."""

    def __init__(self, version: str, publish: Callable[[bytes, bytes], None]) -> None:
        self._version = version
        self._publish = publish
        self._last: dict[str, str] = {}

    def update(self, statistics: Statistics) -> None:
        self._set("version", f"sterna version {self._version}")
        self._set("uptime", f"{int(statistics.uptime_s)} seconds")
        for name, read in _VALUES.items():
            self._set(name, str(read(statistics)))

    def _set(self, name: str, value: str) -> None:
        if self._last.get(name) != value:
            self._last[name] = value
            self._publish(f"$SYS/broker/{name}".encode(), value.encode())
