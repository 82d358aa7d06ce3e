"""Each experiment once, small, with real processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sterna.measure.harness.sites import may_be_at_a_distance
from sterna.measure.papers.convergence import experiment as convergence
from sterna.measure.papers.migration import experiment as migration
from sterna.measure.papers.migration import wire_runs
from sterna.measure.papers.migration.plan import BY_NAME, MigrationPlan
from sterna.measure.papers.migration.records import read
from sterna.measure.papers.traffic import experiment as traffic
from sterna.measure.papers.traffic.systems import MOSQUITTO
from sterna.measure.wire.capture import may_capture

pytestmark = pytest.mark.slow

needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin") is None, reason="mosquitto is not installed"
)
needs_capture = pytest.mark.skipif(not may_capture(), reason="capturing packets needs root or CAP_NET_RAW")
needs_distance = pytest.mark.skipif(not may_be_at_a_distance(), reason="network namespaces need root")


@needs_mosquitto
@pytest.mark.parametrize("capture", [pytest.param(True, marks=needs_capture), False], ids=["captured", "relayed"])
def test_at_full_locality_only_bridges_forward_publications(capture: bool) -> None:
    plan = traffic.TrafficPlan(
        localities=(100,), strategies=("subscription-flooding",), overlays=("static",), rounds=1, publishers=4,
        messages=3, interval_s=0.1, capture=capture, at_a_distance=False,
    )  # fmt: skip
    ours, bridges = traffic.measure(plan, 100, 0)
    assert (ours.system, bridges.system) == ("subscription-flooding, static", MOSQUITTO)
    assert ours.delivered == ours.expected == bridges.delivered == 60
    assert ours.publish == ours.publish_packets == 0
    assert bridges.counts["PUBLISH"] == 4 * 12
    assert bridges.publish >= 48 * 32
    for side in (ours, bridges):
        assert side.publish + side.control == side.total
        assert sum(side.kinds.values()) == side.total


@needs_mosquitto
@needs_capture
def test_messages_cross_no_link_they_need_not() -> None:
    plan = traffic.TrafficPlan(
        localities=(0,), strategies=("advertisement",), rounds=1, publishers=4, messages=3, interval_s=0.1,
        capture=True, at_a_distance=False,
    )  # fmt: skip
    tree, static, bridges = traffic.measure(plan, 0, 0)
    assert tree.kinds["datagrams of the overlay"] > 0
    for ours in (tree, static):
        assert ours.delivered == ours.expected == bridges.delivered
        assert 0 < ours.publish_packets <= ours.needed_copies
        assert len(ours.cpu_percent) == len(ours.resident_mib) == 5


@needs_mosquitto
@needs_distance
def test_over_cables_every_packet_between_brokers_is_counted_and_none_of_a_client() -> None:
    plan = traffic.TrafficPlan(
        localities=(100,), strategies=("subscription-flooding",), rounds=1, publishers=4, messages=3, interval_s=0.1,
        at_a_distance=True,
    )  # fmt: skip
    tree, static, bridges = traffic.measure(plan, 100, 0)
    assert tree.kinds["datagrams of the overlay"] > 0
    assert tree.publish == static.publish == 0, "a client's PUBLISH would be one"
    assert bridges.counts["PUBLISH"] == 4 * 12
    for side in (tree, static, bridges):
        assert side.delivered == side.expected == 60
        assert sum(side.kinds.values()) == side.total
        assert all(mib > 1 for mib in side.resident_mib)


@pytest.mark.parametrize("far", [pytest.param(True, marks=needs_distance), False], ids=["at a distance", "loopback"])
def test_a_tree_forms_and_forms_again_and_nothing_is_lost(far: bool) -> None:
    run = convergence.measure(convergence.ConvergencePlan(runs=1, nodes=3, at_a_distance=far), print)
    happened = [event.what for event in run.events]
    assert happened[:3] == ["start", "root killed", "root back"]
    assert sum(what.endswith(("killed", "frozen", "cut off")) and "was" not in what for what in happened) == (
        6 if far else 4
    )
    assert len(happened) == (13 if far else 9)
    assert all(event.tree_s <= event.whole_s for event in run.events)
    assert run.published > 0
    assert (run.missing, run.lost, run.delivered) == ({}, 0, 3 * run.published)


@pytest.mark.parametrize("far", [pytest.param(True, marks=needs_distance), False], ids=["at a distance", "loopback"])
def test_clients_of_each_kind_are_moved_with_their_promises_kept(far: bool, tmp_path: Path) -> None:
    plan = MigrationPlan(experiments=(BY_NAME["synced-A0_B1_C2"],), runs=1, at_a_distance=far)
    migration.run(plan, tmp_path, print)
    moves = read(tmp_path, "moves")
    assert [(move["kind"], move["problem"], move["present"]) for move in moves] == [
        (kind, "", True) for kind in ("gateway", "mqtt5", "mqtt311")
    ]
    assert all(move["interrupted"] == 0 for move in moves), "a client behind a gateway notices nothing"
    if far:  # the client hears of it after 40 ms, and connects to the target over 10 ms, at the least
        assert all(move["arrived"] - move["ordered"] > 0.05 for move in moves)
        told = {(one["client"], one["node"]) for one in read(tmp_path, "states") if one["state"]}
        assert told == {(move["client"], node) for move in moves for node in ("source", "target")}
    sent = {(one["origin"], one["sequence"]) for one in read(tmp_path, "messages")}
    for move in moves:
        heard = [one for one in read(tmp_path, "deliveries") if one["client"] == move["client"]]
        for qos, topic in enumerate("ABC"):
            due = {one for one in sent if f"topic{topic}@" in one[0]}
            got = [(one["origin"], one["sequence"]) for one in heard if one["topic"].endswith(topic)]
            assert qos == 0 or set(got) == due
            assert qos == 1 or len(got) == len(set(got))
        assert {one["via"] for one in heard} == {"source", "target"}


@needs_distance
def test_after_a_cut_the_target_is_behind_when_the_move_begins(tmp_path: Path) -> None:
    plan = MigrationPlan(experiments=(BY_NAME["cut-A0_B1_C2"],), runs=1, kinds=("mqtt5",), at_a_distance=True)
    migration.run(plan, tmp_path, print)
    (move,) = read(tmp_path, "moves")
    assert (move["problem"], move["present"]) == ("", True)
    assert move["third"] != "synced"
    sent = {(one["origin"], one["sequence"]) for one in read(tmp_path, "messages")}
    heard = {(one["origin"], one["sequence"]) for one in read(tmp_path, "deliveries") if not one["topic"].endswith("A")}
    assert heard == {one for one in sent if "topicA@" not in one[0]}


@needs_distance
def test_the_words_of_a_move_are_counted_on_the_wire() -> None:
    plan = MigrationPlan(experiments=(), runs=1, kinds=("mqtt311",), at_a_distance=True)
    found = wire_runs.measure(plan, print)
    assert [(one.kind, one.qos) for one in found.moves] == [("mqtt311", qos) for qos in range(3)]
    for one, packets in zip(found.moves, (1, 2, 4), strict=True):
        assert {"MIGTO", "MIGSYNC", "MIGACK"} <= one.words.keys()
        assert one.packets <= sum(one.words.values())
        assert one.bytes > 66 * one.packets, "headers are counted"
        assert one.message_packets == pytest.approx(packets, rel=0.4)
    (received,) = (one for one in found.mqtt if one.name == "PUBREC")
    assert received.own_bytes == 4
    assert received.packet_bytes >= 70, "alone in its packet, or with others"
