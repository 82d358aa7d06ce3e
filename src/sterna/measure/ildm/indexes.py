"""The four indexes of section 5.1, computed from the raw log of a run and nothing else.

A log has a row for each PUBLISH sent (time, publisher, number) and received (time, subscriber, publisher, number);
times are nanoseconds of one clock.  `save` writes it as two CSV files.
"""

from __future__ import annotations

import csv
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

LIMIT = 0.99
"""Definition 1: the share of what is due that has to come out."""
SENT = "sent.csv"
RECEIVED = "received.csv"


@dataclass(slots=True)
class RawLog:
    begin_ns: int = 0
    end_ns: int = 0
    """Of the load; what came until everything had arrived is in the log too."""
    first_number: int = 0
    """Messages with smaller numbers are of earlier runs, and not in the log."""
    sent_ns: array[int] = field(default_factory=lambda: array("q"))
    sent_by: array[int] = field(default_factory=lambda: array("I"))
    sent_number: array[int] = field(default_factory=lambda: array("I"))
    received_ns: array[int] = field(default_factory=lambda: array("q"))
    received_by: array[int] = field(default_factory=lambda: array("I"))
    received_from: array[int] = field(default_factory=lambda: array("I"))
    received_number: array[int] = field(default_factory=lambda: array("I"))

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


def indexes(log: RawLog, deliveries: Sequence[int], cut_s: float) -> Indexes:
    """`deliveries`: how many subscribers each publisher's messages have.  `cut_s` is left out at both ends."""
    begin, end = log.begin_ns + int(cut_s * 1e9), log.end_ns - int(cut_s * 1e9)
    seconds = (end - begin) / 1e9
    sent = Counter(log.sent_by)
    expected = sum(count * deliveries[publisher] for publisher, count in sent.items())
    came = len(log.received_ns)
    distinct = _distinct(log)
    return Indexes(
        seconds=seconds,
        ingress=sum(begin <= moment < end for moment in log.sent_ns) / seconds,
        egress=sum(begin <= moment < end for moment in log.received_ns) / seconds,
        sent=len(log.sent_ns),
        expected=expected,
        lost=expected - distinct,
        duplicated=came - distinct,
    )


def _distinct(log: RawLog) -> int:
    """Deliveries that are not repetitions of another; one number for each, as there may be millions."""
    publishers = max(log.received_from, default=0) + 1
    numbers = max(log.received_number, default=0) + 1
    rows = zip(log.received_by, log.received_from, log.received_number, strict=True)
    return len({(subscriber * publishers + publisher) * numbers + number for subscriber, publisher, number in rows})
