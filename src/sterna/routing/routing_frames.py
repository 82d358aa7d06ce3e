"""The frames strategies exchange: one kind, perhaps an origin, and a list of filters.

    frame     := kind u8, [origin] (kinds 3 and 4), entry*
    origin    := length (variable byte integer), UTF-8
    entry     := shared, length (variable byte integers), bytes

    1 ADD         the neighbour's subtree wants these filters from now on
    2 REMOVE      it no longer does
    3 ADVERTISE   this origin publishes on topics these filters match
    4 WITHDRAW    it no longer does; without entries: it advertises nothing more

An entry begins with the first `shared` bytes of the entry before it, so that sorted filters are short.  A frame holds
filters of FILTER_BYTES_MAX in total, or a single longer one; longer lists become several frames.  In kinds 3 and 4 an
empty entry stands for every topic there is, those that begin with `$` included, which no MQTT filter can say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from sterna.mqtt.topics import is_topic_filter
from sterna.mqtt.wire import check_text, read_variable, variable
from sterna.routing.covering import canonical
from sterna.vocabulary.bounds import TEXT_BYTES_MAX, TOPIC_LEVELS_MAX
from sterna.vocabulary.errors import LinkProtocolError, ProtocolError

#: Filters of one frame, before they are shortened by what they share.  Also bounds what decoding can blow up to.
FILTER_BYTES_MAX = 65_536
#: Of the name of a node.
ORIGIN_BYTES_MAX = 64

#: Advertised instead of a filter: every topic, whatever it begins with.
EVERYTHING = b""


class RoutingKind(IntEnum):
    ADD = 1
    REMOVE = 2
    ADVERTISE = 3
    WITHDRAW = 4


class RoutingFrame(NamedTuple):
    kind: RoutingKind
    filters: list[bytes]
    origin: str = ""


def encode(kind: RoutingKind, filters: Iterable[bytes], origin: str = "") -> Iterator[bytes]:
    """As many frames as the filters need; without filters, one."""
    head = bytes((kind,))
    if kind in (RoutingKind.ADVERTISE, RoutingKind.WITHDRAW):
        name = origin.encode()
        head += variable(len(name)) + name
    parts, size, last = [head], 0, b""
    for topic_filter in sorted(filters):
        if size and size + len(topic_filter) > FILTER_BYTES_MAX:
            yield b"".join(parts)
            parts, size, last = [head], 0, b""
        shared = _shared(last, topic_filter)
        parts += (variable(shared), variable(len(topic_filter) - shared), topic_filter[shared:])
        size += len(topic_filter)
        last = topic_filter
    yield b"".join(parts)


def _shared(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    for place, (byte, twin) in enumerate(zip(one, other, strict=False)):
        if byte != twin:
            return place
    return min(len(one), len(other))


def decode(body: bytes) -> RoutingFrame:
    try:
        kind = RoutingKind(body[0])
        position, origin = 1, ""
        if kind in (RoutingKind.ADVERTISE, RoutingKind.WITHDRAW):
            raw, position = _read_part(body, position)
            check_text(raw)
            if len(raw) > ORIGIN_BYTES_MAX:
                raise LinkProtocolError("an advertisement of an origin whose name is too long")
            origin = raw.decode()
        frame = RoutingFrame(kind, _read_filters(body, position), origin)
    except (IndexError, ValueError):
        raise LinkProtocolError("a routing frame of unknown kind") from None
    except ProtocolError as error:
        raise LinkProtocolError(f"a routing frame that cannot be read: {error.reason}") from None
    _check(frame)
    return frame


def _read_part(body: bytes, position: int) -> tuple[bytes, int]:
    length, position = read_variable(body, position, len(body))
    if position + length > len(body):
        raise LinkProtocolError("a routing frame that ends too soon")
    return body[position : position + length], position + length


def _read_filters(body: bytes, position: int) -> list[bytes]:
    filters: list[bytes] = []
    size, last = 0, b""
    while position < len(body):
        shared, position = read_variable(body, position, len(body))
        rest, position = _read_part(body, position)
        if shared > len(last):
            raise LinkProtocolError("a filter that shares more than there is")
        last = last[:shared] + rest
        size += len(last)
        if filters and size > FILTER_BYTES_MAX:
            raise LinkProtocolError("a routing frame with too many filters")
        filters.append(last)
    return filters


def _check(frame: RoutingFrame) -> None:
    advertising = frame.kind in (RoutingKind.ADVERTISE, RoutingKind.WITHDRAW)
    if advertising and not frame.origin:
        raise LinkProtocolError("an advertisement without an origin")
    if not frame.filters and frame.kind is not RoutingKind.WITHDRAW:
        raise LinkProtocolError("a routing frame without filters")
    for topic_filter in frame.filters:
        if advertising and topic_filter == EVERYTHING:
            continue
        valid = is_topic_filter(topic_filter, TOPIC_LEVELS_MAX, TEXT_BYTES_MAX)
        if not valid or canonical(topic_filter) != topic_filter:
            raise LinkProtocolError("a routing frame with something that is not a topic filter")
        try:
            check_text(topic_filter)
        except ProtocolError:
            raise LinkProtocolError("a routing frame with a filter that is not text") from None
