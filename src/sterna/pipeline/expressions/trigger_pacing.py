"""Decides when the next batch begins: at once when a window has ended, and not shortly before one ends.

Every batch takes some time, even an empty one.  A result is late if another batch is under way when its window ends.
Between windows a batch begins when there are messages enough that reading them outweighs planning it, or after some
seconds.  Batches are more frequent while there are expressions that answer at each message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from heapq import heapify, heapreplace

from sterna.operators.windows import window_end
from sterna.pipeline.expressions.registry import Registry
from sterna.pipeline.source.nodes import OffsetWatch, Seen

PACE_S, SLOW_S = 1.0, 5.0
"""From one batch to the next, while no window ends: with many messages to read, and with few."""
BRISK_S = 0.5
"""The same, while somebody waits for an answer to each message; and between two batches that close windows."""
HOLD_S = 1.0
"""No batch waits longer for an end that is near."""
GRACE_S = 0.25
"""Nodes say that it is later a moment after it is."""
NEVER_US = 1 << 62


class TriggerPacing:
    def __init__(self) -> None:
        #: By the steady clock: when the last batch began, how long it took, and when one last began to close windows.
        self._begun_s = -SLOW_S
        self._took_s = 0.0
        self._closed_s = -BRISK_S
        self._is_running = False
        #: The end for which a batch was begun: if it did not close the window, somebody is away.
        self._begun_for_us = 0
        #: The news of before: if nobody learned of it, somebody is away.
        self._known_news: set[tuple[str, int, int]] = set()
        self._edition = -1
        self._ends = WindowEnds(set())
        self._pace_s, self._slow_s = PACE_S, SLOW_S

    def begin(self) -> None:
        self._begun_s = time.monotonic()
        self._is_running = True

    def rest(
        self, watch: OffsetWatch, registry: Registry, time_us: int, is_much: Callable[[Mapping[str, Seen]], bool]
    ) -> None:
        """Come back when a batch is due that goes on from `time_us`.  `is_much`: are there messages enough for one?"""
        now_s = time.monotonic()
        if self._is_running:
            self._took_s, self._is_running = now_s - self._begun_s, False
        end_us = self.next_end(registry, time_us)
        if end_us <= self._begun_for_us:
            end_us = NEVER_US
        ends_s = now_s + end_us / 1e6 - time.time()
        watch.wait_for(
            lambda nodes: (
                self._closes(nodes, end_us)
                or not news(nodes, registry) <= self._known_news
                or (self._has_room_before(ends_s) and is_much(nodes))
            ),
            self._left_s(now_s, ends_s),
        )
        nodes = watch.nodes()
        self._known_news = news(nodes, registry)
        if is_over(nodes, end_us):
            self._begun_for_us, self._closed_s = end_us, time.monotonic()

    def _closes(self, nodes: Mapping[str, Seen], end_us: int) -> bool:
        """Ends that follow one another closely share a batch."""
        return is_over(nodes, end_us) and time.monotonic() >= self._closed_s + BRISK_S

    def _has_room_before(self, ends_s: float) -> bool:
        """For a batch that begins now."""
        now_s = time.monotonic()
        return now_s >= self._begun_s + self._pace_s and not self._is_in_the_way(now_s, ends_s)

    def _is_in_the_way(self, begun_s: float, ends_s: float) -> bool:
        """Of the batch for that end, which nodes may tell of a moment after it."""
        return ends_s - min(self._took_s, HOLD_S) < begun_s < ends_s + GRACE_S

    def _left_s(self, now_s: float, ends_s: float) -> float:
        due_s = max(now_s, self._begun_s + self._slow_s)
        if self._is_in_the_way(due_s, ends_s):
            due_s = ends_s + GRACE_S
        return due_s - now_s

    def next_end(self, registry: Registry, time_us: int) -> int:
        """Of the first window that ends after this instant."""
        if registry.edition != self._edition:
            self._edition, self._ends = registry.edition, WindowEnds(windows_of(registry))
            is_brisk = any(entry.expression.periodic is None for entry in registry.entries)
            self._pace_s, self._slow_s = (BRISK_S, BRISK_S) if is_brisk else (PACE_S, SLOW_S)
        return self._ends.next_after(time_us)


class WindowEnds:
    """The next end of each of many windows: as time passes, only those that have ended are looked at."""

    def __init__(self, windows: set[tuple[int, int]]) -> None:
        """Anchors and lengths."""
        self._windows = windows
        self._ends: list[tuple[int, int, int]] = []
        self._time_us = NEVER_US

    def next_after(self, time_us: int) -> int:
        if time_us < self._time_us:
            self._ends = [(window_end(time_us, *window), *window) for window in self._windows]
            heapify(self._ends)
        self._time_us = time_us
        while self._ends and self._ends[0][0] <= time_us:
            _, anchor_us, length_us = self._ends[0]
            heapreplace(self._ends, (window_end(time_us, anchor_us, length_us), anchor_us, length_us))
        return self._ends[0][0] if self._ends else NEVER_US


def is_over(nodes: Mapping[str, Seen], end_us: int) -> bool:
    """Is it that late everywhere?"""
    return bool(nodes) and all(seen.time_us >= end_us for seen in nodes.values())


def news(nodes: Mapping[str, Seen], registry: Registry) -> set[tuple[str, int, int]]:
    """Which nodes want something else than they did: names, epochs, editions."""
    found = ((seen.name, seen.epoch, seen.edition) for seen in nodes.values())
    return {one for one in found if registry.is_news(*one)}


def windows_of(registry: Registry) -> set[tuple[int, int]]:
    """Anchors and lengths of all there are."""
    found = set()
    for entry in registry.entries:
        periodic = entry.expression.periodic
        if periodic is None:
            continue
        anchor_us = entry.since_us if entry.settings.anchor == "subscription" else 0
        found.add((anchor_us, entry.settings.period_us(periodic.period)))
    return found
