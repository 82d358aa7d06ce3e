"""Decides which node's members of a shared subscription get a message.

The node a message enters decides, before the message is written down, and the decision travels with it.  It names
every group that the node knows, its own included; so a reader that has a group the decision does not name knows that
the node had not heard of that group (`late_shares.py`).  Without a network there is nothing to decide, and messages at
QoS 0 that name no group belong to the node of entry.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from sterna.mqtt.message import Message
from sterna.vocabulary.errors import LinkProtocolError

#: Instead of a group, in a decision: the node of all groups that the decision had no room to name.
EVERY_OTHER = b""
#: Decisions remembered as read: most messages of a topic have one of a few.
REMEMBERED_MAX = 256


def encode_decision(decision: dict[bytes, str], *, only: bool = False) -> bytes:
    """`only`: the message is for these groups and for nobody else."""
    return msgspec.msgpack.encode((only, list(decision.items())))


#: Marks a message that is retained and delivered to nobody.
FOR_NOBODY = encode_decision({}, only=True)


@lru_cache(REMEMBERED_MAX)
def decode_decision(data: bytes) -> tuple[bool, dict[bytes, str]]:
    """The dictionary is not to be changed: it is remembered."""
    try:
        only, decided = msgspec.msgpack.decode(data, type=tuple[bool, list[tuple[bytes, str]]])
    except (msgspec.MsgspecError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise LinkProtocolError(f"not a decision about shared subscriptions: {error}") from error
    return only, dict(decided)


def is_for_shares_only(message: Message) -> bool:
    return bool(message.shares) and decode_decision(message.shares)[0]


def is_decided_for(message: Message, node: str) -> bool:
    """Are members of any group on this node to have the message?"""
    return bool(message.shares) and node in decode_decision(message.shares)[1].values()


def is_decided(message: Message, key: bytes) -> bool:
    """Does the decision say who of this group is to have the message, or that nobody is?"""
    if not message.shares:
        return False
    only, decision = decode_decision(message.shares)
    return only or key in decision or EVERY_OTHER in decision


def is_for_share(message: Message, key: bytes, node: str) -> bool:
    """Are the members of this group on this node to have the message?  A lone node has no name."""
    if message.shares:
        only, decision = decode_decision(message.shares)
        chosen = decision.get(key, decision.get(EVERY_OTHER))
        if only or chosen is not None:
            return chosen == node
    # Among others a group that is not named began after the message, or somewhere else.
    return message.identity is None and (not node or not message.qos)


def with_decision(message: Message, shares: bytes) -> Message:
    """The message, or a copy that differs in its decision."""
    if shares == message.shares:
        return message
    copy = Message(
        message.topic, message.payload, message.qos, message.retain, message.properties, message.expires_at,
        message.publisher, message.received_at, message.offset,
    )  # fmt: skip
    copy.identity, copy.made_of, copy.shares = message.identity, message.made_of, shares
    return copy
