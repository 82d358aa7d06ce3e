"""Counting bright areas, on images that are drawn here: what is in them is known."""

from __future__ import annotations

import base64
import random
import struct
import zlib
from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageDraw

from sterna.images.blobs import _areas, count_blobs
from sterna.images.decoding import PIXELS_MAX


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    out = BytesIO()
    image.save(out, kind)
    return out.getvalue()


def people_from_above(count: int, seed: int, size: tuple[int, int] = (320, 240)) -> Image.Image:
    """As a thermal camera at the ceiling sees them: warm ellipses that do not touch, on a floor with noise."""
    dice = random.Random(seed)
    noise = np.random.default_rng(seed).normal(60, 6, (size[1], size[0])).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(noise)
    pen = ImageDraw.Draw(image)
    cells = [(x, y) for x in range(0, size[0] - 40, 40) for y in range(0, size[1] - 40, 40)]
    for x, y in dice.sample(cells, count):
        wide, high = dice.randint(14, 30), dice.randint(14, 30)
        pen.ellipse((x + 4, y + 4, x + 4 + wide, y + 4 + high), fill=dice.randint(170, 240))
    return image


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 20])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_people_in_a_thermal_image_are_counted(count: int, seed: int, kind: str) -> None:
    data = encoded(people_from_above(count, seed), kind)
    assert count_blobs(data) == count
    assert count_blobs(base64.b64encode(data)) == count
    assert count_blobs(base64.encodebytes(data)) == count
    assert count_blobs(b"data:image/png;base64," + base64.b64encode(data)) == count


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_every_kind_of_image_is_looked_at(mode: str) -> None:
    image = Image.new("L", (64, 64))
    ImageDraw.Draw(image).rectangle((10, 10, 20, 20), fill=255)
    ImageDraw.Draw(image).rectangle((40, 40, 50, 50), fill=255)
    deep = Image.fromarray(np.asarray(image).astype(np.uint16) * 257)
    assert count_blobs(encoded(deep if mode == "I;16" else image.convert(mode))) == 2


def test_specks_are_noise_and_shapes_may_be_crooked() -> None:
    image = Image.new("L", (400, 400))
    pen = ImageDraw.Draw(image)
    pen.point([(5, 5), (300, 12)], fill=255)
    pen.line([(50, 50), (50, 350), (350, 350), (350, 100)], fill=255, width=6)  # one snake ...
    pen.line([(100, 100), (100, 300), (300, 300), (300, 150)], fill=255, width=6)  # ... and one within
    assert count_blobs(encoded(image)) == 2


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1), (3, 3)])
def test_images_of_almost_nothing(size: tuple[int, int]) -> None:
    assert count_blobs(encoded(Image.new("L", size, 200))) == 0


def test_areas_are_those_a_flood_finds() -> None:
    dice = np.random.default_rng(7)
    for _ in range(200):
        mask = dice.random((dice.integers(1, 16), dice.integers(1, 16))) < dice.random()
        assert sorted(int(area) for area in _areas(mask) if area) == flooded(mask)


def flooded(mask: np.ndarray) -> list[int]:
    left = {(int(y), int(x)) for y, x in zip(*np.nonzero(mask), strict=True)}
    found = []
    while left:
        edge, area = [left.pop()], 0
        while edge:
            y, x = edge.pop()
            area += 1
            beside = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= beside
            edge.extend(beside)
        found.append(area)
    return sorted(found)


def bomb(side: int) -> bytes:
    """A PNG that says it is huge, and has next to nothing in it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body + chunk(b"IEND", b"")


IMAGE = encoded(people_from_above(2, 1))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"21.5",
        b"not base64!",
        base64.b64encode(b"something else"),
        b"data:image/png;base64,",
        IMAGE[:200],
        IMAGE[:40] + b"\xff" * 400,
        encoded(people_from_above(2, 1), "JPEG")[:300],
        encoded(people_from_above(2, 1), "GIF"),
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        bomb(int(PIXELS_MAX**0.5) + 1),
        bomb(2**31 - 1),
        bomb(0),
    ],
    ids=lambda payload: repr(payload[:12]),
)
def test_what_is_no_image_or_too_large_a_one_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"image|pixels"):
        count_blobs(payload)


def test_broken_images_are_counted_or_refused_and_nothing_else() -> None:
    dice = random.Random(3)
    for _ in range(300):
        broken = bytearray(IMAGE)
        for _ in range(dice.randint(1, 5)):
            broken[dice.randrange(len(broken))] = dice.randrange(256)
        with suppress(ValueError):
            assert count_blobs(bytes(broken)) >= 0
