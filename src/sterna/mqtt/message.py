"""One application message, as it travels from where it entered to its subscribers."""

from __future__ import annotations

from sterna.vocabulary.identity import Identity

NEVER = 0.0
"""`expires_at` of a message that does not expire."""


class Message:
    """An application message.  Topic and payload stay the bytes that came off the wire.

    A class with slots rather than a dataclass: one is made per message on the hot path.
    """

    __slots__ = (
        "expires_at",
        "identity",
        "made_of",
        "offset",
        "payload",
        "properties",
        "publisher",
        "qos",
        "received_at",
        "retain",
        "shares",
        "topic",
    )

    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: bytes = b"",
        expires_at: float = NEVER,
        publisher: bytes = b"",
        received_at: float = 0.0,
        offset: int = -1,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        #: MQTT 5 properties that travel with the message, encoded, without their length: payload format, content type,
        #: response topic, correlation data, user properties.  Never topic alias, subscription identifier or expiry.
        self.properties = properties
        #: Wall-clock second after which nobody may receive it, or NEVER.
        self.expires_at = expires_at
        #: Client id of the publisher, UTF-8.
        self.publisher = publisher
        #: Wall-clock second at which the node took it in.
        self.received_at = received_at
        #: Place in this node's journal, or -1 if it was never journalled.
        self.offset = offset
        #: Where it entered the network and as what, if that was another node.
        self.identity: Identity | None = None
        #: The source of a computed result, under a name that is the same at every node; see `result_identity.py`.
        self.made_of: Identity | None = None
        #: Which nodes' members of shared subscriptions are to have it; empty if the node of entry knew of no members.
        self.shares = b""

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {self.payload[:32]!r}, qos={self.qos}, offset={self.offset})"
