"""Data processing functions in a real node: images over the wire, functions that hang and die, kill -9 meanwhile."""

from __future__ import annotations

import base64
import json
from importlib.resources import files
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from .clients import Paho, Settings
from .nodes import LiveNode, wait_until

MODULE = """
import os, time

def words(payload):
    if payload == b"hang":
        time.sleep(3600)
    if payload == b"die":
        os.abort()
    return len(payload.split())

def slowly(payload):
    time.sleep(0.3)
    return float(payload)
"""

TOML = """
[admin]
bind = "127.0.0.1:0"
[functions]
directory = "."
time_out_s = 5
[[functions.own]]
name = "WORDS"
call = "text_functions:words"
description = "words of a text"
[[functions.own]]
name = "SLOWLY"
call = "text_functions:slowly"
description = "the number itself, later"
[[functions.own]]
name = "COUNTPEOPLE"
call = "sterna.images:count_blobs"
description = "people seen from above by a thermal camera"
returns = "a count"
[[functions.own]]
name = "BROKEN"
call = "text_functions:nowhere"
description = "nothing"
"""


def live(tmp_path: Path) -> LiveNode:
    (tmp_path / "text_functions.py").write_text(MODULE)
    return LiveNode(tmp_path, TOML)


def image(people: int, kind: str = "PNG") -> bytes:
    drawn = Image.new("L", (320, 80), 40)
    for number in range(people):
        ImageDraw.Draw(drawn).ellipse((10 + 40 * number, 20, 30 + 40 * number, 50), fill=220)
    out = BytesIO()
    drawn.save(out, kind)
    return out.getvalue()


def test_people_in_images_are_counted_while_the_node_goes_on(tmp_path: Path) -> None:
    with live(tmp_path) as node:
        watcher, camera = Paho("127.0.0.1", node.port, Settings()), Paho("127.0.0.1", node.port, Settings(version=4))
        assert watcher.subscribe("$MAX$CNTPPL/camera/+", 1) == 1
        assert watcher.subscribe("$COUNTBLOBS/camera/2", 1) == 1
        camera.publish("camera/1", image(3), 1)
        camera.publish("camera/2", base64.b64encode(image(5, "JPEG")), 1)
        camera.publish("camera/2", b"no image", 1)
        camera.publish("camera/2", image(0), 1)
        found = [(message.topic, message.payload) for message in watcher.receive(5)]
        assert [payload for topic, payload in found if "MAX" in topic] == [b"3.0", b"5.0", b"3.0"]
        assert [payload for topic, payload in found if "BLOBS" in topic] == [b"5.0", b"0.0"]
        assert node.metric("sterna_expression_values_total", reason="function-failed") == 2
        for client in (watcher, camera):
            client.close()


def test_people_in_photographs_are_counted_by_a_node_that_was_told_nothing(tmp_path: Path) -> None:
    pictures = Path(str(files("skimage"))) / "data"
    with LiveNode(tmp_path, "[functions]\ntime_out_s = 100\n") as node:
        client = Paho("127.0.0.1", node.port, Settings())
        assert client.subscribe("$CNTPPL/camera/+", 1) == 1
        assert client.subscribe("$CNTFEM/camera/+", 1) == 0x8F
        for camera, name in enumerate(("astronaut", "coffee", "camera")):
            client.publish(f"camera/{camera}", (pictures / f"{name}.png").read_bytes(), 1)
        assert [message.payload for message in client.receive(3)] == [b"1.0", b"0.0", b"1.0"]
        client.close()


def test_capabilities_are_what_could_be_loaded(tmp_path: Path) -> None:
    with live(tmp_path) as node:
        wait_until(lambda: node.events("a function cannot be loaded"), "the functions were tried")
        client = Paho("127.0.0.1", node.port, Settings())
        client.subscribe("$SYS/capabilities")
        (message,) = client.receive()
        assert message.retain
        found = {one["keyword"]: one for one in json.loads(message.payload)}
        assert sorted(found) == ["$CNTPPL", "$COUNTBLOBS", "$COUNTPEOPLE", "$SLOWLY", "$WORDS"]
        people = {"keyword": "$CNTPPL", "desc": "people seen from above by a thermal camera", "returns": "a count"}
        assert found["$CNTPPL"] == people
        assert client.subscribe("$BROKEN/t") == 0x8F
        assert node.events("a function cannot be loaded")[0]["function"] == "BROKEN"
        client.close()


def test_functions_that_hang_and_die_block_nobody(tmp_path: Path) -> None:
    with live(tmp_path) as node:
        watcher, sensor = Paho("127.0.0.1", node.port, Settings()), Paho("127.0.0.1", node.port, Settings())
        watcher.subscribe("$WORDS/text", 1)
        watcher.subscribe("$AVG/number", 1)
        for payload in (b"hang", b"die", b"three more words"):
            sensor.send("text", payload, 1)
        for number in range(200):
            sensor.publish("number", b"%d" % number, 1)
        found = watcher.receive(201)
        assert found[0].topic == "$AVG/number", "the node waited for the function"
        assert [one.payload for one in found if one.topic == "$WORDS/text"] == [b"3.0"]
        for reason in ("function-timed-out", "function-died"):
            assert node.metric("sterna_expression_values_total", reason=reason) == 1
        for client in (watcher, sensor):
            client.close()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_what_waited_for_a_function_is_computed_after_a_restart(tmp_path: Path, end: str) -> None:
    with live(tmp_path) as node:
        persistent = Settings(client_id="watcher", persistent=True)
        watcher, sensor = Paho("127.0.0.1", node.port, persistent), Paho("127.0.0.1", node.port, Settings())
        watcher.subscribe("$TMPSUM;1:00:00$SLOWLY/t", 2)
        sensor.publish_all("t", [b"1"] * 10, 2)
        watcher.receive(3)
        workers = _children(node.pid)
        assert workers
        node.kill() if end == "kill" else node.stop()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "its processes end with it")
        node.restart()
        again = Paho("127.0.0.1", node.port, persistent)
        payloads = [one.payload for one in watcher.messages]
        missing = 10 - len(payloads)
        payloads += [bytes(one.payload) for one in again.receive(missing) if one.payload not in payloads]
        assert payloads == [b"%d.0" % number for number in range(1, 11)]
        for client in (watcher, sensor, again):
            client.close()


def _children(pid: int) -> set[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for one in lists for child in one.read_text().split()}
