"""When nodes agree on a tree, whom to kill, and what the table says of it."""

from __future__ import annotations

import io
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from sterna.measure.harness.sites import NodePlace
from sterna.measure.harness.trees import NodeView, is_tree, is_whole, read_view
from sterna.measure.papers.convergence import report as convergence_report
from sterna.measure.papers.convergence.experiment import (
    FAR_S,
    NEAR_S,
    ConvergenceEvent,
    ConvergencePlan,
    ConvergenceRun,
    choose,
    delay_s,
    settings,
)

PARENTS = {"a": "", "b": "a", "c": "a", "d": "b"}


def views(parents: dict[str, str], root: str = "a", synced: bool = True) -> dict[str, NodeView]:
    links: dict[str, set[str]] = {name: set() for name in parents}
    for name, parent in parents.items():
        if parent:
            links[name].add(parent)
            links.setdefault(parent, set()).add(name)
    return {
        name: NodeView(root, parent, frozenset(links[name]), frozenset(parents) - {name} if synced else frozenset())
        for name, parent in parents.items()
    }


def changed(name: str, **fields: Any) -> dict[str, NodeView]:
    found = views(PARENTS)
    return found | {name: replace(found[name], **fields)}


def test_a_tree_stands_when_all_agree_and_its_links_are_up() -> None:
    assert is_tree(views(PARENTS))
    assert is_whole(views(PARENTS))
    assert not is_whole(views(PARENTS, synced=False))


@pytest.mark.parametrize(
    "broken",
    [
        changed("d", root="b"),
        changed("d", parent=""),
        changed("d", parent="x", links=frozenset("x")),
        changed("d", links=frozenset()),
        changed("d", links=frozenset("bc")),
        changed("b", parent="d"),
        views(PARENTS, root="x"),
        {name: view for name, view in views(PARENTS).items() if name != "a"},
    ],
)
def test_anything_less_is_no_tree(broken: dict[str, NodeView]) -> None:
    assert not is_tree(broken)


def test_a_view_is_read_from_the_page_of_a_node() -> None:
    page = {
        "overlay": {"root": "a", "parent": None},
        "links": [{"peer": "b", "connected": True}, {"peer": "c", "connected": False}],
        "streams": {"b": "synced", "c": "fetching"},
    }
    assert read_view(page) == NodeView("a", "", frozenset("b"), frozenset("b"))


def test_an_inner_node_is_killed_and_where_there_is_none_a_leaf() -> None:
    assert choose("root", views(PARENTS)) == ("root", "a")
    assert choose("inner", views(PARENTS)) == ("inner node", "b")
    assert choose("inner", views({"a": "", "b": "a", "c": "a"})) == ("leaf", "b")


def test_two_near_hops_are_shorter_than_a_far_one_and_we_are_no_distance_away() -> None:
    assert delay_s(3, 1) == delay_s(1, 3) == NEAR_S
    assert delay_s(3, 0) == FAR_S > 2 * NEAR_S
    assert delay_s(5, 3) == delay_s(3, 5) == 0.0


def event(what: str, tree_s: float, ready_s: float = 0.0) -> ConvergenceEvent:
    return ConvergenceEvent(what=what, victim="a", ready_s=ready_s, tree_s=tree_s, whole_s=tree_s + 0.1, final_s=tree_s)


def report() -> convergence_report.ConvergenceDocument:
    runs = [
        ConvergenceRun(
            events=[event("start", 2.5, 2.25), event("root killed", 1.0)], published=10, delivered=50, lost=0
        ),
        ConvergenceRun(
            events=[event("start", 3.5, 3.0), event("root killed", 2.0)],
            published=10,
            delivered=49,
            lost=1,
            missing={"a -> b": 1},
        ),
    ]
    return convergence_report.document(ConvergencePlan(runs=2, at_a_distance=False), "sterna 1", "somewhere", runs)


def test_a_start_is_told_from_the_launch_and_from_the_moment_programs_are_loaded() -> None:
    start, loaded, killed = report().rows
    assert (start.what, start.tree.mean, start.reached) == ("start", 3.0, False)
    assert (loaded.what, loaded.tree.mean, loaded.reached) == ("start, programs loaded", 0.375, True)
    assert (killed.tree.mean, killed.tree.least, killed.tree.greatest, killed.reached) == (1.5, 1.0, 2.0, True)
    assert killed.tree.deviation == pytest.approx(0.7071, abs=1e-4)


@pytest.mark.parametrize(
    ("what", "target"),
    [("root killed", 3.0), ("root frozen", 4.0), ("inner node cut off", 4.0), ("root back, was frozen", None)],
)
def test_silence_is_given_a_second_more_than_a_death_that_is_told(what: str, target: float | None) -> None:
    run = ConvergenceRun(events=[event(what, 3.5)], published=1, delivered=5, lost=0)
    (row,) = convergence_report.document(ConvergencePlan(at_a_distance=False), "", "", [run]).rows
    assert (row.target, row.reached) == (target, None if target is None else target == 4.0)


def test_nodes_get_a_group_or_addresses_never_both(tmp_path: Path) -> None:
    places = [NodePlace("127.0.0.1", 1, 7001, 3), NodePlace("127.0.0.1", 4, 7002, 6)]
    for multicast, group in ((True, "239.255.83.84:7884"), (False, "")):
        plan = ConvergencePlan(at_a_distance=False, multicast=multicast)
        told = tomllib.loads(settings(plan, "node-0", True, places, places[0], tmp_path, group))["network"]
        assert told["tree"]["multicast"] == group
        assert told["neighbours"] == ([] if multicast else ["127.0.0.1:7002"])


def test_cables_are_cut_only_where_there_are_some() -> None:
    assert "cut off" not in ConvergencePlan(at_a_distance=False).deaths
    assert ConvergencePlan(at_a_distance=True).deaths == ("killed", "frozen", "cut off")


def test_the_table_stands_beside_the_papers_figures_and_says_what_was_lost() -> None:
    out = io.StringIO()
    convergence_report.report(report()).as_table(Console(file=out, width=160))
    for words in ("18 to 20", "50 to 60", "20 messages acknowledged", "1 lost", "Lost in run 2: a -> b 1"):
        assert words in out.getvalue()


def test_the_document_for_machines_can_be_read_back() -> None:
    assert msgspec.json.decode(msgspec.json.encode(report()), type=convergence_report.ConvergenceDocument) == report()


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    convergence_report.report(report()).as_plot(tmp_path / "convergence.png")
    assert (tmp_path / "convergence.png").read_bytes().startswith(b"\x89PNG")
