"""The four indexes of section 5.1, computed from the raw log of a run and nothing else.

A log has a row for each PUBLISH sent (time, publisher, number) and received (time, subscriber, publisher, number);
times are nanoseconds of one clock, and rise.  `save` writes it as two CSV files.

A small host runs in bursts, one in each period of its share.  A window that begins or ends amid a burst would count a
part of it, which in a short run is more than the one in a hundred of Definition 1.  So windows may be blurred: the
rate is the mean over windows that begin at all moments of the blur.
"""

from __future__ import annotations

import csv
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

LIMIT = 0.99
"""Definition 1: the share of what is due that has to come out."""
BLUR_STEPS = 100
SENT = "sent.csv"
RECEIVED = "received.csv"


@dataclass(slots=True)
class RawLog:
    begin_ns: int = 0
    end_ns: int = 0
    """Of the load; what came until everything had arrived is in the log too."""
    sent_ns: array[int] = field(default_factory=lambda: array("q"))
    sent_by: array[int] = field(default_factory=lambda: array("I"))
    sent_number: array[int] = field(default_factory=lambda: array("I"))
    received_ns: array[int] = field(default_factory=lambda: array("q"))
    received_by: array[int] = field(default_factory=lambda: array("I"))
    received_from: array[int] = field(default_factory=lambda: array("I"))
    received_number: array[int] = field(default_factory=lambda: array("I"))

    def received(self, moment_ns: int, subscriber: int, publishers: array[int], numbers: array[int]) -> None:
        """Messages that a subscriber read at once."""
        self.received_ns.extend(array("q", (moment_ns,)) * len(numbers))
        self.received_by.extend(array("I", (subscriber,)) * len(numbers))
        self.received_from.extend(publishers)
        self.received_number.extend(numbers)

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        sent = zip(self.sent_ns, self.sent_by, self.sent_number, strict=True)
        received = zip(self.received_ns, self.received_by, self.received_from, self.received_number, strict=True)
        heads = {SENT: ("ns", "publisher", "number"), RECEIVED: ("ns", "subscriber", "publisher", "number")}
        for name, rows in (SENT, sent), (RECEIVED, received):
            with (directory / name).open("w", newline="") as stream:
                writer = csv.writer(stream)
                writer.writerow(heads[name])
                writer.writerows(rows)


class Indexes(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    """Of the interval that counts."""
    ingress: float
    """Messages a second from publishers."""
    egress: float
    """Messages a second to subscribers."""
    sent: int
    expected: int
    """Deliveries of all that was sent, in the whole run."""
    lost: int
    duplicated: int

    @property
    def loss_rate(self) -> float:
        return self.lost / self.expected if self.expected else 0.0

    def share(self, sp_ratio: float) -> float:
        """Of Definition 1."""
        return self.egress / (self.ingress * sp_ratio) if self.ingress else 0.0

    def is_under_limit(self, sp_ratio: float) -> bool:
        return self.share(sp_ratio) >= LIMIT


def indexes(log: RawLog, deliveries: Sequence[int], cut_s: float, blur_s: float = 0.0) -> Indexes:
    """`deliveries`: how many subscribers each publisher's messages have.  `cut_s` is left out at both ends.  The rest,
    less `blur_s`, is as long as the windows that count."""
    begin, blur = log.begin_ns + int(cut_s * 1e9), int(blur_s * 1e9)
    window = log.end_ns - int(cut_s * 1e9) - begin - blur
    begins = [begin + step * blur // BLUR_STEPS for step in range(BLUR_STEPS)] if blur else [begin]
    sent = Counter(log.sent_by)
    expected = sum(count * deliveries[publisher] for publisher, count in sent.items())
    came = len(log.received_ns)
    distinct = _distinct(log)
    return Indexes(
        seconds=window / 1e9,
        ingress=_rate(log.sent_ns, begins, window),
        egress=_rate(log.received_ns, begins, window),
        sent=len(log.sent_ns),
        expected=expected,
        lost=expected - distinct,
        duplicated=came - distinct,
    )


def _rate(moments: array[int], begins: Sequence[int], window_ns: int) -> float:
    """A second, on average over the windows."""
    found = sum(bisect_left(moments, begin + window_ns) - bisect_left(moments, begin) for begin in begins)
    return found / len(begins) / (window_ns / 1e9)


def _distinct(log: RawLog) -> int:
    """Deliveries that are not repetitions of another.  There may be millions, so only gaps are remembered."""
    publishers = max(log.received_from, default=0) + 1
    first = min(log.sent_number, default=0)
    last: dict[int, int] = {}
    missing: dict[int, set[int]] = {}
    found = 0
    for subscriber, publisher, number in zip(log.received_by, log.received_from, log.received_number, strict=True):
        pair = subscriber * publishers + publisher
        before = last.get(pair, first - 1)
        if number > before:
            last[pair] = number
            found += 1
            if number > before + 1:
                missing.setdefault(pair, set()).update(range(before + 1, number))
        elif number in missing.get(pair, ()):
            missing[pair].discard(number)
            found += 1
    return found
