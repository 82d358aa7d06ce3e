"""Opens a payload as a picture: PNG or JPEG, as it is or as base64 text.

Every payload gives a picture or a ValueError, and nothing is decoded before it is known how large it will be.
"""

from __future__ import annotations

import base64
import binascii
from io import BytesIO

from PIL import Image, ImageOps

PIXELS_MAX = 16 * 1024 * 1024
"""Of an image that is looked at; a small file may say that it is huge."""

_FORMATS = ("PNG", "JPEG")
_BEGINNINGS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")


def opened(payload: bytes, mode: str) -> Image.Image:
    """Upright, with the pixels that Pillow calls `mode`: "L" is grey, "RGB" has colours."""
    data = payload if payload.startswith(_BEGINNINGS) else _from_text(payload)
    try:
        with Image.open(BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > PIXELS_MAX:
                raise ValueError(f"{image.width} x {image.height} pixels are too many")
            return ImageOps.exif_transpose(image).convert(mode)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow's answers to broken files
        raise ValueError(f"no PNG or JPEG image: {error}") from None


def _from_text(payload: bytes) -> bytes:
    text = payload[payload.find(b",") + 1 :] if payload.startswith(b"data:image/") else payload
    try:
        data = base64.b64decode(b"".join(text.split()), validate=True)
    except binascii.Error:
        data = b""
    if not data.startswith(_BEGINNINGS):
        raise ValueError("neither a PNG or JPEG image nor base64 of one")
    return data
