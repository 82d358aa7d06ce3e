"""Quantiles within 1 % of the value at that rank, from counts in fixed buckets.

After DDSketch (Masson, Rim, Lee; VLDB 2019), but not its library: that one cannot take a value out again, which a
window must, and finds buckets by a logarithm, whose last bit differs between machines.  Here an octave is cut into 64
buckets of equal width, as HdrHistogram does, by integer arithmetic alone.  Half a bucket is at most 1/128 of a value
in it. Counts are added, so the order of values and of merging cannot matter; and as values count as 1e-12 to 1e12 in
magnitude, or 0, there are never more than 10,241 buckets.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from sterna.operators.exact_sum import BITS, ratio, to_exact

_SMALLEST: Final = 1e-12
_GREATEST: Final = 1e12
#: Bits of the smallest magnitude, less one: what the first octave counts from.
_FIRST: Final = to_exact(_SMALLEST).bit_length() - 1
_LAST_BUCKET = ((to_exact(_GREATEST).bit_length() - _FIRST) << 6) + 63

_Bucket = Annotated[int, msgspec.Meta(ge=-_LAST_BUCKET, le=_LAST_BUCKET)]
_Wire = list[tuple[_Bucket, Annotated[int, msgspec.Meta(gt=0)]]]


def bucket_of(value: float) -> int:
    """Buckets are in the order of the values in them; 0 is that of 0, and below it are those of negative ones."""
    if value == 0.0:
        return 0
    magnitude = to_exact(min(max(abs(value), _SMALLEST), _GREATEST))
    bits = magnitude.bit_length()
    bucket = ((bits - _FIRST) << 6) + ((magnitude >> (bits - 7)) & 63)
    return bucket if value > 0.0 else -bucket


def middle_of(bucket: int) -> float:
    if bucket == 0:
        return 0.0
    octave, place = divmod(abs(bucket), 64)
    middle = ratio((2 * (64 + place) + 1) << (octave + _FIRST - 8), 1 << BITS)
    return middle if bucket > 0 else -middle


class Sketch:
    __slots__ = ("buckets", "count", "octaves")

    def __init__(self) -> None:
        self.count = 0
        self.buckets: dict[int, int] = {}
        #: The same counts, 64 buckets together, so that a rank is found without a look at every bucket.
        self.octaves: dict[int, int] = {}

    def add(self, bucket: int, count: int) -> None:
        """Count so many more (or, below 0, fewer) values in a bucket."""
        self.count += count
        _change(self.buckets, bucket, count)
        _change(self.octaves, bucket >> 6, count)

    def merge(self, other: Sketch) -> None:
        """Counts of a sketch of its own are above 0, so nothing has to be looked for that falls to it."""
        self.count += other.count
        _add(self.buckets, other.buckets)
        _add(self.octaves, other.octaves)

    def take_out(self, other: Sketch) -> None:
        """The counts of another one, which are in here."""
        self.count -= other.count
        for mine, others in ((self.buckets, other.buckets), (self.octaves, other.octaves)):
            for place, count in others.items():
                if mine[place] == count:
                    del mine[place]
                else:
                    mine[place] -= count

    def value_at(self, numerator: int, denominator: int) -> float | None:
        """The smallest value that at least this share of all values does not exceed."""
        rank = max(1, -(-self.count * numerator // denominator))
        for octave in sorted(self.octaves):
            if rank > self.octaves[octave]:
                rank -= self.octaves[octave]
                continue
            for bucket in range(octave << 6, (octave + 1) << 6):
                rank -= self.buckets.get(bucket, 0)
                if rank <= 0:
                    return middle_of(bucket)
        return None

    def to_wire(self) -> list[tuple[int, int]]:
        return sorted(self.buckets.items())

    @staticmethod
    def from_wire(wire: object) -> Sketch:
        sketch = Sketch()
        octaves, pairs = sketch.octaves, msgspec.convert(wire, _Wire)
        for bucket, count in pairs:
            sketch.count += count
            octaves[bucket >> 6] = octaves.get(bucket >> 6, 0) + count
        sketch.buckets = dict(pairs)
        if len(sketch.buckets) < len(pairs):
            raise msgspec.ValidationError("a bucket comes twice")
        return sketch


def _add(counts: dict[int, int], others: dict[int, int]) -> None:
    if counts:
        for place, count in others.items():
            counts[place] = counts.get(place, 0) + count
    else:
        counts.update(others)


def _change(counts: dict[int, int], place: int, count: int) -> None:
    left = counts.get(place, 0) + count
    if left:
        counts[place] = left
    else:
        del counts[place]
