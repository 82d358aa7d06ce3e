"""Data processing functions for images; only the worker processes of a node import them (extra `images`)."""

from sterna.images.blobs import count_blobs

__all__ = ["count_blobs"]
