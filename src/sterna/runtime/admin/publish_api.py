"""Publishing by HTTP: one message in a POST, answered when it is as safe as its QoS promises.

The operator publishes: no access rule is asked, the admin port decides who may.  A message that no client could have
published is refused.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from sterna.broker.broker import Broker
from sterna.mqtt.message import NEVER, Message
from sterna.mqtt.topics import is_reserved, is_topic_name
from sterna.vocabulary.errors import SternaError

PUBLISHER = b"$http"
"""The publisher that the journal and Spark's table name."""


class CannotPublish(SternaError):
    """The order makes no message, or the node cannot keep one now."""


class PublishOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /publish."""

    topic: str
    payload: str = ""
    payload_base64: str | None = None
    """In place of `payload`, for bytes that are no text."""
    qos: Annotated[int, msgspec.Meta(ge=0, le=2)] = 1
    retain: bool = False
    expiry_s: Annotated[int, msgspec.Meta(ge=1, le=0xFFFFFFFF)] | None = None


async def publish(broker: Broker, order: PublishOrder, after_work: Callable[[], None]) -> dict[str, Any]:
    """Comes back when the journal has it; at QoS 0, when it is on its way.  May raise CannotPublish."""
    broker.at(time.monotonic())
    message = _message(broker, order)
    if message.retain and not broker.retained.has_room(message):
        raise CannotPublish("there is no room for more retained messages; see limits.retained")
    if order.qos and broker.commitments.unavailable:
        raise CannotPublish(f"the node cannot write: {broker.commitments.unavailable}; try again later")
    broker.ingress.publish(message)
    if broker.counters.observer is not None:
        broker.counters.observer.saw_one(message.topic, bytes(message.payload))
    written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    if order.qos:
        broker.commitments.when_safe(lambda is_safe: None if written.done() else written.set_result(is_safe))
    else:
        written.set_result(True)
    after_work()
    if not await written:
        raise CannotPublish("the message could not be written yet; the node tries on, so it may still be delivered")
    return {"topic": order.topic, "qos": order.qos, "retain": order.retain, "bytes": len(message.payload)}


def _message(broker: Broker, order: PublishOrder) -> Message:
    topic = order.topic.encode()
    limits = broker.limits
    if not is_topic_name(topic, limits.topic_levels, limits.topic_bytes):
        raise CannotPublish(f"{order.topic!r} is no topic: no + and #, not empty, at most {limits.topic_bytes} bytes")
    if is_reserved(topic):
        raise CannotPublish(f"{order.topic!r} is the node's own: only it publishes there")
    try:
        payload = order.payload.encode() if order.payload_base64 is None else _decoded(order)
    except binascii.Error as error:
        raise CannotPublish(f"payload_base64: {error}") from None
    expires_at = NEVER if order.expiry_s is None else broker.wall + order.expiry_s
    received_at = broker.retained.stamp(topic, broker.wall) if order.retain else broker.wall
    return Message(topic, payload, order.qos, order.retain, b"", expires_at, PUBLISHER, received_at)


def _decoded(order: PublishOrder) -> bytes:
    if order.payload:
        raise CannotPublish("say payload or payload_base64, not both")
    return base64.b64decode(order.payload_base64 or "", validate=True)
