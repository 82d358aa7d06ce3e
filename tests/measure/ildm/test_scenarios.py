"""Scenarios, their sp-ratio and the model: the numbers of the paper's section 6 that a placement decides."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sterna.measure.errors import MeasurementError
from sterna.measure.ildm.model import Costs, latency_transfers, limit, node_loads, transfers
from sterna.measure.ildm.scenario import Scenario, built_in, read_scenario

PATTERNS = ("B", "C", "D")


@pytest.mark.parametrize("name", ["single", "A", *PATTERNS])
def test_every_pattern_has_the_papers_clients(name: str) -> None:
    scenario = built_in(name)
    assert set(scenario.publishers.values()) == set(scenario.subscribers.values()) == {10}
    assert len(scenario.publishers) == 5
    assert scenario.sp_ratio == 10
    per_node: Counter[int] = Counter()
    for place in scenario.places:
        per_node[place.node] += place.publishers + place.subscribers
    assert set(per_node.values()) == {100 // scenario.nodes}
    assert scenario.latency.topic == "topic6"


def test_the_placements_are_those_of_section_6_4() -> None:
    shapes = {name: Counter((p.node, p.publishers, p.subscribers) for p in built_in(name).places) for name in PATTERNS}
    for node in range(1, 6):
        assert shapes["B"][node, 2, 2] == 5
        assert shapes["C"][node, 10, 10] == 1
        assert (shapes["D"][node, 8, 8], shapes["D"][node, 1, 1]) == (1, 2)


def test_transfers_are_those_of_a_row_of_five() -> None:
    assert [transfers(built_in(name), "PF") for name in PATTERNS] == pytest.approx([4, 4, 4])
    assert transfers(built_in("B"), "SF") == pytest.approx(4)
    assert transfers(built_in("C"), "SF") == 0
    # Topics 3, 4 and 5 are wanted at three nodes in a row each (2 links), topics 1 and 2 from end to end.
    assert transfers(built_in("D"), "SF") == pytest.approx((4 + 4 + 2 + 2 + 2) / 5)
    assert {latency_transfers(built_in(name), kind) for name in PATTERNS for kind in ("PF", "SF")} == {4}


@pytest.mark.parametrize(
    ("pattern", "algorithm", "ceiling"), [("B", "PF", 11 / 3), ("B", "SF", 11 / 3), ("C", "PF", 11 / 3), ("C", "SF", 5)]
)
def test_ceilings_of_the_model_where_taking_and_giving_cost_the_same(
    pattern: str, algorithm: str, ceiling: float
) -> None:
    costs = Costs(taken=1.0, given=1.0)
    alone = limit(node_loads(built_in("single"), "SF"), costs, 1.0, 1.0, "none")
    free_node = Costs(taken=1.0, given=1.0, relayed=1e-9, moved=0.0)
    row = limit(node_loads(built_in(pattern), algorithm), free_node, 1.0, 1.0, "relays")
    assert row / alone == pytest.approx(ceiling)


def test_a_slow_node_decides_the_limit() -> None:
    loads = node_loads(built_in("A"), "SF")
    costs = Costs(taken=1.0, given=1.0, relayed=10.0)
    assert limit(loads, costs, 0.5, 1.0, "relays") == pytest.approx(1e6 / 110)
    assert limit(loads, costs, 0.05, 1.0, "relays") == pytest.approx(0.05e6 / 11)


def test_a_broker_pays_for_one_more_delivery_of_what_a_node_hears_from_it() -> None:
    costs = Costs(taken=1.0, given=1.0, relayed=1e-9)

    def row(pattern: str, algorithm: str) -> float:
        return limit(node_loads(built_in(pattern), algorithm), costs, 1.0, 1.0, "hears")

    # In a row of five each broker takes all publications, gives two deliveries of each, and one of a fifth to its node.
    assert row("B", "SF") == pytest.approx(1e6 / (1 + 2 + 1 / 5))
    assert row("C", "SF") == pytest.approx(1e6 / (11 / 5)), "nobody else wants them"
    assert row("A", "SF") == pytest.approx(1e6 / 11)


PLAIN = """about = "x"
nodes = {nodes}
[latency]
topic = "{topic}"
publisher = 1
subscribers = [1]
[[place]]
node = {node}
topic = "t"
publishers = {publishers}
subscribers = {subscribers}
"""
GOOD = {"nodes": 1, "topic": "l", "node": 1, "publishers": 2, "subscribers": 3}


def written(directory: Path, **changed: object) -> Path:
    file = directory / "own.toml"
    file.write_text(PLAIN.format(**GOOD | changed))
    return file


def test_a_scenario_of_ones_own_is_read(tmp_path: Path) -> None:
    scenario = read_scenario(written(tmp_path))
    assert isinstance(scenario, Scenario)
    assert scenario.sp_ratio == 3


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"publishers": 0}, "no publication would be delivered"),
        ({"subscribers": 0}, "no publication would be delivered"),
        ({"node": 2}, "there is no node 2; use 1 to 1"),
        ({"nodes": 0}, "nodes is 0"),
        ({"publishers": -1}, "0 or more clients"),
        ({"subscribers": 20_000}, "at most 10,000"),
        ({"topic": "t"}, "t is the topic of latency"),
        ({"publishers": '"many"'}, "Expected `int`, got `str`"),
    ],
)
def test_scenarios_that_cannot_be_run_are_refused_by_name(
    tmp_path: Path, changed: dict[str, object], says: str
) -> None:
    file = written(tmp_path, **changed)
    with pytest.raises(MeasurementError, match=rf"own\.toml: .*{says}"):
        read_scenario(file)
    with pytest.raises(MeasurementError, match=r"none\.toml cannot be read"):
        read_scenario(tmp_path / "none.toml")
