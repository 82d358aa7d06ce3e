"""Asking a node to move a client, as an operator does: through its admin port."""

from __future__ import annotations

from typing import NamedTuple

from sterna.experiments.sites import Place

ASK_S = 10.0
LOOK_EVERY_S = 0.01


class Moved(NamedTuple):
    finished: float | None
    """When the source was done with it; None: it was not."""
    problem: str


def move(place: Place, token: str, client: str, target: str, within_s: float) -> Moved:
    """At the node that has the client; returns when that node is done with it."""
    raise NotImplementedError
