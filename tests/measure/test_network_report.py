"""What a hop costs is judged by arithmetic alone; the report says where we are behind and keeps its JSON shape."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from sterna.measure.harness.comparison import RoundPlan
from sterna.measure.harness.measurement import Measurement, Summary, summarise
from sterna.measure.workloads import network
from sterna.measure.workloads.network import (
    BY_NAME,
    SHAPES,
    NetworkCell,
    NetworkDocument,
    NetworkShape,
    document,
    hops_of,
)

MACHINE: dict[str, str | int | bool] = {"cpu": "a CPU", "cores": 2, "kernel": "6", "python": "3.11", "pinned": True}


def summary(load: str, cpu_us: float, per_second: int = 1000, **changed: Any) -> Summary:
    """Brokers that used `cpu_us` for each message."""
    latency = {"latency_p50_us": cpu_us, "latency_p99_us": 10 * cpu_us} if load == "paced" else {}
    fields = {"seconds": 1.0, "delivered": per_second, "broker_cpu_s": cpu_us * per_second / 1e6, **latency, **changed}
    return summarise(BY_NAME[load].figure, [Measurement(**fields)])


def cell(load: str, shape: NetworkShape, ours: float, theirs: float, **changed: Any) -> NetworkCell:
    subject, peer = summary(load, ours, **changed), summary(load, theirs)
    return NetworkCell(load=load, nodes=shape.nodes, place=shape.place, subject=subject, peer=peer)


def rows(load: str, ours: tuple[float, float], theirs: tuple[float, float]) -> list[NetworkCell]:
    """A lone broker, and three with the subscribers at the far end."""
    alone, _, across, _, _ = SHAPES
    return [cell(load, alone, ours[0], theirs[0]), cell(load, across, ours[1], theirs[1])]


def report(*cells: NetworkCell) -> NetworkDocument:
    versions = {"sterna": "sterna 1", "mosquitto": "mosquitto 2"}
    return document(versions, MACHINE, RoundPlan(), cells)


def text(told: NetworkDocument) -> str:
    out = io.StringIO()
    network.report(told).as_table(Console(file=out, width=160))
    return out.getvalue()


def test_a_hop_is_what_a_row_costs_beyond_a_lone_broker_divided_by_the_hops() -> None:
    (hop,) = hops_of(rows("qos0", (1.0, 5.0), (5.0, 15.0)))
    assert hop.cpu_us_per_message == pytest.approx((2.0, 5.0))
    assert hop.ratio == pytest.approx(2.5)
    assert hop.verdict == "reached"
    assert hop.latency_p50_us is None


def test_a_hop_dearer_than_the_peers_is_missed_even_in_a_row_that_is_cheaper() -> None:
    told = report(*rows("qos1", (1.0, 9.0), (10.0, 16.0)))
    assert [hop.verdict for hop in told.hops] == ["missed"]
    assert "hop, qos1, 3 nodes" in told.missed


def test_latency_is_added_per_hop_too() -> None:
    (hop,) = hops_of(rows("paced", (10.0, 30.0), (10.0, 50.0)))
    assert hop.latency_p50_us == pytest.approx((10.0, 20.0))
    assert hop.latency_p99_us == pytest.approx((100.0, 200.0))


def test_a_hop_below_the_noise_has_no_ratio_but_a_verdict() -> None:
    (hop,) = hops_of(rows("qos0", (2.0, 1.9), (5.0, 15.0)))
    assert (hop.ratio, hop.verdict) == (None, "reached")


def test_what_is_on_disk_is_shown_not_judged() -> None:
    (hop,) = hops_of(rows("qos1-fsync", (1.0, 99.0), (1.0, 2.0)))
    assert hop.verdict == "shown"


def test_without_a_lone_broker_there_is_nothing_to_say_about_hops() -> None:
    assert hops_of(rows("qos0", (1.0, 5.0), (5.0, 15.0))[1:]) == []


def test_qos_1_across_three_nodes_is_judged_by_speed_and_by_cost() -> None:
    slow_but_cheap = cell("qos1", NetworkShape(3, "remote"), 10.0, 20.0, per_second=500)
    told = report(slow_but_cheap)
    assert [(one.ratio, one.verdict) for one in told.judgements] == [(0.5, "missed"), (2.0, "reached")]
    assert told.missed == ["QoS 1, 3 nodes, remote: messages per second"]


def test_a_row_that_failed_is_told_and_the_others_are_still_judged() -> None:
    told = report(
        *rows("qos0", (1.0, 5.0), (5.0, 15.0)), NetworkCell(load="qos1", nodes=5, place="remote", failure="it broke")
    )
    assert told.failed
    assert "it broke" in text(told)
    assert len(told.hops) == 1


def test_losses_and_disturbances_are_told() -> None:
    told = report(cell("qos0", NetworkShape(3, "local"), 1.0, 2.0, lost=7, broker_waited_s=0.5))
    assert "sterna: 7 deliveries lost" in text(told)
    assert "sterna on qos0, 3 nodes, local" in text(told)


def test_the_json_holds_every_cell_and_every_verdict() -> None:
    plain = json.loads(network.report(report(*rows("qos1", (1.0, 5.0), (5.0, 15.0)))).as_json())
    assert plain["benchmark"] == "network"
    assert [(one["load"], one["nodes"], one["place"]) for one in plain["cells"]] == [
        ("qos1", 1, "local"),
        ("qos1", 3, "remote"),
    ]
    assert {one["verdict"] for one in plain["hops"] + plain["judgements"]} == {"reached"}
