"""The keywords of the language: every operator's name, its family, and an example."""

from __future__ import annotations

from dataclasses import dataclass

from sterna.operators.expression import Family

_AGGREGATES = ("AVG", "SUM", "MIN", "MAX", "COUNT", "STDDEV", "MEDIAN")
PERIODS = ("DAILY", "HOURLY", "QUARTERHOURLY")


@dataclass(frozen=True, slots=True)
class Keyword:
    family: Family
    name: str
    example: str
    """How it is written, with parameters that are possible ones."""
    aggregate: str = ""
    period: str = ""


def _keywords() -> dict[str, Keyword]:
    words = {name: Keyword(Family.RULE, name, f"${name};25") for name in ("GT", "GTE", "LT", "LTE", "EQ", "NEQ")}
    words["CONTAINS"] = Keyword(Family.CONTAINS, "CONTAINS", "$CONTAINS;text")
    words |= {name: Keyword(Family.CHANGE, name, f"${name}") for name in ("DELTA", "RATE")}
    words |= {name: Keyword(Family.SPATIAL, name, f"${name}", name) for name in (*_AGGREGATES, "LAST")}
    words["QUANTILE"] = Keyword(Family.SPATIAL, "QUANTILE", "$QUANTILE;0.95", "QUANTILE")
    for aggregate in _AGGREGATES:
        name = f"TMP{aggregate}"
        words[name] = Keyword(Family.SLIDING, name, f"${name};0:15:00", aggregate)
        for period in PERIODS:
            name = f"{period}{aggregate}"
            words[name] = Keyword(Family.PERIODIC, name, f"${name}", aggregate, period)
    # The counting operators of MQTT+, under the spelling of its text and that of its code.
    for name, alias in (("COUNTPEOPLE", "CNTPPL"), ("COUNTMALE", "CNTMALE"), ("COUNTFEMALE", "CNTFEM")):
        words[name] = words[alias] = Keyword(Family.FUNCTION, name, f"${name}")
    return words


KEYWORDS: dict[str, Keyword] = _keywords()
