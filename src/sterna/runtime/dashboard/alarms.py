"""Alarms: what an operator should look at now, from the picture of one node.  A new alarm is a row of `RULES`.

An alarm is a statement about the present: it goes when its cause goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Row = dict[str, Any]

CERTIFICATE_DAYS = 14
DAY_S = 86_400.0
ALARMS_MAX = 50
"""Of one node."""


class AlarmRule(NamedTuple):
    level: str
    """`error`: a promise is in danger, or something does not work; `warning`: somebody should look."""
    find: Callable[[Row], Iterator[str]]


def _not_ready(row: Row) -> Iterator[str]:
    if row["not_ready"]:
        yield f"not ready: {row['not_ready']}"


def _damaged(row: Row) -> Iterator[str]:
    if lost := row["totals"]["journal_lost"]:
        yield f"{lost} messages in the journal are damaged"


def _cut_off(row: Row) -> Iterator[str]:
    for node in row["absent"]:
        yield f"node {node} cannot be reached"


def _unsynced(row: Row) -> Iterator[str]:
    for origin in row["unsynced"]:
        yield f"messages of {origin} are being caught up"


def _congested(row: Row) -> Iterator[str]:
    for link in row["links"]:
        if link["congested"]:
            yield f"the link to {link['peer']} is congested"


def _foreign(row: Row) -> Iterator[str]:
    foreign = row["foreign"]
    if foreign is not None and foreign["state"] != "attached":
        yield f"the broker at {foreign['broker']} is {foreign['state']}: {foreign['trouble'] or 'no reason known'}"


def _certificates(row: Row) -> Iterator[str]:
    for listener, seconds in row["certificates"].items():
        if seconds < CERTIFICATE_DAYS * DAY_S:
            yield f"the certificate of {listener} expires in {max(0, int(seconds // DAY_S))} days"


def _readers(row: Row) -> Iterator[str]:
    if row["feed"] is not None and row["feed"]["lost"]:
        yield f"readers of the feed lost {row['feed']['lost']} messages to retention"


def _emptied(row: Row) -> Iterator[str]:
    if row["evacuation"] is not None:
        yield f"it is being emptied: {row['evacuation']['left']} sessions are left"


RULES = (
    AlarmRule("error", _not_ready),
    AlarmRule("error", _damaged),
    AlarmRule("error", _cut_off),
    AlarmRule("error", _foreign),
    AlarmRule("warning", _unsynced),
    AlarmRule("warning", _congested),
    AlarmRule("warning", _certificates),
    AlarmRule("warning", _readers),
    AlarmRule("warning", _emptied),
)


def alarms_of(row: Row) -> list[Row]:
    """Errors first, at most `ALARMS_MAX`."""
    found = [{"level": rule.level, "text": text} for rule in RULES for text in rule.find(row)]
    return found[:ALARMS_MAX]
