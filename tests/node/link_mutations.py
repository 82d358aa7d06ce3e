"""Damaged words between nodes: an honest network's frames, and the ways in which they can be changed.

Everything follows from the generator it is given, so a seed names a run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from ast import literal_eval
from pathlib import Path
from random import Random
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from conformance.packets import Will
from node.joined_nodes import JoinedNode, Town
from sterna.overlay.link import Link
from sterna.overlay.quarantine import Quarantine
from sterna.routing import router
from sterna.routing.link_frames import Frame

TESTS = Path(__file__).parents[1]
SOURCES = TESTS.parent / "src"

#: What nodes are not expected to say where a number belongs, or text.
NUMBERS = [0, 1, -1, 2, 127, 128, 255, 65535, 65536, 2**31, 2**32 - 1, 2**32, 2**48, 2**53, 2**62, 2**63, 2**64 - 1]
FLOATS = [float("nan"), float("inf"), float("-inf"), -1.0, 1e300, 1e18]
TEXTS = ["", "E", "A", "B", "nobody", "a" * 300, "\0", "\u202e", "$SYS", "../x"]
BYTES = [
    b"",
    b"\0",
    b"\xff\xfe",
    b"#",
    b"a/#/b",
    b"+",
    b"$SYS/x",
    b"$AVG/a",
    b"$share/g/#",
    b"a/" * 2000,
    b"x" * 70_000,
]

Frames = list[tuple[int, bytes]]


class Listening:
    """Notes every frame that nodes of a town hand to their routers."""

    def __init__(self, town: Town) -> None:
        self.frames: Frames = []
        for node in town.nodes.values():
            self._listen(node)

    def _listen(self, node: JoinedNode) -> None:
        frames = node.network.router.frames

        def noting(link: Link, batch: Frames) -> None:
            self.frames += batch
            frames(link, batch)

        node.network.router.frames = noting  # type: ignore[method-assign, assignment]


def conversation(strategy: str) -> Frames:
    """What three nodes say to each other while clients do a bit of everything.

    Compiled modules do not let themselves be listened to: then nodes that are not compiled say it, in another process.
    """
    if not router.__file__.endswith(".so"):
        return _heard(strategy)
    with TemporaryDirectory() as directory:
        copytree(SOURCES, directory, dirs_exist_ok=True, ignore=ignore_patterns("*.so", "__pycache__"))
        program = f"from node.link_mutations import _heard; import sys; sys.stdout.write(repr(_heard({strategy!r})))"
        path = os.pathsep.join([directory, str(TESTS), str(TESTS / "node"), str(TESTS / "broker")])
        run = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=True
        )
    frames: Frames = literal_eval(run.stdout.decode())
    return frames


def _heard(strategy: str) -> Frames:
    town = Town("ABE", strategy)
    heard = Listening(town)
    town.connect("AB", "AE")
    reader = town["A"].resume("reader")
    for topic_filter in ("t/#", "$share/g/s/+", "$AVG/n/+", "$COUNT;period=1s/n/+"):
        reader.subscribe(topic_filter, 1)
    town["B"].join("member").subscribe("$share/g/s/+", 1)
    writer = town["E"].join("writer", will=Will("t/will", b"", 1))
    for number in range(3):
        writer.publish("t/ä", b"%d" % number, number, retain=True, user_property=[("k", "v")], message_expiry=100)
        writer.publish("s/1", b"shared", number)
        writer.publish("n/1", b"%d" % number, 1)
    town.pass_time(2)
    reader.vanish()
    writer.publish("t/1", b"waits", 2)
    moved = town["E"].resume("reader", receive_maximum=1)
    writer.publish("t/2", b"in flight", 2)
    moved.vanish()
    again = town["B"].resume("reader")
    again.received()
    again.unsubscribe("t/#")
    town.cut("A", "E")
    town["E"].join("other").publish("t/3", b"missed", 1)
    town.connect("AE")
    writer.vanish()
    town.pass_time(2)
    return heard.frames


def damaged(rng: Random, frames: Frames) -> tuple[int, bytes]:
    kind, body = rng.choice(frames)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        body = rng.choice([_in_meaning, _in_meaning, _in_meaning, _in_bytes, _cut, _spliced])(rng, kind, body, frames)
    if rng.random() < 0.02:
        kind = rng.randrange(256)
    return kind, body


def _in_meaning(rng: Random, kind: int, body: bytes, frames: Frames) -> bytes:
    """MessagePack that is still whole: one value in it is another."""
    if kind in (Frame.ROUTING, Frame.SEQUENCED, Frame.LOOSE):
        return _in_bytes(rng, kind, body, frames)
    try:
        return msgspec.msgpack.encode(_changed(rng, msgspec.msgpack.decode(body)))
    except (ValueError, OverflowError, RecursionError):
        return _in_bytes(rng, kind, body, frames)


def _changed(rng: Random, value: Any) -> Any:
    if not isinstance(value, list) and rng.random() < 0.5:
        return _nearly(rng, value)
    if isinstance(value, list) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        return [*value[:place], _changed(rng, value[place]), *value[place + 1 :]]
    if isinstance(value, list):
        return rng.choice([[], value * 2, [value], value[:-1], [*value, *value[:1]] * rng.choice([2, 500])])
    if isinstance(value, bytes) and len(value) > 8 and rng.random() < 0.7:  # a letter in an envelope, or messages
        return _in_meaning(rng, 0, value, []) if rng.random() < 0.8 else _in_bytes(rng, 0, value, [])
    if isinstance(value, bool):
        return rng.choice([not value, None, 2])
    if isinstance(value, int):
        return rng.choice([*NUMBERS, value + 1, value - 1, value ^ 1 << rng.randrange(40)])
    if isinstance(value, float):
        return rng.choice([*FLOATS, value * 1e6])
    if isinstance(value, str):
        return rng.choice([*TEXTS, value + "x", value.encode()])
    if isinstance(value, bytes):
        return rng.choice([*BYTES, value + b"x", value * 3])
    return rng.choice([0, "", b"", [], True])


def _nearly(rng: Random, value: Any) -> Any:
    """A message that could well be said, only not here."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return max(0, rng.choice([value + 1, value - 1, value + 1000, 0, 1, 2, 5, 2**31]))
    if isinstance(value, float):
        return rng.choice([0.0, 1.0, value + 1, 1e6])
    if isinstance(value, str):
        return rng.choice(["A", "B", "E", "X", ""])
    if isinstance(value, bytes) and len(value) < 40:
        return rng.choice(
            [b"reader", b"quiet reader", b"writer", b"t/1", b"n/1", b"#", b"t/+", b"$share/g/s/+", b"$AVG/n/+"]
        )
    return value


def _in_bytes(rng: Random, kind: int, body: bytes, frames: Frames) -> bytes:
    data = bytearray(body or b"\0")
    for _ in range(rng.choice([1, 1, 2, 8])):
        data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(data)


def _cut(rng: Random, kind: int, body: bytes, frames: Frames) -> bytes:
    return body[: rng.randrange(len(body) + 1)]


def _spliced(rng: Random, kind: int, body: bytes, frames: Frames) -> bytes:
    other = rng.choice(frames)[1] if frames else body
    return body[: rng.randrange(len(body) + 1)] + other[rng.randrange(len(other) + 1) :]


class Siege:
    """Node E says to A what makes no sense; A and B go on serving their clients."""

    def __init__(self, strategy: str, seed: int) -> None:
        self.rng = Random(seed)
        self.strategy = strategy
        self.frames = conversation(strategy)
        self.town = Town("ABE", strategy)
        self.town.connect("AB", "AE")
        self.said = 0
        self.ended = 0
        self._people()

    def _people(self) -> None:
        self.reader = self.town["B"].resume("quiet reader")
        self.reader.subscribe("quiet/#", 1)
        self.writer = self.town["A"].join("quiet writer")
        self.town["A"].resume("reader").subscribe("t/#", 1)
        self.town["A"].join("watcher").subscribe("n/+", 1)

    def say(self, frames: int) -> None:
        town = self.town
        for _ in range(frames):
            if "E" not in town["A"].network.links.links:
                self._link_up()
            link = town["E"].network.links.links["A"]
            kind, body = damaged(self.rng, self.frames)
            if len(body) <= link.frame_bytes:
                link.send(kind, body)
                self.said += 1
            town.settle()
            if self.rng.random() < 0.02:
                town.pass_time(0.2)

    def _link_up(self) -> None:
        """Another process under the name of E, and nobody waits for the pause to end."""
        town = self.town
        self.ended += 1
        for node in town.nodes.values():
            node.network._quarantine = Quarantine()
        for pipe in town.pipes:
            ends = {end.channel.peer for end in (pipe, pipe.other) if end.channel is not None}
            if "E" in ends and not pipe.closed:
                pipe.close()
        town.settle()
        town.pipes = [pipe for pipe in town.pipes if not pipe.closed]
        store = town["E"].store if self.ended % 50 else None
        town.nodes["E"] = JoinedNode(town, "E", store=store)
        town.connect_now("AE")

    def rest(self) -> None:
        """Whatever waits for a time-out of a connection that is gone, waits no more."""
        self.town.pass_time(8)

    def check(self) -> None:
        """A client that behaves is served."""
        number = b"%d" % self.said
        assert self.writer.publish("quiet/street", number, 1) == 0
        self.town.pass_time(0.1)
        assert number in self.reader.payloads()

    def restart(self) -> None:
        """Both start again on what they have written down, and nothing of it cannot be."""
        for name in "AB":
            self.town.crash(name)
            node = self.town[name].node
            assert node.started.impossible == ()
            node.changes()
        self.town.connect("AB")
        self._people()
        self.check()
