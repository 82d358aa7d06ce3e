"""Counting people, in photographs that scikit-image ships: two show somebody, the others nobody."""

from __future__ import annotations

import base64
from contextlib import suppress
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from sterna.images.people import count_people

_SPEC = find_spec("skimage")
assert _SPEC is not None
assert _SPEC.origin is not None
PICTURES = Path(_SPEC.origin).parent / "data"
NOBODY = (
    *("brick", "cell", "chelsea", "clock_motion", "coffee", "coins", "grass", "gravel", "horse", "ihc", "moon"),
    *("logo", "motorcycle_left", "page", "text"),
)


def picture(name: str) -> Image.Image:
    with Image.open(PICTURES / f"{name}.png") as image:
        return image.convert("RGB")


def encoded(image: Image.Image, kind: str = "PNG", **more: object) -> bytes:
    out = BytesIO()
    image.save(out, kind, **more)
    return out.getvalue()


@pytest.mark.parametrize("name", ["astronaut", "camera"])
def test_a_person_in_a_photograph_is_counted_however_it_is_sent(name: str) -> None:
    assert count_people((PICTURES / f"{name}.png").read_bytes()) == 1
    jpeg = encoded(picture(name), "JPEG")
    assert count_people(jpeg) == 1
    assert count_people(base64.b64encode(jpeg)) == 1


def test_several_people_are_counted() -> None:
    wide = Image.new("RGB", (1536, 512))
    for place, name in enumerate(("astronaut", "camera", "astronaut")):
        wide.paste(picture(name), (512 * place, 0))
    assert count_people(encoded(wide)) == 3


def test_a_camera_that_lies_on_its_side_says_so() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    lying = picture("astronaut").transpose(Image.Transpose.ROTATE_90)
    assert count_people(encoded(lying, "JPEG", exif=exif)) == 1


@pytest.mark.parametrize("name", NOBODY)
def test_where_there_is_nobody_nobody_is_counted(name: str) -> None:
    assert count_people((PICTURES / f"{name}.png").read_bytes()) == 0


@pytest.mark.parametrize("size", [(1, 1), (23, 23), (24, 24), (25, 4000), (4000, 1), (4000, 24), (64, 128)])
def test_pictures_of_any_shape_are_looked_at(size: tuple[int, int]) -> None:
    assert count_people(encoded(Image.new("RGB", size, (90, 120, 60)))) == 0
    with suppress(ValueError):
        assert count_people(encoded(picture("astronaut").resize(size))) >= 0


@pytest.mark.parametrize("payload", [b"", b"21.5", b"\xff\xd8\xff", base64.b64encode(b"something else")])
def test_a_payload_that_is_no_picture_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="image"):
        count_people(payload)
