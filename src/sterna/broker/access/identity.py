"""Values that all ways of authentication share: the credentials a client presents, and the verdicts on them."""

from __future__ import annotations

from dataclasses import dataclass, field

from sterna.mqtt.reasons import Reason

RESERVED_NAMES = frozenset({"*", "anonymous"})
"""Names that mean something else in an access list, so that no user may bear them."""


#: Client identifiers of sessions that the node itself opens for a foreign broker.  No client may have one, at any node.
FOREIGN_PREFIX = "$interwork/"
#: And of those that it opens for clients which it relays to a foreign broker; the node's name and `/` follow.
RELAYED_PREFIX = "$relayed/"


def own_name(client_id: str) -> str:
    """The client identifier that a relayed client has chosen itself; any other one as it is."""
    return client_id.split("/", 2)[2] if client_id.startswith(RELAYED_PREFIX) else client_id


class Entrance:
    """A listener, as far as it matters to who may come in.  Changed in place when the configuration is read again, so
    that it also counts for clients that are in already."""

    __slots__ = ("anonymous", "authority")

    def __init__(self, anonymous: bool = True, authority: str = "") -> None:
        self.anonymous = anonymous
        #: Tells the authorities whose client certificates it believes from others; empty: it asks for none.
        self.authority = authority


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials in a CONNECT, and what is known about the way it came."""

    client_id: str
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    certificate_name: str | None = None
    """Common name of the client certificate that TLS verified."""
    anonymous_allowed: bool = False
    """Whether the listener takes clients that show nothing."""


ANONYMOUSLY = "anonymously"
BY_CERTIFICATE = "by certificate"
BY_TOKEN = "by token"
BY_PASSWORD = "by password"
BY_HOOK = "by hook"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client is `user` (None: anonymous)."""

    user: str | None
    data: bytes = b""
    """Authentication data that closes an enhanced authentication."""
    expires_at: float | None = None
    """Wall-clock second after which the proof no longer holds; None if it has no end."""
    way: str = field(default=ANONYMOUSLY, compare=False)
    """The way it was accepted: ANONYMOUSLY, BY_CERTIFICATE, BY_TOKEN, BY_PASSWORD or BY_HOOK."""
    evidence: str = field(default="", compare=False, repr=False)
    """Tells the password entry or the token keys that vouched for it from others."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The client stays out.  `reason` is for the log, and never says which half of a credential was wrong."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Challenge:
    """Send `data` to the client in an AUTH packet and hand its answer to the exchange."""

    data: bytes


BAD_CREDENTIALS = Refused(Reason.BAD_USER_NAME_OR_PASSWORD, "bad user name or password")


def is_user_name(name: str) -> bool:
    """Whether a proven name can be used in logs, rules and files without being mistaken for something else."""
    return bool(name) and name.isprintable() and name not in RESERVED_NAMES
