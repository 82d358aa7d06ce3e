"""Counts connected bright areas in an image, without a model.

`count_blobs` is a data processing function that nodes bring along (`$COUNTBLOBS`).  People in the picture of a
thermal camera are such areas, and so are lamps, seeds on a belt and cells under a microscope.  People in an ordinary
photograph are not: `people.py` sees those.

Only the worker processes of a node import this (extra `images`).  Every payload gives a count or a ValueError.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import ImageFilter

from sterna.images.decoding import opened

AREA_SHARE_MIN = 1 / 5000
"""Of the image: what is smaller is noise."""
AREA_MIN = 4
CONTRAST_MIN = 32
"""Between what is bright and what is not, of 255: in a picture of nothing there is always something a bit brighter."""


def count_blobs(payload: bytes) -> int:
    """How many bright areas a PNG or JPEG image has; the image as it is, or as base64 text."""
    grey = np.asarray(opened(payload, "L").filter(ImageFilter.BoxBlur(1)), dtype=np.uint8)
    threshold = _threshold(np.bincount(grey.ravel(), minlength=256))
    if threshold is None:
        return 0
    areas = _areas(grey > threshold)
    return int(np.count_nonzero(areas >= max(AREA_MIN, grey.size * AREA_SHARE_MIN)))


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
