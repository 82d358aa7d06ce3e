"""Sessions at this node's own broker for clients that are relayed to a foreign broker.

The foreign broker has checked who the client is; its user name is believed here, and this node's access rules hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sterna.broker.access.identity import RELAYED_PREFIX
from sterna.broker.broker import Broker
from sterna.broker.session.connection import ClientPeer, Connection
from sterna.gateway.connecting import Wish
from sterna.gateway.extended_client import ExtendedClient
from sterna.mqtt.packets import MQTT_5
from sterna.mqtt.topics import SHARE
from sterna.operators.grammar import is_expression


class Companions:
    def __init__(self, broker: Broker, node: str, version: Callable[[], int]) -> None:
        """`version`: the version of MQTT that the foreign broker speaks, 0 as long as nobody knows."""
        self._broker = broker
        self._prefix = f"{RELAYED_PREFIX}{node}/".encode()
        self._peer = ClientPeer("relayed", is_relayed=True)
        self._version = version

    def is_served_here(self, topic_filter: bytes) -> bool:
        return topic_filter.startswith(SHARE) or is_expression(topic_filter)

    def is_spoken(self, version: int) -> bool:
        spoken = self._version()
        return not spoken or version <= spoken

    def has_companion(self, client_id: bytes) -> bool:
        return self._prefix + client_id in self._broker.sessions

    def open(self, wish: Wish, output: ExtendedClient, *, clean: bool) -> Connection:
        # The client's pings go elsewhere.
        here = replace(wish.without_will().named(self._prefix + wish.client_id), keep_alive_s=0)
        is_lasting = not wish.is_transient
        if clean and is_lasting and wish.version != MQTT_5 and self.has_companion(wish.client_id):
            # 3.1.1 has no other way to begin a lasting session with nothing in it.
            self._broker.lifecycle.end_session(self._broker.sessions[here.client_id])
        is_clean = clean if wish.version == MQTT_5 else not is_lasting
        return self._opened(here, output, is_clean)

    def open_wholly(self, wish: Wish, output: ExtendedClient) -> Connection:
        return self._opened(wish.named(self._prefix + wish.client_id), output, wish.clean)

    def _opened(self, here: Wish, output: ExtendedClient, clean: bool) -> Connection:
        connection = self._broker.accept(output, self._peer)
        connection.feed(here.connect(clean=clean, expiry_s=here.expiry_s, window=0))
        return connection
