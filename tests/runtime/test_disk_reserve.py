"""Room is held back, given up once, and taken back whole."""

from __future__ import annotations

from pathlib import Path

from sterna.runtime.disk.disk_reserve import Reserve

SIZE = 256 * 1024


def test_the_room_can_be_given_up_once_and_taken_back(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "reserve", SIZE)
    assert not reserve.give_up()
    reserve.take_back()
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= SIZE
    assert reserve.give_up()
    assert not (tmp_path / "reserve").exists()


def test_what_a_killed_node_left_half_taken_is_taken_wholly(tmp_path: Path) -> None:
    (tmp_path / "reserve").touch()
    Reserve(tmp_path / "reserve", SIZE).take_back()
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= SIZE
