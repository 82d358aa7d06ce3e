"""What the bench of moving clients counts, and what it says of it; and the whole of it once, small."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from sterna.measure.load.movers import HeardMessage
from sterna.measure.workloads.migration import report as migration_bench_report
from sterna.measure.workloads.migration.crowd import (
    CONNECT_AGAIN,
    TURN_UP,
    CrowdMeasured,
    CrowdPhase,
    CrowdPlan,
    DeliveryAccount,
    PhaseLatency,
    SessionMemory,
    accounted,
    measure,
    percentiles,
)


def heard(*numbers: int) -> list[HeardMessage]:
    return [HeardMessage(0.0, "t", f"{number} 0.0".encode(), 1, False, ("", 0)) for number in numbers]


def test_what_is_lost_comes_twice_or_is_overtaken_is_counted() -> None:
    assert accounted(heard(1, 2, 3), 3) == (0, 0, 0)
    assert accounted(heard(1, 3), 4) == (2, 0, 0)
    assert accounted(heard(1, 2, 1, 2, 3), 3) == (0, 2, 0)
    assert accounted(heard(2, 1, 3), 3) == (0, 0, 1)


def test_percentiles_of_much_and_of_nothing() -> None:
    told = percentiles([float(number) for number in range(1000)])
    assert (told.messages, told.p50_ms, told.p99_ms, told.max_ms) == (1000, 500, 990, 999)
    assert percentiles([]).p99_ms == 0


def phase(what: str, per_s: float, p99_ms: float, *, at_once: bool) -> CrowdPhase:
    waits = [PhaseLatency(messages=9, p50_ms=1, p99_ms=value, max_ms=value) for value in (p99_ms, 10.0)]
    return CrowdPhase(what=what, at_once=at_once, seconds=1, per_s=per_s, movers=waits[0], stayers=waits[1])


def report(**lost: int) -> migration_bench_report.CrowdDocument:
    phases = [
        *(phase(CONNECT_AGAIN, speed, 20, at_once=True) for speed in (900, 1000, 1100)),
        *(phase(TURN_UP, speed, 80, at_once=True) for speed in (200, 250, 900)),
        phase(TURN_UP, 25, 40, at_once=False),
    ]
    account = {"qos": 1, "sent": 100, "lost": 0, "duplicated": 0, "reordered": 0, **lost}
    memory = SessionMemory(opened=5.0, arrived=7.0, grown=0.01)
    measured = CrowdMeasured(phases=phases, memory=memory, accounts=[DeliveryAccount(**account)], anew=0)
    return migration_bench_report.document(CrowdPlan(), "sterna 1", {"cpu": "c", "cores": 2, "python": "3"}, measured)


def test_speed_is_told_beside_that_of_the_peer_and_waiting_beside_those_who_stay() -> None:
    peer, moved = report().rows
    assert (peer.what, peer.ratio) == (CONNECT_AGAIN, 1.0)
    assert (moved.per_s, moved.ratio, moved.added_p99_ms, moved.crowded_p99_ms) == (250, 0.25, 30, 80)
    out = io.StringIO()
    migration_bench_report.report(report()).as_table(Console(file=out, width=160))
    for words in ("0.25", "30 ms", "7.0 KiB where it was moved to", "QoS 1: 100 sent, 0 lost"):
        assert words in " ".join(out.getvalue().split())
    assert msgspec.json.decode(msgspec.json.encode(report()), type=migration_bench_report.CrowdDocument) == report()


def test_a_broken_promise_is_a_failure() -> None:
    assert not report(duplicated=3).failed
    assert report(lost=1).failed
    assert report(qos=0, duplicated=1).failed
    assert not report(qos=0, lost=5).failed
    assert report(reordered=1).failed


@pytest.mark.slow
def test_a_small_crowd_moves_and_every_message_is_accounted_for() -> None:
    found = measure(CrowdPlan(clients=12, stayers=3, messages_per_s=60, pace=20.0, rounds=1, forgotten_s=0.1), print)
    assert {one.what for one in found.phases} >= {CONNECT_AGAIN, TURN_UP}
    assert found.anew == 0
    for one in found.accounts:
        assert one.sent > 0
        assert not one.reordered
        assert not (one.qos and one.lost)
        assert not (one.qos != 1 and one.duplicated)
