"""Parts of an experiment at the same time: what they say is heard, and the first that fails ends them all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.parallel import run_side_by_side


def job(name: str, seconds: float, problem: str, talk: Callable[[str], None]) -> None:
    talk(f"{name} begins in {os.getpid()}")
    time.sleep(seconds)
    if problem == "dies":
        os._exit(3)
    if problem:
        raise MeasurementError(problem)
    talk(f"{name} ends")


def test_every_part_runs_in_a_process_of_its_own_and_is_heard() -> None:
    said: list[str] = []
    run_side_by_side(job, [(name, 0.1, "") for name in "abc"], 2, said.append)
    begun = [line.rpartition(" ")[2] for line in said if "begins" in line]
    assert len(set(begun)) == 3
    assert str(os.getpid()) not in begun
    assert sorted(line for line in said if line.endswith("ends")) == ["a ends", "b ends", "c ends"]


@pytest.mark.parametrize(("problem", "told"), [("no place", "no place"), ("dies", "ended with status 3")])
def test_one_that_fails_ends_them_all(problem: str, told: str) -> None:
    said: list[str] = []
    with pytest.raises(MeasurementError, match=told):
        run_side_by_side(job, [("a", 60.0, ""), ("b", 0.0, problem)], 2, said.append)
    assert "a ends" not in said
