"""Do nodes agree on a tree?  Judged from the page about itself that each serves on its admin port."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sterna.measure.harness.admin import page
from sterna.measure.harness.sites import NodePlace


@dataclass(frozen=True, slots=True)
class NodeView:
    """The words of one node."""

    root: str
    parent: str
    """Empty for the root, and for a node without a way to it."""
    links: frozenset[str]
    """Neighbours it has a working connection with."""
    synced: frozenset[str]
    """Nodes of which it hears everything."""


def look(place: NodePlace, token: str = "") -> NodeView | None:
    """None if it does not answer, or not yet sensibly."""
    text = page(place.host, place.admin, "/network", token)
    try:
        return None if text is None else read_view(json.loads(text))
    except ValueError:
        return None


def read_view(told: dict[str, Any]) -> NodeView:
    overlay = told["overlay"]
    return NodeView(
        overlay.get("root") or "",
        overlay.get("parent") or "",
        frozenset(link["peer"] for link in told["links"] if link["connected"]),
        frozenset(origin for origin, state in told["streams"].items() if state == "synced"),
    )


def edges(views: dict[str, NodeView]) -> frozenset[frozenset[str]]:
    return frozenset(frozenset((name, view.parent)) for name, view in views.items() if view.parent)


def is_tree(views: dict[str, NodeView]) -> bool:
    """All name one of them as root, every way leads there, and exactly the links of the tree are up, on both sides."""
    roots = {view.root for view in views.values()}
    if len(roots) != 1 or not roots <= views.keys():
        return False
    (root,) = roots
    if any(bool(view.parent) == (name == root) for name, view in views.items()):
        return False
    if not all(_leads_to(name, root, views) for name in views):
        return False
    tree = edges(views)
    return all(
        view.links == {peer for edge in tree if name in edge for peer in edge - {name}} for name, view in views.items()
    )


def is_whole(views: dict[str, NodeView]) -> bool:
    """Everybody also hears everything of everybody else."""
    return is_tree(views) and all(views.keys() - {name} <= view.synced for name, view in views.items())


def _leads_to(name: str, root: str, views: dict[str, NodeView]) -> bool:
    for _ in views:
        if name == root:
            return True
        view = views.get(name)
        if view is None:
            return False
        name = view.parent
    return name == root


def inner_nodes(views: dict[str, NodeView]) -> list[str]:
    """Those with children, the root left out."""
    parents = {view.parent for view in views.values() if view.parent}
    return sorted(parents - {view.root for view in views.values()})


def leaves(views: dict[str, NodeView]) -> list[str]:
    return sorted(name for name, view in views.items() if len(view.links) == 1 and name != view.root)
