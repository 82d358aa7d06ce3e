"""Data processing functions for images; only the worker processes of a node import them (extra `images`)."""

from sterna.images.blobs import count_blobs
from sterna.images.people import count_people

__all__ = ["count_blobs", "count_people"]
