"""The requests of readers of the feed, as types: one that does not fit is refused before anything acts on it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from sterna.runtime.feed.audit_outcomes import AuditOutcome

VERSION = 1
REQUEST_BYTES_MAX = 64 * 1024
RESULTS_BYTES_MAX = 16 * 1024 * 1024
"""Of a request that hands in results: an answer over a hundred thousand topics is a long list."""
WAIT_MS_MAX = 60_000
FILTERS_MAX = 1024

Offset = Annotated[int, Meta(ge=0, le=1 << 62)]
Instant = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]


class Introduction(Struct, frozen=True):
    version: int
    reader: str
    proof: bytes
    nonce: Annotated[bytes, Meta(max_length=64)] = b""
    """With one, the node proves in turn that it knows the token."""


class AskStatus(Struct, frozen=True, tag_field="op", tag="status"):
    wait_ms: Annotated[int, Meta(ge=0)] = 0
    beyond: Offset | None = None


class AskRead(Struct, frozen=True, tag_field="op", tag="read"):
    start: Offset
    stop: Offset
    filters: Annotated[list[str], Meta(max_length=FILTERS_MAX)] | None = None
    since_us: Instant | None = None
    until_us: Instant | None = None
    publishers: Annotated[list[str], Meta(max_length=FILTERS_MAX)] | None = None
    qos: Annotated[list[Annotated[int, Meta(ge=0, le=2)]], Meta(max_length=3)] | None = None


class AskRegister(Struct, frozen=True, tag_field="op", tag="register"):
    offset: Offset | None = None


class AskReader(Struct, frozen=True, tag_field="op", tag="reader"):
    """Where does this reader stand?"""


class AskReaders(Struct, frozen=True, tag_field="op", tag="readers"):
    """Asks for the readers that are registered."""


class AskCommit(Struct, frozen=True, tag_field="op", tag="commit"):
    offset: Offset


class AskForget(Struct, frozen=True, tag_field="op", tag="forget"):
    pass


class AskOffsetAt(Struct, frozen=True, tag_field="op", tag="offset_at"):
    time_us: Instant


class AskParquet(Struct, frozen=True, tag_field="op", tag="parquet"):
    after: int = -1


class AskSegments(Struct, frozen=True, tag_field="op", tag="segments"):
    """Between which places do records lie?"""


class AskRecords(Struct, frozen=True, tag_field="op", tag="records"):
    """Places of one segment; `start` is where a frame begins."""

    table: Literal["sessions", "deliveries"]
    start: Offset
    stop: Offset
    since_us: Instant | None = None


class AskExpressions(Struct, frozen=True, tag_field="op", tag="expressions"):
    """Which expressions are Spark's to compute?"""


class AskReach(Struct, frozen=True, tag_field="op", tag="reach"):
    """How far do so many bytes of the journal go?"""

    start: Offset
    bytes: Annotated[int, Meta(gt=0, le=1 << 40)]
    stop: Offset | None = None


class HandedOn(Struct, frozen=True, array_like=True):
    """A message that passed, but for its payload."""

    topic: Annotated[bytes, Meta(min_length=1, max_length=65535)]
    qos: Annotated[int, Meta(ge=0, le=2)]
    properties: bytes
    """Encoded, as messages have them."""
    expires_us: Instant
    """0: never."""


class Handed(Struct, frozen=True, array_like=True):
    """A result of an expression; each has a greater number than the one before it."""

    expression: bytes
    number: Annotated[int, Meta(gt=0, le=10**18 - 1)]
    payload: bytes
    message: HandedOn | None = None
    """If nothing but rules let it pass."""


class AskResults(Struct, frozen=True, tag_field="op", tag="results"):
    results: list[Handed]


class AskAudited(Struct, frozen=True, tag_field="op", tag="audited"):
    """The outcome of an audit, for people."""

    audit: AuditOutcome


Request = (
    AskStatus
    | AskRead
    | AskRegister
    | AskReader
    | AskReaders
    | AskCommit
    | AskForget
    | AskOffsetAt
    | AskReach
    | AskParquet
    | AskSegments
    | AskRecords
    | AskExpressions
    | AskResults
    | AskAudited
)

introduction = msgspec.msgpack.Decoder(Introduction)
request: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)


class Unfit(Exception):
    """A request that cannot be served; the reader is told and may ask again."""

    def __init__(self, reason: str, code: str, **fields: Any) -> None:
        super().__init__(reason)
        self.answer = {"ok": False, "reason": reason, "code": code, **fields}
