"""The kinds of overlay by their names in the configuration.

A new kind is a module, a row here and, if it can be tuned, its table in `[network]`.  Nobody asks for a kind by its
name: the world goes by what the row says.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

from sterna.overlay.mobile import MobileOverlay, mobile
from sterna.overlay.mobile_settings import MobileTuning
from sterna.overlay.neighbours import Member, OverlayMaker
from sterna.overlay.spanning_tree import SpanningTreeOverlay, spanning_tree
from sterna.overlay.static import StaticOverlay, static
from sterna.overlay.tree_settings import TreeTuning


class DatagramUse(StrEnum):
    """How the world carries an overlay's datagrams."""

    NONE = ""
    GROUP = "group"
    """To addresses, and to a multicast group that routers may pass on."""
    HELLOS = "hellos"
    """To addresses, and to all within reach, out of every interface."""


class OverlayKind(NamedTuple):
    """One way to find neighbours."""

    configured: Callable[[Member, Any], OverlayMaker]
    """The overlay of a member, by the kind's tuning."""
    tuning: Callable[[], Any] = lambda: None
    """The default tuning."""
    table: str = ""
    """The key in `[network]` of the table with another tuning; empty: there is nothing to tune."""
    datagrams: DatagramUse = DatagramUse.NONE
    why_bind: str = ""
    """Why each node must be reachable, for links and datagrams; empty: it need not."""
    is_fixed: bool = False
    """Neighbours are those of the configuration, and no others."""


OVERLAYS = {
    StaticOverlay.name: OverlayKind(static, is_fixed=True),
    SpanningTreeOverlay.name: OverlayKind(
        spanning_tree,
        TreeTuning,
        table="tree",
        datagrams=DatagramUse.GROUP,
        why_bind="in a tree every node may become a parent",
    ),
    MobileOverlay.name: OverlayKind(
        mobile,
        MobileTuning,
        table="mobile",
        datagrams=DatagramUse.HELLOS,
        why_bind="every node within reach may become a parent",
    ),
}
