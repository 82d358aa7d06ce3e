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
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .nodes import LiveNode
from .steadfast import Steadfast

SEED = int(os.environ.get("STERNA_KILL_SEED", "1"))
SOAK_S = float(os.environ.get("STERNA_KILL_SOAK_S", "0"))
KILLS = 7
MESSAGES_PER_S = 500
DRAIN_S = 40.0

_NODE = """
[journal]
durability = "{durability}"
segment_bytes = 65536
[limits]
inflight = 16
"""

HOW_TO_DIE = ["any moment", "any moment", "checkpoint", "segment", "start", "asked to"]


class Crowd:
    """Everybody who talks to the node, and what must have come of it."""

    def __init__(self, node: LiveNode, dice: random.Random) -> None:
        self.node = node
        self.dice = dice
        self.publishers = [
            Steadfast(f"publisher-{qos}-{version}", version, window=window)
            for qos, version, window in ((1, 4, 20), (1, 5, 5), (2, 4, 20), (2, 5, 5))
        ]
        self.readers = [
            Steadfast("reader-2-4", 4),
            Steadfast("reader-2-5", 5, receive_maximum=3),
            Steadfast("reader-1-4", 4),
            Steadfast("reader-1-5", 5, receive_maximum=20),
        ]
        self.members = [Steadfast("member-2-4", 4), Steadfast("member-2-5", 5, receive_maximum=8)]
        self.everybody = self.publishers + self.readers + self.members
        self.published: dict[str, list[bytes]] = {}
        """Topic -> payloads, in the order they were handed to their publisher."""
        self.retained: dict[str, bytes] = {}
        self.count = 0
        self._back_at = {client.client_id: 0.0 for client in self.everybody}
        self._stays = False
        for client in self.readers:
            client.subscribe("data/#", int(client.client_id[7]))
        for client in self.members:
            client.subscribe("$share/group/data/#", 2)

        # What is published before they are confirmed need not come.
        asking = self.readers + self.members
        assert self.run(lambda: not any(client.is_asking for client in asking), 20, publishing=False)

    # -- living --

    def run(self, until: Callable[[], bool], within_s: float, *, publishing: bool = True) -> bool:
        """Everybody goes about their business until something holds; False if it did not in time."""
        end = time.monotonic() + within_s
        credit, last = 0.0, time.monotonic()
        while not until():
            now = time.monotonic()
            if now > end:
                return False
            credit, last = credit + (now - last) * MESSAGES_PER_S, now
            while publishing and credit >= 1:
                credit -= 1
                self._publish_one()
            for client in self.everybody:
                self._come_or_go(client, now)
                client.pump()
            ready = [number for client in self.everybody if (number := client.fileno()) is not None]
            select.select(ready, [], [], 0.005)
        return True

    def _publish_one(self) -> None:
        publisher = self.dice.choice(self.publishers)
        if publisher.backlog > 200:
            return  # the node is away for long
        self.count += 1
        qos = int(publisher.client_id[10])
        topic = f"{publisher.client_id}/{self.dice.randrange(3)}"
        payload = b"%d" % self.count
        if self.dice.random() < 0.1:
            topic = f"state/{topic}"
            if self.dice.random() < 0.3:
                payload = b""
            self.retained[topic] = payload
            publisher.publish(topic, payload, qos, retain=True)
        else:
            self.published.setdefault(f"data/{topic}", []).append(payload)
            publisher.publish(f"data/{topic}", payload, qos)

    def _come_or_go(self, client: Steadfast, now: float) -> None:
        if client.fileno() is None:
            if now >= self._back_at[client.client_id]:
                self._back_at[client.client_id] = now + 0.05  # not too eager while the node is away
                client.connect(self.node.address)
        elif client.is_connected and not self._stays:
            if self.dice.random() < 0.002:
                client.leave() if self.dice.random() < 0.5 else client.vanish()
                self._back_at[client.client_id] = now + self.dice.choice([0.0, 0.1, 1.0])
            elif self.dice.random() < 0.01 and not client.is_asking:
                self._change_mind(client)

    def _change_mind(self, client: Steadfast) -> None:
        """Subscribe to a topic of its own, or unsubscribe from it."""
        own = f"own/{client.client_id}"
        if own in client.subscriptions:
            client.unsubscribe(own)
        else:
            client.subscribe(own, 1)

    def drain(self) -> None:
        """Nobody publishes or leaves any more; everything under way comes to its end."""
        self._stays = True
        if not self.run(self._is_done, DRAIN_S, publishing=False):
            self.check()
            idle = {client.client_id: client.is_idle for client in self.everybody}
            raise AssertionError(f"there is no end to it: {idle}")
        self._hear_all()

    def _is_done(self) -> bool:
        wanted = sum(map(len, self.published.values()))
        heard = all(len({given.payload for given in reader.given}) >= wanted for reader in self.readers)
        shared = len({given.payload for member in self.members for given in member.given}) >= wanted
        return heard and shared and all(client.is_connected and client.is_idle for client in self.everybody)

    def _hear_all(self) -> None:
        for client in self.everybody:
            client.ping()
        assert self.run(lambda: all(client.is_idle for client in self.everybody), 10, publishing=False)

    def disperse(self) -> None:
        for client in self.everybody:
            client.leave()

    # -- accounting --

    def check(self) -> None:
        for reader in self.readers:
            self._check_received(reader.client_id, [reader])
        self._check_received("the group", self.members, in_order=False)

    def _check_received(self, name: str, readers: list[Steadfast], *, in_order: bool = True) -> None:
        granted = max(readers[0].subscriptions.values())
        for topic, payloads in self.published.items():
            given = [one.payload for reader in readers for one in reader.given if one.topic == topic]
            first_times = list(dict.fromkeys(given))
            missing = [payload for payload in payloads if payload not in set(given)]
            assert not missing, f"{name} lost {missing[:5]} and {len(missing)} in all, of {topic}"
            if "publisher-2" in topic and granted == 2:
                twice = [payload for payload in first_times if given.count(payload) > 1]
                assert not twice, f"{name} got {twice[:5]} and {len(twice)} in all twice, of {topic}"
            if in_order:
                assert first_times == payloads, f"{name}: order of {topic}"

    def check_retained(self) -> None:
        visitor = Steadfast("visitor", 4)
        visitor.subscribe("state/#", 1)
        self.everybody.append(visitor)
        self._back_at["visitor"] = 0.0
        assert self.run(lambda: visitor.is_connected and visitor.is_idle, 10, publishing=False)
        visitor.ping()
        assert self.run(lambda: visitor.is_idle, 10, publishing=False)
        kept = {topic: payload for topic, payload in self.retained.items() if payload}
        assert {one.topic: one.payload for one in visitor.given} == kept

    def check_subscriptions(self) -> None:
        """What was confirmed last holds: who subscribed to its own topic hears there, who unsubscribed does not."""
        asked = [client for client in self.everybody if client not in self.members]
        for client in asked:
            self.publishers[0].publish(f"own/{client.client_id}", b"still there?", 1)
        assert self.run(lambda: self.publishers[0].is_idle, 10, publishing=False)
        self._hear_all()
        for client in asked:
            heard = any(given.payload == b"still there?" for given in client.given)
            assert heard == (f"own/{client.client_id}" in client.subscriptions), client.client_id


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
    with _telling(seed), LiveNode(directory, _NODE.format(durability=durability)) as node:
        crowd, killer = Crowd(node, dice), Killer(node, dice)
        for _ in range(KILLS):
            killer.run(crowd)
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
@pytest.mark.timeout(120 + SOAK_S * 1.5)
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_every_acknowledged_message_is_accounted_for_however_often_the_node_is_killed(
    tmp_path: Path, durability: str
) -> None:
    kills, published, delivered = kill_again_and_again(tmp_path / "first", durability, SEED)
    assert kills > KILLS // 2
    assert delivered > 4 * published > 4000
    end = time.monotonic() + SOAK_S
    runs = 1
    while time.monotonic() < end:
        more = kill_again_and_again(tmp_path / str(runs), durability, SEED + runs)
        kills, published, delivered = kills + more[0], published + more[1], delivered + more[2]
        runs += 1
    print(f"{durability}: {runs} runs, {kills} kills, {published} messages, {delivered} deliveries")
