"""Damaged MQTT: valid conversations of both versions, and the ways bytes go wrong.

Everything follows from the generator it is given, so a seed names a conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from conformance.packets import (
    Auth,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Sent,
    Subscribe,
    Unsubscribe,
    Will,
)
from conformance.properties import Properties, varint

CLIENT_IDS = ["m1", "m2", "m3", ""]
TOPICS = ["m", "m/a", "m/a/b", "m/ä"]
FILTERS = ["m/#", "m/+", "+/a", "$share/g/m/#", "m/a/b"]


def connect(rng: Random, version: int) -> Connect:
    """A CONNECT that is let in."""
    properties: Properties = {}
    if version == 5:
        properties = {"session_expiry": rng.choice([0, 5]), "receive_maximum": rng.choice([1, 20])}
        if rng.random() < 0.3:
            properties["topic_alias_maximum"] = 3
        if rng.random() < 0.2:
            properties["maximum_packet_size"] = 60
    will = None
    if rng.random() < 0.3:
        will = Will(rng.choice(TOPICS), b"will", rng.randrange(3), rng.random() < 0.5)
    client_id = rng.choice(CLIENT_IDS)
    return Connect(client_id, not client_id or rng.random() < 0.5, rng.choice([0, 60]), will, properties=properties)


def _publish(rng: Random, version: int) -> Publish:
    properties: Properties = {}
    if version == 5 and rng.random() < 0.5:
        properties = {
            "payload_format": 1,
            "message_expiry": 9,
            "content_type": "text",
            "response_topic": "m/r",
            "correlation_data": b"\0\1",
            "user_property": [("k", "v"), ("k", "w")],
        }
    elif version == 5 and rng.random() < 0.3:
        properties = {"topic_alias": rng.randrange(1, 5)}
    qos = rng.randrange(3)
    payload = b"x" * rng.choice([0, 1, 5, 126, 200])
    return Publish(
        rng.choice(TOPICS), payload, qos, rng.random() < 0.2, False, rng.randrange(1, 9), properties=properties
    )


_PACKETS: list[Callable[[Random, int], Sent]] = [
    connect,
    _publish,
    _publish,
    _publish,
    lambda rng, version: Subscribe(rng.randrange(1, 9), [(f, rng.randrange(3)) for f in rng.sample(FILTERS, 2)]),
    lambda rng, version: Unsubscribe(rng.randrange(1, 9), rng.sample(FILTERS, 2)),
    lambda rng, version: rng.choice([Puback, Pubrec, Pubrel, Pubcomp])(rng.randrange(1, 5)),
    lambda rng, version: rng.choice([Puback, Pubrec, Pubrel, Pubcomp])(
        rng.randrange(1, 5), rng.choice([0, 0x10, 0x92]), {"reason_string": "r"}
    ),
    lambda rng, version: Pingreq(),
    lambda rng, version: Disconnect(rng.choice([0, 4]), {"session_expiry": 3}),
    lambda rng, version: Auth(0x19, {"authentication_method": "SCRAM-SHA-256", "authentication_data": b"n,,"}),
]


def packet(rng: Random, version: int) -> bytes:
    """Any packet a client may send."""
    return rng.choice(_PACKETS)(rng, version).encode(version)


def mutated(rng: Random, version: int) -> bytes:
    """A packet that went wrong in one to three places, its length repaired half of the time."""
    data = bytearray(packet(rng, version))
    for _ in range(rng.choice([1, 1, 2, 3])):
        rng.choice(_MUTATIONS)(rng, data, version)
    return with_length(bytes(data)) if rng.random() < 0.5 else bytes(data)


def with_length(data: bytes) -> bytes:
    """The same packet with a remaining length that fits: damage inside a whole packet reaches further."""
    place = 1
    while place < min(len(data), 5) and data[place] & 0x80:
        place += 1
    body = data[place + 1 :]
    return data[:1] + varint(len(body)) + body


def _flip(rng: Random, data: bytearray, version: int) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(rng: Random, data: bytearray, version: int) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])


def _insert(rng: Random, data: bytearray, version: int) -> None:
    place = rng.randrange(len(data) + 1)
    data[place:place] = rng.randbytes(rng.randrange(1, 5))


def _span(rng: Random, data: bytearray) -> slice:
    start = rng.randrange(len(data) + 1)
    return slice(start, start + rng.randrange(1, 6))


def _delete(rng: Random, data: bytearray, version: int) -> None:
    del data[_span(rng, data)]


def _duplicate(rng: Random, data: bytearray, version: int) -> None:
    span = _span(rng, data)
    data[span.start : span.start] = data[span]


def _truncate(rng: Random, data: bytearray, version: int) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _splice(rng: Random, data: bytearray, version: int) -> None:
    other = packet(rng, version)
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other)) :]


_MUTATIONS = [_flip, _overwrite, _insert, _delete, _duplicate, _truncate, _splice]


def conversations(rng: Random, mutations: int, each: int) -> Iterator[tuple[int, list[bytes]]]:
    """Version and packets of connections that send `mutations` damaged packets in all, up to `each` per connection.

    Most begin well, so that the damage is met in every state; some are damaged from the first byte.
    """
    while mutations > 0:
        version = rng.choice([4, 5])
        talk = [] if rng.random() < 0.15 else [connect(rng, version).encode(version)]
        count = min(mutations, each)
        for _ in range(count):
            talk += [packet(rng, version) for _ in range(rng.choice([0, 0, 1, 2]))]
            talk.append(mutated(rng, version))
        mutations -= count
        yield version, talk
