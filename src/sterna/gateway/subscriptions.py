"""The subscriptions of a client, kept in case a node has lost its session and has to be told again."""

from __future__ import annotations

from collections import defaultdict

from sterna.mqtt import packets, wire
from sterna.mqtt.packets import MQTT_5, SUBSCRIBE
from sterna.mqtt.server_packets import decode_granted

#: Filters in one SUBSCRIBE of ours.
FILTERS_PER_PACKET = 100
#: Retain handling: the client has had what is retained.
_NOTHING_RETAINED = 2 << 4
#: A filter with options as in SUBSCRIBE and subscription identifier, or None if it is given up.
Change = tuple[bytes, tuple[int, int] | None]
#: Bytes a filter costs besides its own.
_OVERHEAD = 64


class Subscriptions:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        #: filter -> options as in SUBSCRIBE, subscription identifier
        self._held: dict[bytes, tuple[int, int]] = {}
        #: More than we remember; after a lost session something would be missing.
        self.incomplete = False

    def __len__(self) -> int:
        return len(self._held)

    def answered(self, request: bytes, answer: bytes, version: int, user_properties_max: int) -> list[Change]:
        """A node has answered this SUBSCRIBE or UNSUBSCRIBE; `answer` is the body of what it said."""
        _, body = wire.remaining_length(request, 1, len(request))
        _, codes = decode_granted(answer, 0, len(answer), version)
        if request[0] >> 4 != SUBSCRIBE:
            gone = packets.decode_unsubscribe(request, body, len(request), version, user_properties_max).filters
            for topic_filter in gone:
                if self._held.pop(topic_filter, None) is not None:
                    self._bytes -= len(topic_filter) + _OVERHEAD
            return [(topic_filter, None) for topic_filter in gone]
        asked = packets.decode_subscribe(request, body, len(request), version, user_properties_max)
        granted: list[Change] = []
        for one, code in zip(asked.requests, codes, strict=False):
            if code < 0x80:
                options = one.qos | one.no_local << 2 | one.retain_as_published << 3
                self.add(one.topic_filter, options, asked.identifier)
                granted.append((one.topic_filter, (options, asked.identifier)))
        return granted

    def add(self, topic_filter: bytes, options: int, identifier: int) -> None:
        if topic_filter not in self._held:
            cost = len(topic_filter) + _OVERHEAD
            if self._bytes + cost > self._bytes_max:
                self.incomplete = True
                return
            self._bytes += cost
        self._held[topic_filter] = options, identifier

    def again(self, version: int) -> list[bytes]:
        """All of it as requests: the bodies of SUBSCRIBE after the packet identifier."""
        by_identifier: defaultdict[int, list[bytes]] = defaultdict(list)
        extra = _NOTHING_RETAINED if version == MQTT_5 else 0
        for topic_filter, (options, identifier) in self._held.items():
            # A shared subscription never brings what is retained, and says nothing about it.
            by_identifier[identifier].append(wire.binary(topic_filter) + bytes((options | extra,)))
        bodies = []
        for identifier, lines in by_identifier.items():
            section = b"\x0b" + wire.variable(identifier) if identifier else b""
            head = wire.variable(len(section)) + section if version == MQTT_5 else b""
            for start in range(0, len(lines), FILTERS_PER_PACKET):
                bodies.append(head + b"".join(lines[start : start + FILTERS_PER_PACKET]))
        return bodies
