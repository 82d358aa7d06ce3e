"""Records of a town: when crowds are served, what clients are owed, and where hosts are."""

from __future__ import annotations

from pathlib import Path
from random import Random
from statistics import fmean

import pyarrow.parquet as pq
import pytest

from sterna.adaptation.picture import WorkerNodeState
from sterna.adaptation.settings import AdaptationTuning
from sterna.measure.papers.emma.analysis import PlainAnalysis, visits
from sterna.measure.papers.emma.live_crowd import TownBooks
from sterna.measure.papers.emma.live_places import LivePlaces
from sterna.measure.papers.emma.live_report import are_kept, live_targets
from sterna.measure.papers.emma.plans import emma_plans, factories_plans, nearest
from sterna.measure.papers.emma.playbooks import CENTRAL, EAST, Crowd, Playbook, PlaybookEvent, emma, factories
from sterna.measure.papers.emma.records import RunRecords, Second, TownAccount, TrafficSecond
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
    targets = {one.what.split(",")[0]: one.verdict for one in live_targets([], visit(*waits, *stays), 1.0)}
    assert targets["a node beside a new crowd serves all of it after"] == "missed"
    assert targets["it is off after the crowd has left"] == "missed"


@pytest.mark.parametrize("broken", ["lost", "twice", "disconnected"])
def test_a_broken_promise_is_a_failure(broken: str) -> None:
    run = visit()
    run.account = TownAccount(published=5, delivered=5)
    assert are_kept([run])
    run.account = TownAccount(published=5, **{broken: 1})
    assert not are_kept([run])
    assert "missed" in [one.verdict for one in live_targets([run], visit(second()), 1.0)[2:]]


def test_whoever_measures_everything_is_at_the_nearest_node_that_serves() -> None:
    run = visit(second("cloud"), second("cloud", SERVING), second("cloud", LEAVING))
    assert [one.on["g1"] for one in nearest(run).seconds] == ["cloud", "edge", "cloud"]
    assert PlainAnalysis().same_choice(nearest(run), run) == 0, "the first seconds of a step count for nothing"


def test_a_subscriber_is_owed_what_was_begun_after_it_came_and_acknowledged_before_it_left() -> None:
    books = TownBooks(0.0)
    clock = iter(range(100))
    books.now = lambda: float(next(clock))  # type: ignore[method-assign]
    for message in (b"g p 1 1", b"g p 1 2", b"g p 1 3", b"g p 1 4"):
        books.begins("topic", message)  # at 0, 1, 2, 3
    for message in (b"g p 1 1", b"g p 1 2", b"g p 1 3"):
        books.acknowledged(message)  # at 4, 5, 6
    assert books.owed("topic", 0.5, 6.0) == {b"g p 1 2"}
    assert books.owed("topic", 0.5, 99.0) == {b"g p 1 2", b"g p 1 3"}, "the fourth was never acknowledged"
    assert books.owed("other", 0.0, 99.0) == set()


def test_hosts_of_one_network_share_a_place_and_are_as_far_as_in_the_geography() -> None:
    places = LivePlaces(factories(scaled=True, per_line=2), Random(1))
    assert places.numbers["cloud"] == 0
    assert len(places) == 1 + 9 + 3
    assert places.numbers["A/line0/g0"] == places.numbers["A/line2/g1"] != places.numbers["B/line0/g0"]
    inside = places.delay_s(places.numbers["C/line0"], places.numbers["C/line0/g0"])
    far = places.delay_s(0, places.numbers["C/line0/g0"])
    assert 0 < inside < 0.005 < 0.05 < far
    assert places.delay_s(0, len(places)) == 0, "the observer is nowhere"
    assert len(LivePlaces(emma(), Random(1))) == 4 + 3


def test_live_runs_are_the_same_playbooks_with_fewer_clients_in_less_time() -> None:
    for plans in (factories_plans, emma_plans):
        live, whole = plans(30.0)[-1], plans(None)[2 if plans is emma_plans else 1]
        assert live.playbook.end_s == whole.playbook.end_s / 2
        workers = [(one.name, one.at_s * 2) for one in live.playbook.events if one.kind == "worker"]
        assert workers == [(one.name, one.at_s) for one in whole.playbook.events if one.kind == "worker"]
        gateways = [sum(one.kind == "gateway" for one in plan.playbook.events) for plan in (live, whole)]
        assert gateways[0] < gateways[1]
        assert live.tuning.up < 100, "as much as the gateways are fewer"
    assert factories_plans(30.0)[1].tuning.calm_s == factories_plans(None)[1].tuning.calm_s / 2


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
