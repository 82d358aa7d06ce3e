"""Reports of a broker or a gateway as lines of the log: a report with a reason is a warning.

Strangers can be refused as often as they like.  The log has the first few refusals of each minute by address and code
(of clients that were let in: by client and code), then how many more there were; all are counted.
"""

from __future__ import annotations

import logging
from typing import Any

from sterna.vocabulary.throttle import Throttle, ThrottledKind

THROTTLED = frozenset({"connection failed", "client sent away"})


class Reports:
    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._throttle = Throttle()

    def report(self, event: str, fields: dict[str, Any]) -> None:
        level = logging.WARNING if "reason" in fields else logging.INFO
        if not self._log.isEnabledFor(level):
            return
        if event in THROTTLED and not self._throttle.admits(_kind(event, fields)):
            return
        self._log.log(level, event, extra=fields)

    def turn_over(self, now: float) -> None:
        """Called every now and then."""
        for kind, count in self._throttle.turn_over(now):
            fields = {"of": kind.who, "code": kind.what or None, "more": count, "reason": f"and {count:,} more"}
            self._log.warning(kind.event, extra=fields)


def _kind(event: str, fields: dict[str, Any]) -> ThrottledKind:
    is_known = "user" in fields or "address" not in fields
    # A client identifier may be long, and there may be many of them.
    who = str(fields.get("client"))[:100] if is_known else _host(str(fields["address"]))
    return ThrottledKind(event, who, str(fields.get("code", "")))


def _host(address: str) -> str:
    return address.rpartition(":")[0] or address
