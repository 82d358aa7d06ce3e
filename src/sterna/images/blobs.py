"""Counts connected bright areas in an image, without a model.

`count_blobs` is the data processing function every node brings along (`$COUNTBLOBS`).  People in the picture of a
thermal camera are such areas, and so are lamps, seeds on a belt and cells under a microscope; people in an ordinary
photograph are not, and need a model of your own (docs/operators.md shows how to plug one in).

Only the worker processes of a node import this: it needs the extra `images` (numpy and Pillow).  Whatever the payload,
the outcome is a count or a ValueError, and nothing is decoded before it is known how large it will be.
"""

from __future__ import annotations

import base64
import binascii
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

PIXELS_MAX = 16 * 1024 * 1024
"""Of an image that is looked at; a small file may say that it is huge."""
AREA_SHARE_MIN = 1 / 5000
"""Of the image: what is smaller is noise."""
AREA_MIN = 4
CONTRAST_MIN = 32
"""Between what is bright and what is not, of 255: in a picture of nothing there is always something a bit brighter."""

_FORMATS = ("PNG", "JPEG")
_BEGINNINGS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")


def count_blobs(payload: bytes) -> int:
    """How many bright areas a PNG or JPEG image has; the image as it is, or as base64 text."""
    grey = np.asarray(_opened(payload).filter(ImageFilter.BoxBlur(1)), dtype=np.uint8)
    threshold = _threshold(np.bincount(grey.ravel(), minlength=256))
    if threshold is None:
        return 0
    areas = _areas(grey > threshold)
    return int(np.count_nonzero(areas >= max(AREA_MIN, grey.size * AREA_SHARE_MIN)))


def _opened(payload: bytes) -> Image.Image:
    """In shades of grey."""
    data = payload if payload.startswith(_BEGINNINGS) else _from_text(payload)
    try:
        with Image.open(BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > PIXELS_MAX:
                raise ValueError(f"{image.width} x {image.height} pixels are too many")
            return image.convert("L")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # what Pillow raises for broken files
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


def _threshold(histogram: Any) -> int | None:
    """Otsu's: what parts the pixels into two groups that differ most; None if they differ too little."""
    shades = np.arange(256)
    dark = np.cumsum(histogram)
    bright = dark[-1] - dark
    sums = np.cumsum(histogram * shades)
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = (sums[-1] - sums) / bright - sums / dark
    between = np.nan_to_num(apart * apart * dark * bright, nan=-1.0, posinf=-1.0)
    best = int(np.argmax(between))
    return best if between[best] > 0 and apart[best] >= CONTRAST_MIN else None


def _areas(mask: Any) -> Any:
    """Pixels of each area; pixels that touch, if only by a corner, belong together.

    Rows are cut into runs of bright pixels, runs that touch are joined, and joined again until nothing changes.
    """
    width = mask.shape[1]
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    stops = np.nonzero(edges == -1)[1]
    # Places in one long line of all rows, so that runs of the next row are found by bisection.
    line = width + 2
    first = np.searchsorted(rows * line + stops, (rows + 1) * line + starts, side="left")
    after = np.searchsorted(rows * line + starts, (rows + 1) * line + stops, side="right")
    touching = np.maximum(after - first, 0)
    above = np.repeat(np.arange(rows.size), touching)
    below = np.arange(above.size) - np.repeat(np.cumsum(touching) - touching, touching) + np.repeat(first, touching)
    labels = np.arange(rows.size)
    while above.size:
        least = np.minimum(labels[above], labels[below])
        joined = labels.copy()
        np.minimum.at(joined, labels[above], least)
        np.minimum.at(joined, labels[below], least)
        while not np.array_equal(shorter := joined[joined], joined):
            joined = shorter
        joined = joined[labels]
        if np.array_equal(joined, labels):
            break
        labels = joined
    return np.bincount(labels, weights=stops - starts, minlength=0)
