"""Damaged frames from a node that has the key: its link ends, and nobody else notices.

`make soak` says 100,000 of them (`STERNA_LINK_FRAMES`).
"""

from __future__ import annotations

import gc
import os
import tracemalloc

import pytest

from node.link_mutations import Siege
from sterna.routing.strategies import STRATEGIES

FRAMES = int(os.environ.get("STERNA_LINK_FRAMES", "1500"))
SEED = int(os.environ.get("STERNA_LINK_SEED", "1"))
GROWTH_BYTES_MAX = 16 * 1024 * 1024


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_damaged_frames_end_links_and_harm_nobody(strategy: str) -> None:
    siege = Siege(strategy, SEED)
    share = FRAMES // len(STRATEGIES) + 1
    for _ in range(4):
        siege.say(share // 4 + 1)
        siege.check()
    assert siege.said >= share, f"STERNA_LINK_SEED={SEED}"
    assert siege.ended > share // 100, "most of it must have made no sense"
    siege.restart()


@pytest.mark.slow
def test_damaged_frames_take_no_memory() -> None:
    siege = Siege("subscription-flooding", SEED + 1)
    count = min(max(300, FRAMES // 10), 2000)  # its journal is in memory, and that grows
    siege.say(count)
    siege.rest()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        siege.say(count)
        siege.rest()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < GROWTH_BYTES_MAX
