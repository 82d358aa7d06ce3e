"""The `$SYS` tree, under the names Mosquitto gave it, so that existing dashboards find what they look for."""

from __future__ import annotations

from collections.abc import Callable
from math import exp

import msgspec

from sterna.broker.statistics import Statistics
from sterna.operators.functions import NO_FUNCTIONS, Functions

#: topic below `$SYS/broker/` -> value
_VALUES: dict[str, Callable[[Statistics], int]] = {
    "clients/connected": lambda s: s.clients_connected,
    "clients/active": lambda s: s.clients_connected,
    "clients/disconnected": lambda s: s.sessions - s.clients_connected,
    "clients/inactive": lambda s: s.sessions - s.clients_connected,
    "clients/total": lambda s: s.sessions,
    "clients/maximum": lambda s: s.clients_maximum,
    "clients/expired": lambda s: s.sessions_expired,
    "messages/received": lambda s: s.packets_received,
    "messages/sent": lambda s: s.packets_sent,
    "messages/stored": lambda s: s.retained + s.queued,
    "messages/inflight": lambda s: s.inflight,
    "store/messages/count": lambda s: s.retained + s.queued,
    "store/messages/bytes": lambda s: s.retained_bytes,
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
}

#: topic below `$SYS/broker/load/` -> the counter whose rate per minute it shows
_LOADS: dict[str, Callable[[Statistics], int]] = {
    "messages/received": lambda s: s.packets_received,
    "messages/sent": lambda s: s.packets_sent,
    "publish/received": lambda s: s.publish_received,
    "publish/sent": lambda s: s.publish_sent,
    "publish/dropped": lambda s: sum(s.publish_dropped.values()),
    "bytes/received": lambda s: s.bytes_received,
    "bytes/sent": lambda s: s.bytes_sent,
    "sockets": lambda s: s.connections,
    "connections": lambda s: s.connections,
}

_MINUTES = (1, 5, 15)


class SysTree:
    """Publishes what changed since the last time."""

    def __init__(
        self, version: str, publish: Callable[[bytes, bytes], None], functions: Functions = NO_FUNCTIONS
    ) -> None:
        self._version = version
        self._publish = publish
        self._functions = functions
        self._capabilities = b""
        self._shown: dict[str, str] = {}
        self._before = Statistics()
        self._rates: dict[tuple[str, int], float] = {}

    def update(self, statistics: Statistics) -> None:
        self._set("version", f"sterna version {self._version}")
        self._set("uptime", f"{int(statistics.uptime_s)} seconds")
        for name, read in _VALUES.items():
            self._set(name, str(read(statistics)))
        elapsed_s = statistics.uptime_s - self._before.uptime_s
        for name, read in _LOADS.items():
            grown = read(statistics) - read(self._before)
            for minutes in _MINUTES:
                self._set(f"load/{name}/{minutes}min", f"{self._rate(name, minutes, grown, elapsed_s):.2f}")
        self._before = statistics
        self._set_capabilities()

    def _set_capabilities(self) -> None:
        """The list that MQTT+ clients ask for: the data processing operators there are, as JSON."""
        capabilities = msgspec.json.encode(self._functions.capabilities())
        if capabilities != self._capabilities:
            self._capabilities = capabilities
            self._publish(b"$SYS/capabilities", capabilities)

    def _rate(self, name: str, minutes: int, grown: int, elapsed_s: float) -> float:
        """Exponentially weighted rate per minute, as load averages are."""
        rate = self._rates.get((name, minutes), 0.0)
        if elapsed_s > 0:
            now = grown * 60 / elapsed_s
            rate = now + exp(-elapsed_s / (60 * minutes)) * (rate - now)
            self._rates[name, minutes] = rate
        return rate

    def _set(self, name: str, value: str) -> None:
        if self._shown.get(name) != value:
            self._shown[name] = value
            self._publish(f"$SYS/broker/{name}".encode(), value.encode())
