"""Nothing acknowledged is lost, and nothing of QoS 2 comes twice, whichever node of a network is killed.

Clients at all nodes publish, listen and share while nodes are killed with SIGKILL, stay away for a moment and come
back, each position in turn: at the end of a branch, in the middle of one, at the root.  Then every message is accounted
for.

`STERNA_NETWORK_SEED` repeats a run (timing differs, choices do not); `STERNA_NETWORK_SOAK_S` goes on for that many
seconds with other seeds, strategies and overlays.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .crowd import Crowd
from .networks import FIVE, STRATEGIES, LiveNetwork
from .nodes import START_S

SEED = int(os.environ.get("STERNA_NETWORK_SEED", "1"))
SOAK_S = float(os.environ.get("STERNA_NETWORK_SOAK_S", "0"))
MESSAGES_PER_S = 150
MESSAGES_MIN = 110
"""Published before each kill, however slowly."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180 + 2 * SOAK_S)]


def kill_and_account(
    directory: Path, overlay: str, strategy: str, victims: str, seed: int, together: int = 1
) -> tuple[int, int]:
    """One run, each victim killed in turn (or as many at once); messages published and delivered."""
    dice = random.Random(seed)
    with (
        _telling(f"STERNA_NETWORK_SEED={seed} repeats this run ({overlay}, {strategy}, {victims} by {together})"),
        LiveNetwork(directory, FIVE, strategy, overlay) as network,
        Crowd(list(network.nodes.values()), dice, MESSAGES_PER_S) as crowd,
    ):
        for first in range(0, len(victims), together):
            long_enough, enough = _passes(dice.uniform(0.2, 1.0)), crowd.count + MESSAGES_MIN
            crowd.run(lambda: long_enough() and crowd.count >= enough, START_S)  # noqa: B023
            _kill(network, victims[first : first + together], crowd, dice)
        network.wait_until_settled()
        crowd.drain()
        crowd.check()
        crowd.check_subscriptions()
        crowd.check_retained()
        network.check_logs()
        return crowd.count, sum(len(client.given) for client in crowd.everybody)


@contextmanager
def _telling(how_to_repeat: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        print(how_to_repeat)
        raise


def _kill(network: LiveNetwork, victims: str, crowd: Crowd, dice: random.Random) -> None:
    for name in victims:
        network[name].kill()
    crowd.run(_passes(dice.choice([0.1, 0.5, 3.0])), 4)  # within the patience of a link, and past it
    for name in victims:
        network[name].launch()
    assert crowd.run(lambda: all(network[name].is_up() for name in victims), START_S)


def _passes(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


@pytest.mark.parametrize(
    ("overlay", "strategy", "victims"),
    [
        ("static", "subscription-flooding", "abc"),
        ("static", "advertisement", "cba"),
        ("static", "publication-flooding", "bc"),
        ("spanning-tree", "subscription-flooding", "ea"),
        ("spanning-tree", "advertisement", "ac"),
    ],
)
def test_every_message_is_accounted_for_whichever_node_is_killed(
    tmp_path: Path, overlay: str, strategy: str, victims: str
) -> None:
    published, delivered = kill_and_account(tmp_path, overlay, strategy, victims, SEED)
    assert published > 200
    assert delivered > 4 * published


def test_every_message_is_accounted_for_when_all_nodes_are_killed_at_once(tmp_path: Path) -> None:
    published, delivered = kill_and_account(tmp_path, "static", "subscription-flooding", "abcde", SEED, together=5)
    assert delivered > 4 * published > 400


@pytest.mark.skipif(not SOAK_S, reason="STERNA_NETWORK_SOAK_S says how many seconds to go on")
def test_a_soak_of_many_kills(tmp_path: Path) -> None:
    end = time.monotonic() + SOAK_S
    runs = published = delivered = 0
    while time.monotonic() < end:
        runs += 1
        dice = random.Random(SEED + runs)
        overlay, strategy = dice.choice(["static", "spanning-tree"]), dice.choice(STRATEGIES)
        victims = "".join(dice.choices("abcde", k=6))
        together = dice.choice([1, 1, 1, 2, 3])
        if together > 1:
            victims = "".join("".join(dice.sample("abcde", together)) for _ in range(3))
        more = kill_and_account(tmp_path / str(runs), overlay, strategy, victims, SEED + runs, together)
        published, delivered = published + more[0], delivered + more[1]
    print(f"{runs} runs, {published} messages, {delivered} deliveries")
