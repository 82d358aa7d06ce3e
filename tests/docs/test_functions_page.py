"""The functions of the page about operators, as they stand there: plugged into a real node and asked for pictures."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw

from live.clients import Paho, Settings
from live.nodes import LiveNode

PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()


def snippet(kind: str) -> str:
    """The first of its kind."""
    found = re.search(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def picture(people: int) -> bytes:
    image = Image.new("L", (200, 100), 30)
    for number in range(people):
        ImageDraw.Draw(image).ellipse((10 + 50 * number, 40, 40 + 50 * number, 70), fill=230)
    out = BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def test_the_functions_of_the_page_compute(tmp_path: Path) -> None:
    (tmp_path / "vision.py").write_text(snippet("python"))
    with LiveNode(tmp_path, snippet("toml")) as node:
        client = Paho("127.0.0.1", node.port, Settings())
        for text in ("$CNTPPL/camera/1", "$LT;50$BRIGHTNESS/camera/+"):
            assert client.subscribe(text, 1) == 1
        client.publish("camera/1", picture(3), 1)
        client.publish("camera/2", b"no picture", 1)
        client.publish("camera/2", picture(0), 1)
        found = {(message.topic, float(message.payload)) for message in client.receive(2)}
        assert found == {("$CNTPPL/camera/1", 3.0), ("$LT;50$BRIGHTNESS/camera/$A", 30.0)}
        client.close()
