"""The kinds of overlay by their names in the configuration.

A new kind is a module, a row here and, if it can be tuned, its table in `[network]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sterna.overlay.mobile import MobileOverlay, mobile
from sterna.overlay.mobile_settings import MobileTuning
from sterna.overlay.neighbours import Member, OverlayMaker
from sterna.overlay.spanning_tree import SpanningTreeOverlay, spanning_tree
from sterna.overlay.static import StaticOverlay, static
from sterna.overlay.tree_settings import TreeTuning


class OverlayKind(NamedTuple):
    """One way to find neighbours."""

    configured: Callable[[Member, Any], OverlayMaker]
    """The overlay of a member, by the kind's tuning."""
    tuning: Callable[[], Any] = lambda: None
    """The default tuning."""
    table: str = ""
    """The key in `[network]` of the table with another tuning; empty: there is nothing to tune."""
    why_bind: str = ""
    """Why each node must be reachable, for links and datagrams; empty: it need not, and there are no datagrams."""

    @property
    def has_datagrams(self) -> bool:
        return bool(self.why_bind)


OVERLAYS = {
    StaticOverlay.name: OverlayKind(static),
    SpanningTreeOverlay.name: OverlayKind(
        spanning_tree, TreeTuning, table="tree", why_bind="in a tree every node may become a parent"
    ),
    MobileOverlay.name: OverlayKind(
        mobile, MobileTuning, table="mobile", why_bind="every node within reach may become a parent"
    ),
}
