"""The radio does what Castalia's constants say, and mobility is random waypoint."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from sterna.simulation.kernel import Kernel
from sterna.simulation.radio.medium import HEADER_BYTES, HopAcks, Medium, Station
from sterna.simulation.radio.propagation import NOISE_DBM, SENSITIVITY_DBM, Propagation, path_loss, survival
from sterna.simulation.radio.waypoint import Waypoints


class Ping(msgspec.Struct, frozen=True):
    number: int = 0
    size: int = 25


class Ear:
    def __init__(self) -> None:
        self.heard_of: list[tuple[str, Any]] = []
        self.lost: list[tuple[str, Any]] = []

    def heard(self, message: Any, sender: str) -> None:
        self.heard_of.append((sender, message))

    def undelivered(self, message: Any, to: str) -> None:
        self.lost.append((to, message))


def reception_ratio(metres: float, frame_bytes: int) -> float:
    strength = -float(path_loss(metres))
    return 0.0 if strength < SENSITIVITY_DBM else survival(strength - NOISE_DBM, 8 * frame_bytes)


@pytest.mark.parametrize(
    ("frame_bytes", "ratio", "metres"),
    [(40, 0.9, 32), (40, 0.5, 38), (40, 0.1, 43), (100, 0.9, 31), (100, 0.5, 35), (100, 0.1, 39)],
)
def test_frames_arrive_up_to_the_distances_computed_for_castalia(frame_bytes: int, ratio: float, metres: float) -> None:
    assert reception_ratio(metres - 1.6, frame_bytes) > ratio > reception_ratio(metres + 1.6, frame_bytes)


def test_the_sensitivity_is_reached_at_46_metres() -> None:
    assert -float(path_loss(46.4)) == pytest.approx(SENSITIVITY_DBM, abs=0.01)


def test_shadowing_is_frozen_has_4_db_and_differs_a_little_by_direction() -> None:
    shadowed, plain = Propagation(60, Random(1)), Propagation(60, Random(1), shadowing_db=0)
    again = Propagation(60, Random(1))
    assert np.array_equal(shadowed.dbm, again.dbm)
    assert not np.array_equal(shadowed.dbm, Propagation(60, Random(2)).dbm)
    drawn = (shadowed.dbm - plain.dbm)[np.triu_indices(len(plain.dbm), 1)]
    assert abs(drawn.mean()) < 0.1
    assert 3.9 < drawn.std() < 4.2
    both_ways = (shadowed.dbm - shadowed.dbm.T)[np.triu_indices(len(plain.dbm), 1)]
    assert 0.9 < both_ways.std() < 1.1
    assert np.array_equal(plain.dbm, plain.dbm.T)


class Air:
    """Stations in a row of cells without shadowing."""

    def __init__(self, acks: HopAcks | None, *cells: int, seed: int = 1) -> None:
        self.kernel = Kernel(seed)
        self.propagation = Propagation(110, Random(1), shadowing_db=0)
        self.medium = Medium(self.kernel, self.propagation, acks)
        self.ears = [Ear() for _ in cells]
        self.stations: list[Station] = []
        for place, (cell, ear) in enumerate(zip(cells, self.ears, strict=True)):
            station = self.medium.add(f"n{place}")
            station.cell, station.listener = cell, ear
            self.stations.append(station)


def test_the_stronger_of_two_frames_survives_from_the_computed_ratio_on() -> None:
    # n0 and n2 cannot hear each other (75 m); n1 is between them.
    bits = 8 * (HEADER_BYTES + 25)
    for cell, survives in ((2, True), (7, False)):
        air = Air(None, 0, cell, 15)
        strength, other = (air.propagation.dbm[one, cell] for one in (0, 15))
        noise = 10 ** (NOISE_DBM / 10) + 10 ** (other / 10)
        expected = survival(strength - 10 * np.log10(noise), bits)
        assert (expected > 0.99) is survives
        assert survives or expected < 0.01
        air.medium.send(air.stations[0], Ping(), None)
        air.medium.send(air.stations[2], Ping(), None)
        air.kernel.run_until(1.0)
        assert (("n0", Ping()) in air.ears[1].heard_of) is survives


def test_a_station_waits_while_it_hears_another() -> None:
    air = Air(None, 0, 1, 2)
    air.medium.send(air.stations[0], Ping(0, 100), None)
    air.kernel.run_until(0.001)
    assert air.medium.is_busy(air.stations[2])
    air.medium.send(air.stations[2], Ping(2), None)
    air.kernel.run_until(1.0)
    assert [sender for sender, _ in air.ears[1].heard_of] == ["n0", "n2"]


def test_hidden_stations_collide() -> None:
    air = Air(None, 0, 7, 14)
    air.medium.send(air.stations[0], Ping(), None)
    air.kernel.run_until(0.000_5)
    assert not air.medium.is_busy(air.stations[2])
    air.medium.send(air.stations[2], Ping(), None)
    air.kernel.run_until(1.0)
    assert air.ears[1].heard_of == []


def test_acknowledged_hops_lose_less_and_tell_what_they_lost() -> None:
    # 37.5 m: about half of the frames arrive.
    plain, acknowledged = Air(None, 0, 7), Air(HopAcks(), 0, 7)
    for air in (plain, acknowledged):
        for number in range(200):
            air.kernel.at(number * 0.1, air.medium.send, air.stations[0], Ping(number, 40), "n1")
        air.kernel.run_until(60.0)
    assert plain.ears[0].lost == [], "nobody tells the sender"
    assert len(acknowledged.ears[1].heard_of) > 1.2 * len(plain.ears[1].heard_of)
    numbers = [message.number for _, message in acknowledged.ears[1].heard_of]
    assert len(numbers) == len(set(numbers)), "a frame whose acknowledgement was lost is handed on once"
    missing = set(range(200)) - set(numbers)
    assert missing
    assert missing <= {message.number for _, message in acknowledged.ears[0].lost}
    assert acknowledged.stations[1].acks >= len(numbers)
    assert acknowledged.stations[0].frames["Ping"] > 200


def test_a_full_queue_is_told() -> None:
    air = Air(HopAcks(), 0, 1)
    for number in range(40):
        air.medium.send(air.stations[0], Ping(number), "n1")
    air.kernel.run_until(5.0)
    assert (air.stations[0].full, len(air.ears[0].lost), len(air.ears[1].heard_of)) == (8, 8, 32)


def test_waypoints_keep_speed_and_area_and_the_known_mean_way() -> None:
    walk = Waypoints(50, 100.0, 8.0, Random(3))
    last = walk.positions(0.0)
    in_the_middle = 0
    for tick in range(1, 10_000):
        now = walk.positions(tick * 0.1)
        assert float(now.min()) >= 0
        assert float(now.max()) <= 100
        steps = np.hypot(*(now - last).T)
        assert float(steps.max()) <= 0.8 + 1e-9
        in_the_middle += int((np.abs(now - 50) < 25).all(axis=1).sum())
        last = now
    assert np.mean(walk.legs_m) == pytest.approx(0.5214 * 100, rel=0.02)
    assert in_the_middle / (50 * 10_000) > 0.35, "denser in the middle than a quarter"


def test_stations_of_speed_0_stay() -> None:
    walk = Waypoints(5, 100.0, 0.0, Random(3))
    assert np.array_equal(walk.positions(0.0), walk.positions(600.0))
