"""Decides which node's members of a shared subscription get a message.

The node a message enters decides, before the message is written down, and the decision travels with it.  A group that
a decision does not name belongs to the node of entry.  Without a network there is nothing to decide.
"""

from __future__ import annotations

import msgspec

from sterna.mqtt.message import Message
from sterna.vocabulary.errors import LinkProtocolError


def encode_decision(decision: dict[bytes, str], *, only: bool = False) -> bytes:
    """`only`: the message is for these groups and for nobody else."""
    return msgspec.msgpack.encode((only, list(decision.items())))


#: Marks a message that is retained and delivered to nobody.
FOR_NOBODY = encode_decision({}, only=True)


def decode_decision(data: bytes) -> tuple[bool, dict[bytes, str]]:
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


def is_for_share(message: Message, key: bytes, node: str) -> bool:
    """Are the members of this group on this node to have the message?"""
    if not message.shares:
        return message.identity is None
    only, decision = decode_decision(message.shares)
    chosen = decision.get(key)
    return chosen == node if chosen is not None else message.identity is None and not only
