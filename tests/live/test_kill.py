"""Nothing acknowledged is lost, and nothing of QoS 2 comes twice, however often the node is killed.

A real node under load from clients that come and go; SIGKILL at random moments, in the middle of checkpoints, when a
segment begins and while it starts, and now and then a SIGTERM; garbage behind the last group.  Then every message is
accounted for.

`STERNA_KILL_SEED` repeats a run (timing differs, choices do not); `STERNA_KILL_SOAK_S` goes on for that many seconds
per durability, with a new seed for every run.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .crowd import Crowd
from .nodes import LiveNode

SEED = int(os.environ.get("STERNA_KILL_SEED", "1"))
SOAK_S = float(os.environ.get("STERNA_KILL_SOAK_S", "0"))
ROUNDS = 7
KILLS_MIN = 4
PUBLISHED_MIN = 1000
"""The crowd lives on until there were so many, which on a busy machine takes more rounds."""

_NODE = """
[journal]
durability = "{durability}"
segment_bytes = 65536
[limits]
inflight = 16
"""

HOW_TO_DIE = ["any moment", "any moment", "checkpoint", "segment", "start", "asked to"]


class Killer:
    def __init__(self, node: LiveNode, dice: random.Random) -> None:
        self._node = node
        self._dice = dice
        self.kills = 0

    def run(self, crowd: Crowd) -> None:
        """Let the crowd live for a while, then kill the node under it and start it again."""
        how = self._dice.choice(HOW_TO_DIE)
        crowd.run(self._moment(how), 2.5)
        if how == "asked to":
            assert self._node.stop() == 0
        else:
            self.kill()
        if how == "start":
            self._start_in_vain()
        self._node.restart()

    def kill(self) -> None:
        self._node.kill()
        self.kills += 1
        self._leave_garbage()

    def _moment(self, how: str) -> Callable[[], bool]:
        if how == "checkpoint":
            return _changes(lambda: _state_of(self._node.directory / "data" / "sessions.sqlite-wal"), ignore_first=True)
        if how == "segment":
            return _changes(lambda: len(self._segments()))
        at = time.monotonic() + self._dice.uniform(0.05, 1.6)
        return lambda: time.monotonic() > at

    def _segments(self) -> list[Path]:
        return sorted((self._node.directory / "data" / "journal").glob("*.sterna"), key=lambda path: path.name[21:])

    def _leave_garbage(self) -> None:
        """Bytes behind the last group, as a torn write leaves them: noise, zeroes, or the beginning of a group."""
        segments = self._segments()
        if not segments or self._dice.random() < 0.4:
            return
        whole = segments[-1].read_bytes()
        torn = whole[256 : 256 + self._dice.randrange(1, 90)]
        garbage = self._dice.choice([self._dice.randbytes(self._dice.randrange(1, 5000)), bytes(4096), torn])
        with segments[-1].open("ab") as file:
            file.write(garbage)

    def _start_in_vain(self) -> None:
        """Kill a node before it is up, perhaps in the middle of its recovery."""
        command = [sys.executable, "-m", "sterna", "node", "--config", str(self._node.directory / "sterna.toml")]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                process.wait(self._dice.uniform(0.2, 0.8))
            except subprocess.TimeoutExpired:
                process.kill()
                self.kills += 1


def _state_of(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _changes(look: Callable[[], object], *, ignore_first: bool = False) -> Callable[[], bool]:
    """Holds as soon as what is looked at is no longer what it was."""
    seen = [look()]
    left = [2 if ignore_first else 1]

    def changed() -> bool:
        now = look()
        if now != seen[0]:
            seen[0] = now
            left[0] -= 1
        return left[0] <= 0

    return changed


@contextmanager
def _telling(seed: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        print(f"STERNA_KILL_SEED={seed} repeats this run")
        raise


def kill_again_and_again(directory: Path, durability: str, seed: int) -> tuple[int, int, int]:
    """One run; how often the node was killed, how many messages were published and how many delivered."""
    dice = random.Random(seed)
    node = LiveNode(directory, _NODE.format(durability=durability))
    with _telling(seed), node, Crowd([node], dice) as crowd:
        # With dice of its own, or the speed of the crowd would choose.
        killer = Killer(node, random.Random(seed))
        rounds = 0
        while rounds < ROUNDS or killer.kills < KILLS_MIN or crowd.count <= PUBLISHED_MIN:
            killer.run(crowd)
            rounds += 1
        crowd.drain()
        killer.kill()
        crowd.disperse()
        node.restart()
        crowd.drain()  # whoever comes back now must not be given anything again
        crowd.check()
        crowd.check_subscriptions()
        crowd.check_retained()
        assert not node.events("the journal is damaged")
        assert "Traceback" not in node.log()
        crowd.disperse()
        return killer.kills, crowd.count, sum(len(client.given) for client in crowd.everybody)


@pytest.mark.slow
@pytest.mark.timeout(300 + SOAK_S * 1.5)
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_every_acknowledged_message_is_accounted_for_however_often_the_node_is_killed(
    tmp_path: Path, durability: str
) -> None:
    kills, published, delivered = kill_again_and_again(tmp_path / "first", durability, SEED)
    assert kills > KILLS_MIN
    assert delivered > 4 * published > 4 * PUBLISHED_MIN
    end = time.monotonic() + SOAK_S
    runs = 1
    while time.monotonic() < end:
        more = kill_again_and_again(tmp_path / str(runs), durability, SEED + runs)
        kills, published, delivered = kills + more[0], published + more[1], delivered + more[2]
        runs += 1
    print(f"{durability}: {runs} runs, {kills} kills, {published} messages, {delivered} deliveries")
