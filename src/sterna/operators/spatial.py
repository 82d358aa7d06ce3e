"""Aggregates over the last value of each key, kept up to date without ever walking over all keys.

Each subclass keeps the one answer it is asked for.  A value is removed from the aggregate where that is exact.  The
least, the greatest and the newest come from a heap: stale entries are skipped, and swept out when they are the
majority.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

import msgspec

from sterna.operators.aggregates import Aggregate, Greatest, Last, Removable, aggregate_of
from sterna.operators.expression import Operator
from sterna.operators.settings import OperatorSettings
from sterna.operators.stages import Answering, Counts, Outgrown, Stage

#: Stale entries a heap may hold beyond as many as there are values.
_STALE_MAX: Final = 64
#: When more than this part of all keys expire at once, those that are left are looked for instead, in one go.
_MANY: Final = 32


class Spatial(Answering):
    """The last values, and when they expire."""

    __slots__ = ("admitted", "expiring", "expiry_us", "heard", "newest_us", "topics_max", "values")

    def __init__(self, after: Stage, counts: Counts, settings: OperatorSettings) -> None:
        super().__init__(after, counts)
        self.expiry_us = settings.expiry_us
        self.topics_max = settings.topics
        self.values: dict[bytes, float] = {}
        #: When each key last said something, be it that it has no value.
        self.heard: dict[bytes, int] = {}
        #: When the last of them did.
        self.newest_us = 0
        #: One entry per key of `heard`: not before when it expires.  It is brought up to date only when that is over.
        self.expiring: list[tuple[int, bytes]] = []
        #: Keys in the order in which they became known, if they must be reported; else None.
        self.admitted: list[bytes] | None = None

    def change(self, time_us: int, key: bytes, value: float | None) -> None:
        if self.expiring and self.expiring[0][0] <= time_us:
            self.expire(time_us)
        if key not in self.heard:
            self._admit(time_us, key)
        self.heard[key] = time_us
        if time_us > self.newest_us:
            self.newest_us = time_us
        self._put(key, value)
        self.tell(time_us)

    def replace(self, time_us: int, values: dict[bytes, float]) -> None:
        self._forget_all()
        self.newest_us = time_us
        for key, value in values.items():
            self._admit(time_us, key)
            self.heard[key] = time_us
            self._put(key, value)
        self.tell(time_us)

    def _admit(self, time_us: int, key: bytes) -> None:
        if len(self.heard) >= self.topics_max:
            raise Outgrown(f"more than {self.topics_max} topics")
        heappush(self.expiring, (time_us + self.expiry_us, key))
        if self.admitted is not None:
            self.admitted.append(key)

    def _put(self, key: bytes, value: float | None) -> None:
        old = self.values.pop(key, None) if value is None else self.values.get(key)
        if value is not None:
            self.values[key] = value
        if old is not None:
            self.left(old)
        if value is not None:
            self.came(key, value)

    def expire(self, time_us: int) -> bool:
        """Let go of what is too old by now; True if a value was."""
        had = len(self.values)
        if self.newest_us + self.expiry_us <= time_us:
            self._forget_all()  # after a long silence: many at once, without a look at each
        steps = len(self.heard) // _MANY + _STALE_MAX
        while self.expiring and self.expiring[0][0] <= time_us:
            if not steps:
                self._keep_newer(time_us - self.expiry_us)
                break
            steps -= 1
            key = self.expiring[0][1]
            due = self.heard.get(key, -self.expiry_us) + self.expiry_us
            if due > time_us:
                heapreplace(self.expiring, (due, key))
                continue
            heappop(self.expiring)
            self.forget(key)
        return len(self.values) != had

    def _keep_newer(self, oldest_us: int) -> None:
        """Forget what was heard then or before, by a walk over all keys, which costs less than a step for each."""
        heard, values = self.heard, self.values
        gone = [key for key, time_us in heard.items() if time_us <= oldest_us]
        if 2 * len(gone) < len(heard):
            for key in gone:
                self.forget(key)
        else:
            self._forget_all()
            self.heard = {key: time_us for key, time_us in heard.items() if time_us > oldest_us}
            for key in self.heard:
                if key in values:
                    self._put(key, values[key])
        self.expiring = [(time_us + self.expiry_us, key) for key, time_us in self.heard.items()]
        heapify(self.expiring)

    def forget(self, key: bytes) -> None:
        """As if it had never been heard of."""
        self.heard.pop(key, None)
        old = self.values.pop(key, None)
        if old is not None:
            self.left(old)

    def _forget_all(self) -> None:
        self.values, self.heard, self.expiring = {}, {}, []
        self.clear()

    def clear(self) -> None:
        """There are no values any more."""
        raise NotImplementedError

    def came(self, key: bytes, value: float) -> None:
        """`values` and `heard` have this key now."""
        raise NotImplementedError

    def left(self, value: float) -> None:
        """A value that came is no longer there."""
        raise NotImplementedError

    def partial(self) -> Aggregate:
        """An aggregate that can be merged with those of other places."""
        raise NotImplementedError

    def state(self) -> bytes:
        return msgspec.msgpack.encode([(key, self.values.get(key), time_us) for key, time_us in self.heard.items()])

    def resume(self, state: bytes) -> None:
        self._forget_all()
        for key, value, time_us in msgspec.msgpack.decode(state, type=list[tuple[bytes, float | None, int]]):
            self.heard[key] = time_us
            self.newest_us = max(self.newest_us, time_us)
            self.expiring.append((time_us + self.expiry_us, key))
            if self.admitted is not None:
                self.admitted.append(key)
            self._put(key, value)
        heapify(self.expiring)


class SpatialSum(Spatial):
    """COUNT, SUM, AVG, STDDEV, MEDIAN, QUANTILE."""

    __slots__ = ("operator", "sums")

    def __init__(self, after: Stage, counts: Counts, operator: Operator, settings: OperatorSettings) -> None:
        super().__init__(after, counts, settings)
        self.operator = operator
        self.clear()

    def clear(self) -> None:
        sums = aggregate_of(self.operator)
        assert isinstance(sums, Removable)
        #: Of all values that are there now.
        self.sums: Removable = sums

    def came(self, key: bytes, value: float) -> None:
        self.sums.add(value)

    def left(self, value: float) -> None:
        self.sums.remove(value)

    def answer(self) -> float | None:
        return self.sums.result()

    def partial(self) -> Aggregate:
        return self.sums


class SpatialGreatest(Spatial):
    """MAX; with a sign of -1, MIN."""

    __slots__ = ("heap", "sign")

    def __init__(self, after: Stage, counts: Counts, sign: float, settings: OperatorSettings) -> None:
        super().__init__(after, counts, settings)
        self.sign = -sign
        self.clear()

    def clear(self) -> None:
        #: Values (negated for MAX) with their keys; stale if the key has another value by now.
        self.heap: list[tuple[float, bytes]] = []

    def came(self, key: bytes, value: float) -> None:
        if len(self.heap) > 2 * len(self.values) + _STALE_MAX:
            self.heap = [(held * self.sign, one) for one, held in self.values.items()]
            heapify(self.heap)
        else:
            heappush(self.heap, (value * self.sign, key))

    def left(self, value: float) -> None:
        pass

    def answer(self) -> float | None:
        heap, values, sign = self.heap, self.values, self.sign
        while heap:
            value, key = heap[0]
            if values.get(key) == value * sign:
                return value * sign
            heappop(heap)
        return None

    def partial(self) -> Aggregate:
        found = Greatest(-self.sign)
        found.value = self.answer()
        return found


class SpatialLast(Spatial):
    __slots__ = ("heap",)

    def __init__(self, after: Stage, counts: Counts, settings: OperatorSettings) -> None:
        super().__init__(after, counts, settings)
        self.clear()

    def clear(self) -> None:
        #: Negated times with their keys; stale if the key has no value.  A key that has been heard of since stands
        #: further up with that time.
        self.heap: list[tuple[int, bytes]] = []

    def came(self, key: bytes, value: float) -> None:
        if len(self.heap) > 2 * len(self.values) + _STALE_MAX:
            self.heap = [(-self.heard[one], one) for one in self.values]
            heapify(self.heap)
        else:
            heappush(self.heap, (-self.heard[key], key))

    def left(self, value: float) -> None:
        pass

    def answer(self) -> float | None:
        return self.partial().result()

    def partial(self) -> Aggregate:
        found = Last()
        while self.heap:
            time_us, key = self.heap[0]
            value = self.values.get(key)
            if value is not None:
                found.add_at(-time_us, key, value)
                break
            heappop(self.heap)
        return found


def spatial_of(after: Stage, counts: Counts, operator: Operator, settings: OperatorSettings) -> Spatial:
    if operator.aggregate == "LAST":
        return SpatialLast(after, counts, settings)
    if operator.aggregate in ("MIN", "MAX"):
        return SpatialGreatest(after, counts, 1.0 if operator.aggregate == "MAX" else -1.0, settings)
    return SpatialSum(after, counts, operator, settings)
