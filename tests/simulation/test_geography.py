"""Where hosts are: the data is whole, links have their moments, and packets take the ways there are."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from sterna.simulation.geography import (
    BUSINESS_ISP,
    LAN,
    MOBILE_ISP,
    WLAN,
    Geography,
    LogNormalLink,
    behind,
    in_cloud,
    regions,
)


def test_the_data_has_every_pair_of_regions() -> None:
    world = Geography()
    assert len(regions()) == 20
    pairs = [(one, other) for one in regions() for other in regions() if one != other]
    latencies = [world.way(in_cloud("a", one), in_cloud("b", other))[0] for one, other in pairs]
    assert (len(latencies), min(latencies), max(latencies)) == (380, 9.36, 511.15)


@pytest.mark.parametrize(
    ("link", "mode", "mean"),
    [(LAN, 0.50, 0.515), (WLAN, 3.36, 5.18), (BUSINESS_ISP, 6.52, 7.72), (MOBILE_ISP, 22.5, 25.2)],
)
def test_links_have_their_moments(link: LogNormalLink, mode: float, mean: float) -> None:
    rng = Random(1)
    assert link.mode_ms == pytest.approx(mode, rel=0.01)
    assert link.mean_ms == pytest.approx(mean, rel=0.01)
    assert fmean(link.sample_ms(rng) for _ in range(100_000)) == pytest.approx(link.mean_ms, rel=0.02)


def test_machines_of_one_site_meet_before_its_way_out() -> None:
    world = Geography()
    one, other = behind("a", "eu-west-1", "factory", BUSINESS_ISP), behind("b", "eu-west-1", "factory", BUSINESS_ISP)
    elsewhere = behind("c", "eu-west-1", "mine", MOBILE_ISP)
    far = in_cloud("d", "us-east-1")
    assert world.way(one, other) == (0.0, (LAN, LAN))
    assert world.way(one, elsewhere) == (0.0, (LAN, BUSINESS_ISP, LAN, MOBILE_ISP))
    assert world.way(one, far) == (74.43, (LAN, BUSINESS_ISP, LAN))
    assert Geography("round-trip").way(one, far)[0] == pytest.approx(74.43 / 2)
    assert world.usual_round_trip_s(one, far) == pytest.approx(
        (74.43 + 75.66 + 2 * (0.5 + 6.52 + 0.5)) / 1000, rel=0.01
    )


def test_the_same_dice_bring_the_same_packets() -> None:
    world = Geography()
    one, other = in_cloud("a", "eu-west-1"), in_cloud("b", "us-east-1")
    first = [world.round_trip_s(one, other, Random(7)) for _ in range(3)]
    assert len(set(first)) == 1
