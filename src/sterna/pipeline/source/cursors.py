"""A named reader at the nodes: its name, and its cursors, which say where it began and how far it has read.

A node keeps the messages that a named reader has not read yet; it learns of progress when a batch is committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

from sterna.pipeline.feed.errors import FeedError
from sterna.pipeline.offsets import Offsets
from sterna.pipeline.options import Access
from sterna.pipeline.source.kept_feeds import KeptFeeds
from sterna.pipeline.source.nodes import Seen, open_feed
from sterna.runtime.feed.cursors import replace_shared_file

TELL_S = 0.5
"""Shortest time between two commits to a node: the node writes each one to its disk."""

log = logging.getLogger(__name__)


def reader_name(directory: Path, job: str) -> str:
    """The name under which nodes know the job in this directory: made up once, and kept there."""
    file = directory / "reader"
    if not file.exists():
        replace_shared_file(file, f"{job}-{uuid4().hex}".encode())
    return file.read_text()


class Cursors:
    """A named reader's places on the nodes: where it began, and what they need not keep for it any longer."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._feeds = KeptFeeds(access)
        self._telling: Future[None] | None = None
        self._told_at = -TELL_S
        self._teller = ThreadPoolExecutor(1, "cursors")

    def begin(self, seen: Seen, offset: int) -> int:
        """Where the reader is at this node: where it was before, if it is known there, else at `offset` from now on."""
        if not self._access.is_named:
            return offset
        with open_feed(self._access, seen.address) as feed:
            place = feed.register(offset)
        if place != offset:
            log.warning(
                'reader "%s" is known to node %s and goes on there at %d, not at %d as startingOffsets would have it; '
                "sterna readers forget makes it begin anew",
                self._access.reader,
                seen.name,
                place,
                offset,
            )
        return place

    def commit(self, nodes: Mapping[str, Seen], offsets: Offsets, *, at_once: bool) -> None:
        """Best effort: a node that does not hear of it keeps its messages longer, and that is all.

        `at_once` waits for the nodes; else they are told while the query goes on, unless they are being told already
        or were told just now.
        """
        if not self._access.is_named or (self._telling is not None and not self._telling.done()):
            return
        if not at_once and time.monotonic() - self._told_at < TELL_S:
            return
        self._told_at = time.monotonic()
        addresses = {name: nodes[name].address for name in offsets if name in nodes}
        self._telling = self._teller.submit(self._tell, addresses, dict(offsets))
        if at_once:
            self._telling.result()

    def _tell(self, addresses: Mapping[str, str], offsets: Offsets) -> None:
        for name, address in addresses.items():
            offset = offsets[name]
            try:
                self._feeds.at(address).commit(offset)
            except FeedError as error:
                log.warning("%s did not hear that %s has read up to %d: %s", name, self._access.reader, offset, error)
