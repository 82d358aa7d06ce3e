"""A client behind a gateway is moved while messages at every QoS flow from every node: the stream comes whole, each
message once and in order, whichever way is the longest; and the checks here see it if it does not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from faulty_moves import CLIENT, FAR_S, WAYS, lengthen, ordered
from town import Town

from sterna.gateway.tether import Tether
from sterna.gateway.upstream import Upstream, UpstreamPhase
from sterna.mqtt.server_packets import Connack
from sterna.routing.router import Router
from sterna.simulation.gateway import _CountedEnd
from sterna.vocabulary.identity import Stamp, VersionVector

EVERY_S = 0.01
MESSAGES = 300

Plant = Callable[[pytest.MonkeyPatch], None]


def moved(size: int, way: str = "all near", seed: int = 1) -> Town:
    """A message from each node every few milliseconds, and a move in the midst of them."""
    town = Town(size, "subscription-flooding", "static", seed=seed, gateway=True)
    lengthen(town, way)
    town.begin()
    town.scene.run(1.0)
    for publisher in town.publishers.values():
        for number in range(MESSAGES):
            town.scene.kernel.after(EVERY_S * number, publisher.publish, b"t/%d" % (number % 3), number % 3)
    town.scene.run(1.0)
    ordered(town)
    town.scene.run(EVERY_S * MESSAGES + 10.0)  # a publisher that is far away takes a while to say all of it
    there = town.machine("node2").running
    assert there is not None
    assert CLIENT.encode() in there.broker.sessions
    return town


def published(town: Town, name: str, qos: int) -> list[str]:
    found = town.scene.records.publications.values()
    return [one.identity for one in found if one.publisher == f"{name}p" and one.qos == qos]


def came(town: Town, name: str, qos: int) -> list[str]:
    known = town.scene.records.publications
    found = town.scene.records.arrivals[CLIENT]
    return [one.identity for one in found if one.qos == qos and known[one.identity].publisher == f"{name}p"]


def wrong(town: Town) -> set[str]:
    """Of streams: a gap, a duplicate, a reordering."""
    found = set()
    for name in town.names:
        for qos in range(3):
            sent, heard = published(town, name, qos), came(town, name, qos)
            assert len(sent) == MESSAGES // 3
            if set(sent) - set(heard):
                found.add("gap")
            if len(set(heard)) < len(heard):
                found.add("duplicate")
            places = [sent.index(one) for one in dict.fromkeys(heard)]
            if places != sorted(places):
                found.add("reordering")
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)])
def test_the_stream_comes_whole_and_once_at_every_qos(size: int, way: str) -> None:
    town = moved(size, way)
    assert wrong(town) == set()
    assert town.end() == []


def longest_silence_s(seed: int) -> float:
    town = moved(2, "nodes far from each other", seed)
    sent = set(published(town, "node1", 1))
    arrivals = [one.at for one in town.scene.records.arrivals[CLIENT] if one.identity in sent]
    return max(after - before for before, after in pairwise(arrivals))


@pytest.mark.slow
def test_no_silence_is_longer_than_what_a_message_takes() -> None:
    """Only the way changes, by one more link; disks and jitter take their time besides, now and then as much again."""
    found = sorted(longest_silence_s(seed) for seed in range(1, 8))
    assert found[3] < 3 * EVERY_S + 1.2 * FAR_S
    assert found[-1] < 3 * EVERY_S + 3 * FAR_S


def new_node_is_heard_at_once(patch: pytest.MonkeyPatch) -> None:
    """Before the last packets of the old one have come."""

    def answered(tether: Tether, upstream: Upstream, welcome: Connack) -> None:
        upstream.live()
        tether._welcome = welcome
        tether.switch()

    patch.setattr(Tether, "_answered_there", answered)


def packets_before_the_switch_are_dropped(patch: pytest.MonkeyPatch) -> None:
    honest = Tether.said

    def said(tether: Tether, upstream: Upstream, data: bytes) -> None:
        if upstream is tether.prepared and upstream.phase == UpstreamPhase.LIVE:
            return
        honest(tether, upstream, data)

    patch.setattr(Tether, "said", said)


def new_node_is_passed_on_at_once(patch: pytest.MonkeyPatch) -> None:
    honest = Tether.said

    def said(tether: Tether, upstream: Upstream, data: bytes) -> None:
        if upstream is tether.prepared and upstream.phase == UpstreamPhase.LIVE:
            tether._client.to_client(data)
            return
        honest(tether, upstream, data)

    patch.setattr(Tether, "said", said)
    patch.setattr(_CountedEnd, "pause_reading", lambda end: None)


def loose_off_by(sequence: int) -> Plant:
    honest = Router.loose_vector

    def loose_vector(router: Router) -> VersionVector:
        return {origin: Stamp(epoch, number + sequence) for origin, (epoch, number) in honest(router).items()}

    return lambda patch: patch.setattr(Router, "loose_vector", loose_vector)


PLANTED: list[tuple[Plant, str, str]] = [
    (new_node_is_heard_at_once, "gateway far from the old node", "gap"),
    (packets_before_the_switch_are_dropped, "gateway far from the old node", "gap"),
    (new_node_is_passed_on_at_once, "gateway far from the old node", "reordering"),
    (loose_off_by(-3), "nodes far from each other", "duplicate"),
    (loose_off_by(3), "nodes far from each other", "gap"),
]


@pytest.mark.parametrize(("plant", "way", "claim"), PLANTED)
def test_a_fault_is_seen(monkeypatch: pytest.MonkeyPatch, plant: Plant, way: str, claim: str) -> None:
    plant(monkeypatch)
    assert claim in wrong(moved(2, way))
