"""The engine of an expression's inner half (`split`), which every place runs over its own messages.

One place merges the parts (`part_merging`) and applies the outer half.
"""

from __future__ import annotations

import msgspec

from sterna.operators.engine import Engine
from sterna.operators.expression import Operator
from sterna.operators.settings import OperatorSettings
from sterna.operators.spatial import Spatial, spatial_of
from sterna.operators.stages import Counts, Outgrown, Stage

#: Topics that may be listed and gone, beyond as many as there are.
_GONE_MAX = 1024

_SharedTopicsState = list[tuple[bytes, int, float | None]]


class Silent(Stage):
    """The end of the inner half: it publishes nothing, the owner asks."""

    __slots__ = ("moved",)

    def __init__(self, counts: Counts) -> None:
        super().__init__(None, counts)
        #: Something has come since this was last set to False.
        self.moved = False

    def change(self, time_us: int, key: bytes, value: float | None) -> None:
        self.moved = True

    def replace(self, time_us: int, values: dict[bytes, float]) -> None:
        self.moved = True


class SharedTopics(Stage):
    """Keys that other places have, too, are kept one by one: of each only the newest value of all places counts.  The
    others go on to the aggregate."""

    __slots__ = ("held", "number", "spatial", "when")

    def __init__(self, spatial: Spatial, counts: Counts) -> None:
        super().__init__(spatial, counts)
        self.spatial = spatial
        #: When each last said something (0: never), and what.
        self.held: dict[bytes, tuple[int, float | None]] = {}
        #: Counts their changes; and of each key the number of its last one.
        self.number = 0
        self.when: dict[bytes, int] = {}

    def change(self, time_us: int, key: bytes, value: float | None) -> None:
        if key not in self.held:
            self.spatial.change(time_us, key, value)
            return
        self._hold(key, time_us, value)
        assert self.spatial.after is not None
        self.spatial.after.change(time_us, key, value)

    def take(self, key: bytes) -> None:
        """From now on this key is kept by itself."""
        if key in self.held:
            return
        if len(self.held) >= self.spatial.topics_max:
            raise Outgrown(f"more than {self.spatial.topics_max} topics at several nodes")
        self._hold(key, self.spatial.heard.get(key, 0), self.spatial.values.get(key))
        self.spatial.forget(key)

    def _hold(self, key: bytes, time_us: int, value: float | None) -> None:
        self.held[key] = (time_us, value)
        self.number += 1
        self.when[key] = self.number

    def since(self, number: int) -> list[tuple[bytes, int, float | None]]:
        """Entries that have changed after that one."""
        if number == self.number:
            return []
        return [(key, *self.held[key]) for key, changed in self.when.items() if changed > number]

    def state(self) -> bytes:
        return msgspec.msgpack.encode([(key, *entry) for key, entry in self.held.items()])

    def resume(self, state: bytes) -> None:
        self.held = {}
        for key, time_us, value in msgspec.msgpack.decode(state, type=_SharedTopicsState):
            self._hold(key, time_us, value)


class PartEngine(Engine):
    """The inner half at one place, over topics; for periods see `window_parts`.  `message` gives no results: ask
    `spatial` and `apart`."""

    __slots__ = ("apart", "edition", "silent", "spatial")

    apart: SharedTopics
    #: Of the list of topics admitted: it only grows in one.
    edition: int
    silent: Silent
    spatial: Spatial

    def _chain(self, settings: OperatorSettings, since_us: int) -> Stage:
        aggregate, *rest = self._expression.operators
        self.silent = Silent(self.counts)
        self.spatial = spatial_of(self.silent, self.counts, aggregate, settings)
        self.spatial.admitted = []
        self.edition = 0
        self.apart = SharedTopics(self.spatial, self.counts)
        self._stages += self.spatial, self.apart
        return self._behind(self.apart, tuple(rest), settings, since_us)

    @property
    def aggregate(self) -> Operator:
        return self._expression.operators[0]

    @property
    def too_many_admitted(self) -> bool:
        """Are most topics of the list gone?"""
        admitted = self.spatial.admitted
        return admitted is not None and len(admitted) > 2 * len(self.spatial.heard) + _GONE_MAX

    def admit_anew(self) -> None:
        self.spatial.admitted = list(self.spatial.heard)
        self.edition += 1

    def take_apart(self, topics: list[bytes]) -> None:
        if self.stopped:
            return
        try:
            for topic in topics:
                self.apart.take(topic)
        except Outgrown as reason:
            self._stop(reason)
