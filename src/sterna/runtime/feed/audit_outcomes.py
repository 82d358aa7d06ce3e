"""Outcomes of audits, as the audit job hands them in and the dashboard shows them: the last ones, in one small file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from sterna.runtime.feed.cursors import replace_file
from sterna.vocabulary.errors import JournalError

KEPT = 20
WORST_MAX = 20
NODES_MAX = 256

log = logging.getLogger(__name__)

_Text = Annotated[str, Meta(max_length=1000)]
_Count = Annotated[int, Meta(ge=0, le=1 << 62)]


class AuditedSubscription(Struct, frozen=True):
    """One of those with the most to say."""

    client: _Text
    node: _Text
    filter: _Text
    qos: _Count
    expected: _Count
    delivered: _Count
    lost: _Count
    duplicated: _Count
    reordered: _Count
    violation: bool


class AuditOutcome(Struct, frozen=True):
    at: float
    """When it was done, in seconds since 1970."""
    took_s: float
    nodes: Annotated[list[_Text], Meta(max_length=NODES_MAX)]
    not_audited: Annotated[list[_Text], Meta(max_length=NODES_MAX)]
    """Nodes that note no deliveries."""
    window: _Text
    """The messages that it was about, in words."""
    subscriptions: _Count
    violations: _Count
    """Subscriptions for which the contract was broken."""
    expected: _Count
    delivered: _Count
    waiting: _Count
    dropped: _Count
    lost: _Count
    uncertain: _Count
    duplicated: _Count
    reordered: _Count
    resent: _Count
    max_ms: float | None
    worst: Annotated[list[AuditedSubscription], Meta(max_length=WORST_MAX)] = []


class AuditShelf:
    """The last outcomes, the newest last."""

    def __init__(self, path: Path | None) -> None:
        """Without a path they are gone with the process."""
        self._path = path
        self._outcomes = _read(path) if path is not None else []

    @property
    def outcomes(self) -> tuple[AuditOutcome, ...]:
        return tuple(self._outcomes)

    def add(self, outcome: AuditOutcome) -> None:
        self._outcomes = [*self._outcomes, outcome][-KEPT:]

    def write(self, outcomes: tuple[AuditOutcome, ...]) -> None:
        """From one thread at a time.  May raise JournalError."""
        if self._path is None:
            return
        try:
            replace_file(self._path, msgspec.json.encode(outcomes))
        except OSError as error:
            raise JournalError(f"{self._path}: {error.strerror}; the outcome of an audit cannot be kept") from error


def _read(path: Path) -> list[AuditOutcome]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[AuditOutcome])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("outcomes of audits are forgotten", extra={"file": str(path), "reason": str(error)})
        return []
