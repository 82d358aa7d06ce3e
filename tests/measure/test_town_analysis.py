"""Records of a town: when crowds are served, and when their nodes are off."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pyarrow.parquet as pq
import pytest

from sterna.adaptation.picture import WorkerNodeState
from sterna.adaptation.settings import AdaptationTuning
from sterna.measure.papers.emma.analysis import visits
from sterna.measure.papers.emma.playbooks import CENTRAL, EAST, Crowd, Playbook, PlaybookEvent, emma
from sterna.measure.papers.emma.records import RunRecords, Second, TrafficSecond
from sterna.measure.papers.emma.town import Town
from sterna.simulation.geography import in_cloud

CLOUD, EDGE = in_cloud("cloud", CENTRAL), in_cloud("edge", EAST)
HERE = in_cloud("g1", EAST)
VISIT = Playbook(
    "a visit",
    (
        PlaybookEvent(0.0, "worker", "cloud", CLOUD, fixed=True),
        PlaybookEvent(0.0, "worker", "edge", EDGE, site=EAST),
        PlaybookEvent(1.0, "gateway", "g1", HERE, Crowd(EAST, 1, 1, 1.0)),
        PlaybookEvent(6.0, "leave", "g1"),
    ),
    (0.0, 6.0),
    10.0,
    5.0,
)
SERVING, LEAVING, STOPPING = WorkerNodeState.SERVING, WorkerNodeState.LEAVING, WorkerNodeState.STOPPING


def second(node: str = "", edge: WorkerNodeState | None = None) -> Second:
    states = {"cloud": SERVING} if edge is None else {"cloud": SERVING, "edge": edge}
    on = {"g1": node} if node else {}
    at = {"g1": HERE} if node else {}
    return Second(states, {}, TrafficSecond(), on, at, {}, 1, 0)


def visit(*seconds: Second) -> RunRecords:
    return RunRecords(VISIT, "coordinates", list(seconds), came_s={("g1", 1.0): 1.5}, left_s={("g1", 6.0): 6.25})


def test_a_crowd_is_served_when_all_of_it_is_at_nodes_of_its_site() -> None:
    run = visit(
        second(), second(), second("cloud"), second("cloud", SERVING), second("edge", SERVING),
        second("edge", SERVING), second("edge", SERVING), second("", LEAVING), second("", STOPPING), second(),
    )  # fmt: skip
    (found,) = visits(run)
    assert (found.site, found.at_s, found.leaves) == (EAST, 1.0, True)
    assert found.served_s == 4 - 1.5
    assert found.off_s == 9 - 6.25, "a node that is stopping is not off"


def test_a_crowd_that_no_node_served_and_a_node_that_stays_are_told() -> None:
    waits, stays = [second("cloud")] * 7, [second("", SERVING)] * 3
    (found,) = visits(visit(*waits, *stays))
    assert (found.served_s, found.off_s) == (None, None)


@pytest.mark.slow
def test_files_say_what_the_records_say(tmp_path: Path) -> None:
    """The latency of a second is the mean over its rows, by messages."""
    run = Town(emma(scaled=True, step_s=10.0, size=1), AdaptationTuning(), "coordinates", 1, keep=True).run().records
    run.write(tmp_path)
    rows = pq.read_table(tmp_path / "topics").to_pylist()
    last = max(number for number, second in enumerate(run.seconds) if second.latency_ms)
    for topic, latency_ms in run.seconds[last].latency_ms.items():
        of_topic = [row for row in rows if (row["second"], row["topic"]) == (last, topic)]
        assert fmean([row["latency_ms"] for row in of_topic], [row["messages"] for row in of_topic]) == pytest.approx(
            latency_ms
        )
    gateways = pq.read_table(tmp_path / "gateways").to_pylist()
    assert {row["gateway"]: row["node"] for row in gateways if row["second"] == last} == run.seconds[last].on
    nodes = pq.read_table(tmp_path / "nodes").to_pylist()
    assert sum(row["runs"] for row in nodes if row["second"] == last) == run.seconds[last].nodes
    assert {row["run"] for row in nodes} == {run.name}
