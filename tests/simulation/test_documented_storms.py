"""Storms that docs/network.md names because they broke a promise once, as its commands run them."""

from __future__ import annotations

import pytest

from sterna.cli.main import main

pytestmark = pytest.mark.slow

NODES_THAT_MOVE = ("--overlay", "mobile", "--strategy", "mobile", "--mobility", "waypoint")


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        *((seed, ()) for seed in (103, 173, 180)),
        *((seed, NODES_THAT_MOVE) for seed in (23, 73)),
        *((seed, ("--adaptive",)) for seed in (6, 18, 40)),
    ],
)
def test_a_storm_that_broke_a_promise_once_breaks_none(
    seed: int, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["simulate", "chaos", "--seed", str(seed), *words])
    said = capsys.readouterr().out
    assert not end.value.code, said
    assert f"seed {seed}: every promise kept" in said
