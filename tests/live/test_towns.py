"""A playbook of the experiments with real processes: one crowd, far from the cloud, comes and goes."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from sterna.adaptation.picture import WorkerNodeState
from sterna.adaptation.settings import AdaptationTuning
from sterna.measure.harness.sites import may_be_at_a_distance
from sterna.measure.papers.emma.analysis import CrowdVisit, visits
from sterna.measure.papers.emma.live_town import LiveTown
from sterna.measure.papers.emma.playbooks import CENTRAL, EAST, Crowd, Playbook, PlaybookEvent
from sterna.measure.papers.emma.records import RunRecords
from sterna.simulation.geography import in_cloud

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not may_be_at_a_distance(), reason="network namespaces need root"),
]

GATEWAYS = ("far/g0", "far/g1")
CALM_S = 3.0


def visit(leave_s: float) -> Playbook:
    workers = [
        PlaybookEvent(0.0, "worker", "cloud", in_cloud("cloud", CENTRAL), site=CENTRAL, fixed=True),
        PlaybookEvent(0.0, "worker", "edge", in_cloud("edge", EAST), site=EAST),
    ]
    crowd = Crowd(EAST, publishers=2, subscribers=1, per_s=5.0)
    comes = [PlaybookEvent(0.0, "gateway", name, in_cloud(name, EAST), crowd) for name in GATEWAYS]
    leaves = [PlaybookEvent(leave_s, "leave", name) for name in GATEWAYS]
    return Playbook("a visit", (*workers, *comes, *leaves), (0.0, leave_s), 2 * leave_s)


def played(directory: Path, leave_s: float) -> tuple[RunRecords, CrowdVisit]:
    directory.mkdir()
    tuning = AdaptationTuning(calm_s=CALM_S, young_s=CALM_S, up=50.0, down=25.0)
    run = LiveTown(visit(leave_s), tuning, "coordinates", 1, print).run(directory)
    (found,) = visits(run)
    print(found, run.account)
    return run, found


def test_a_crowd_gets_a_node_and_loses_it_and_nothing_else(tmp_path: Path) -> None:
    """A machine that has too little time for a short visit gets a long one."""
    run, found = played(tmp_path / "short", 40.0)
    if found.served_s is None or found.off_s is None:
        run, found = played(tmp_path / "long", 150.0)
    assert found.served_s is not None
    assert found.off_s is not None
    assert run.account is not None
    assert run.account.published > 50
    assert run.account.delivered >= run.account.published, "both gateways hear both"
    assert (run.account.lost, run.account.twice, run.account.disconnected) == (0, 0, 0)
    assert [node for _, node in run.starts] == [node for _, node in run.stops] == ["edge"]
    nodes = [second.on.get(GATEWAYS[0]) for second in run.seconds]
    assert nodes.index("cloud") < nodes.index("edge")
    assert run.seconds[-1].states == {"cloud": WorkerNodeState.SERVING}
    assert run.seconds[-1].on == {}
    near, far = (
        [second.latency_ms[EAST] for second in run.seconds if second.latency_ms and set(second.on.values()) == {node}]
        for node in ("edge", "cloud")
    )
    assert fmean(near) < fmean(far)
    assert sum(second.traffic.management for second in run.seconds) > 0
