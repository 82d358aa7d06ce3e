"""`sterna adaptation`: every question and order, at a leader, a standby and a coordinator that only rehearses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sterna.cli.main import main
from sterna.measure.harness.sites import may_be_at_a_distance

from .adaptations import LiveAdaptation, LiveProcess
from .nodes import wait_until
from .test_adaptation import WITHIN_S, Crowd

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not may_be_at_a_distance(), reason="network namespaces need root"),
]

START_OF_EDGE = "start edge (pressure"


class Operator:
    """Somebody at a shell."""

    def __init__(self, output: pytest.CaptureFixture[str]) -> None:
        self._output = output

    def says(self, coordinator: LiveProcess, *words: str, status: int = 0) -> str:
        """The output of `sterna adaptation`; that to stderr, if it is to fail."""
        self._output.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["adaptation", *words, "--admin", coordinator.admin])
        said = self._output.readouterr()
        assert (end.value.code or 0) == status, said.err
        return said.err if status else said.out

    def reads(self, coordinator: LiveProcess, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.says(coordinator, *words, "--json"))
        return found


@pytest.fixture
def operator(capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(capsys)


@pytest.fixture
def town(tmp_path: Path) -> Iterator[LiveAdaptation]:
    with LiveAdaptation(tmp_path) as town:
        yield town


def leads(coordinator: LiveProcess) -> Callable[[], bool]:
    return lambda: bool(coordinator.status()["leads"])


def is_left_alone(coordinator: LiveProcess, why: str) -> Callable[[], bool]:
    """It would start the node at the edge, and says why it does not."""
    return lambda: any(
        one["decision"].startswith(START_OF_EDGE) and one["not_ordered"] == why
        for one in coordinator.status()["decisions"]
    )


def test_a_dry_run_answers_every_question_and_orders_nothing(town: LiveAdaptation, operator: Operator) -> None:
    one = town.coordinator("one", "act = false")
    crowd = Crowd(town)
    try:
        wait_until(is_left_alone(one, "dry run"), "the leader would start a node at the edge", WITHIN_S)
        crowd.fall_silent()

        said = operator.says(one, "status").splitlines()
        assert said[0].startswith("coordinator one leads, region ")
        assert said[1] == "dry run: it gives no orders"
        assert said[2].split() == ["cloud", "serving", "fixed", "2", "gateways,", "0", "others"]
        assert said[3].split() == ["edge", "off", "0", "gateways,", "0", "others"]
        assert said[4] == "2 gateways, 0 of them at no known node"
        assert any(START_OF_EDGE in line and line.endswith("  not ordered: dry run") for line in said[5:])
        assert not operator.reads(one, "status")["acts"]

        first, *rest = operator.says(one, "pressure").splitlines()
        assert first == "model seed, up 2, down 1"
        assert [line.split()[:2] for line in rest] == [["edge", "off"], ["cloud", "runs"]]
        pressure = operator.reads(one, "pressure")
        assert pressure["workers"]["edge"] > pressure["up"]
        assert pressure["nodes"] == {"cloud": None}, "the last node's worth has no bound"

        assert operator.says(one, "explain", "edge").splitlines()[0] == "worker edge: off"
        assert any(told.startswith(START_OF_EDGE) for told in operator.reads(one, "explain", "edge")["decisions"])
        assert operator.says(one, "explain", "g1").splitlines()[0] == "gateway g1: cloud"
        nearest = operator.reads(one, "explain", "g1")["nearest"]
        assert [(row["worker"], row["state"], row["measured"]) for row in nearest] == [
            ("edge", "off", True),
            ("cloud", "serving", True),
        ]
        assert "worker or gateway 'g7'" in operator.says(one, "explain", "g7", status=1)

        near, far = (operator.reads(one, "distance", "g1", name) for name in ("edge", "cloud"))
        assert near["measured_ms"] < far["measured_ms"]
        assert f"measured {far['measured_ms']:g} ms" in operator.says(one, "distance", "g1", "cloud")
        assert operator.reads(one, "distance", "cloud", "g1")["measured_ms"] == far["measured_ms"]
        assert operator.says(one, "distance", "edge", "cloud").endswith(", not measured\n")
        assert "worker or gateway 'g7'" in operator.says(one, "distance", "g7", "edge", status=1)

        assert one.status()["orders"] == []
        assert town.edge.state() == "off"
        assert town.cloud.status()["gateways"] == ["g1", "g2"]
    finally:
        crowd.leave()


def test_a_freeze_holds_under_the_next_leader_until_it_is_taken_back(town: LiveAdaptation, operator: Operator) -> None:
    one = town.coordinator("one")
    wait_until(leads(one), "the first one leads", WITHIN_S)
    two = town.coordinator("two")
    wait_until(lambda: two.status()["leader"] == "one", "the second one has heard it", WITHIN_S)

    assert operator.says(two, "status").startswith("coordinator two stands by; one leads")
    for order in ("freeze", "thaw"):
        assert "coordinator one leads: give the order there" in operator.says(two, order, status=1)
    assert not one.status()["frozen"]

    assert operator.says(one, "freeze") == "frozen: nothing changes until `sterna adaptation thaw`\n"
    wait_until(lambda: two.status()["frozen"], "the one that stands by has heard of it", WITHIN_S)
    crowd = Crowd(town)
    try:
        wait_until(is_left_alone(one, "frozen"), "the leader would start a node at the edge", WITHIN_S)
        one.kill()
        wait_until(leads(two), "the second one leads", WITHIN_S)
        wait_until(is_left_alone(two, "frozen"), "it would start a node, too", WITHIN_S)
        assert "\nfrozen: nothing changes\n" in operator.says(two, "status")
        assert (two.status()["acts"], two.status()["orders"], town.edge.state()) == (False, [], "off")

        assert operator.says(two, "thaw") == "the coordinator acts again\n"
        wait_until(lambda: town.edge.state() == "serving", "a node runs at the edge", WITHIN_S)
        crowd.fall_silent()
        crowd.check()
    finally:
        crowd.leave()
