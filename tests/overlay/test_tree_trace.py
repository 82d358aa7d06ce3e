"""The same seed gives the same trace, byte for byte, in this process and in any other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tree_shape import crowd

HERE = Path(__file__).parent
STORY = "from test_tree_trace import story; print(story(11))"


def story(seed: int) -> str:
    """A crowd, a death, a partition, a return; the digest of every datagram and every event."""
    net = crowd(seed, 6)
    net.run(2.0)
    net.kill("n02")
    net.run(2.0)
    net.partition(["n00", "n01", "n03"], ["n04", "n05"])
    net.run(3.0)
    net.heal()
    net.boot("n02", 9.0)
    net.run(2.0)
    return net.digest.hexdigest()


def test_the_same_seed_tells_the_same_story() -> None:
    assert story(11) == story(11)


def test_another_seed_tells_another_story() -> None:
    assert story(11) != story(12)


def test_the_story_is_the_same_in_every_process() -> None:
    told = set()
    for hash_seed in ("0", "1", "4711"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        run = subprocess.run(
            [sys.executable, "-c", STORY], cwd=HERE, env=environment, capture_output=True, text=True, timeout=240
        )
        assert run.returncode == 0, run.stderr
        told.add(run.stdout)
    assert told == {story(11) + "\n"}
