"""A node that belongs to the network and means it harm, and a user who wants another one's client: real processes."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import pytest
import uvloop

from node.link_mutations import Frames, conversation, damaged
from runtime.link_towns import NETWORK, Town, leave, until
from sterna.broker.access.passwords import hash_password
from sterna.mqtt.message import Message
from sterna.routing import link_frames
from sterna.routing.link_frames import Announce, Frame
from sterna.routing.message_frames import encode_record, opening

from .clients import Refused, Will
from .conftest import Join
from .networks import LiveNetwork
from .nodes import wait_until

pytestmark = pytest.mark.slow

KEY = "the key of this network"
SEED, TALKS = 11, 20


def besiege(door: str, talks: list[Frames]) -> None:
    """Each of these is said by a node of another name, until the last frame is sent or the link is ended."""

    async def talk(name: str, frames: Frames) -> None:
        evil = Town(name, replace(NETWORK, name="live", key=KEY, bind=None))
        evil.world.dial(door)
        await until(lambda: evil.connected("a"), "a link")
        hello = link_frames.encode(Announce(name, 1, 1, 0, False, [], ""))
        for kind, body in [(Frame.ANNOUNCE, hello), *frames]:
            link = evil.links.links.get("a")
            if link is None:
                break
            link.send(kind, body.replace(b"evil0000", name.encode()))
            evil.links.flush()
            await asyncio.sleep(0.01)
        await leave(evil)

    async def everybody() -> None:
        for number, frames in enumerate(talks):
            await talk(f"evil{number:04}", frames)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(everybody())


def test_one_node_that_talks_nonsense_stops_no_other_from_serving_or_starting(tmp_path: Path, join: Join) -> None:
    with LiveNetwork(tmp_path, ["ab"], more=f'key = "{KEY}"') as network:
        reader, writer = join(network["b"]), join(network["a"])
        reader.subscribe("#", 1)
        number = 2**64 - 1
        entries = [(client, owner, number, None, 0, False) for client, owner in ((b"x", "a"), (b"y", "b"))]
        talks: list[Frames] = [[(Frame.NEWS, msgspec.msgpack.encode([1, entries, [], True]))]]
        for topic in (b"a/#/x", b"nul/\0", b"", b"a/" * 3000):
            message = Message(topic, b"bad", 1, True, b"", 0.0, b"p", 1000.0)
            talks.append([(Frame.SEQUENCED, opening("evil0000", 1) + encode_record(message, 5))])
        rng, frames = Random(SEED), conversation("subscription-flooding")
        talks += [[damaged(rng, frames) for _ in range(5)] for _ in range(TALKS)]
        besiege(network.door("a"), talks)
        assert network["a"].metric("sterna_network_nonsense_total") >= 5
        writer.publish("still", b"here", 1)
        assert [message.payload for message in reader.receive(1)] == [b"here"]
        for name in "ab":
            assert network[name].stop() == 0
        for name in "ab":
            network[name].restart()
        network.wait_until_settled()
        assert network["a"].metric("sterna_impossible_entries") == 0
        network.check_logs()


def test_another_user_neither_ends_a_client_nor_has_its_will_published(tmp_path: Path, join: Join) -> None:
    passwords = tmp_path / "passwords"
    known = {"ann": "correct horse", "bob": "battery staple"}
    lines = [hash_password(user, word, random_bytes=os.urandom) + "\n" for user, word in known.items()]
    passwords.write_text("".join(lines))
    more = f"""key = "{KEY}"
[[listener]]
bind = "127.0.0.1:0"
anonymous = false
[authentication]
password_file = "{passwords}"
"""
    with LiveNetwork(tmp_path, ["ab"], more=more) as network:
        watcher = join(network["b"], username="ann", password="correct horse")
        watcher.subscribe("#", 1)
        will = Will("wills/ann", b"gone", 1)
        victim = join(network["a"], client_id="sensor-7", username="ann", password="correct horse", will=will)
        for at in "ba":
            with pytest.raises(Refused) as refused:
                join(network[at], client_id="sensor-7", username="bob", password="battery staple", persistent=True)
            assert refused.value.code in (0x87, 5)
        victim.publish("still", b"here", 1)
        assert [message.topic for message in watcher.receive(1)] == ["still"]
        counters = network["b"].network()["moves"]
        assert counters["identifiers_given_up"] == 1
        wait_until(lambda: network["a"].network()["moves"]["identifiers_kept"] == 1, "it was told to stay away")
        network.check_logs()
