"""The state of a coordinator as dashboards show it: a word in plain JSON that it says again and again.

It is for people.  Nobody acts on it, so it is not sealed; nodes keep the last one and check its form.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

WORKERS_SHOWN = 100
DECISIONS_SHOWN = 20

_Text = Annotated[str, msgspec.Meta(max_length=500)]


class ShownWorker(msgspec.Struct, frozen=True):
    worker: _Text
    site: _Text
    state: _Text
    fixed: bool
    gateways: int
    others: int
    """Clients at its node that no gateway holds."""
    cpu: float
    pressure: float | None
    """Of gateways that a node there would serve better; None: not known, or without a bound."""
    is_needed: bool
    """It is the last node of a region: its worth has no bound."""
    trouble: _Text


class ShownDecision(msgspec.Struct, frozen=True):
    seconds_ago: float
    decision: _Text
    not_ordered: _Text


class ShownCoordinator(msgspec.Struct, frozen=True):
    coordinator: _Text
    region: _Text
    leads: bool
    leader: _Text
    term: int
    acts: bool
    dry_run: bool
    frozen: bool
    model: _Text
    up: float
    """A node is started where the pressure stays above this,"""
    down: float
    """and stopped where it stays below this."""
    gateways: int
    unserved: int
    orders: int
    """Under way."""
    workers: Annotated[list[ShownWorker], msgspec.Meta(max_length=WORKERS_SHOWN)]
    lost: Annotated[list[_Text], msgspec.Meta(max_length=WORKERS_SHOWN)]
    decisions: Annotated[list[ShownDecision], msgspec.Meta(max_length=DECISIONS_SHOWN)]


_decoder = msgspec.json.Decoder(ShownCoordinator)


def to_word(shown: ShownCoordinator) -> bytes:
    return msgspec.json.encode(shown)


def from_word(word: bytes) -> ShownCoordinator | None:
    """None if it is none."""
    try:
        return _decoder.decode(word)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
