"""Targets of a run with real processes: how soon nodes come and go, and that every promise was kept."""

from __future__ import annotations

from typing import Final

from sterna.measure.papers.emma.analysis import CrowdVisit, visits
from sterna.measure.papers.emma.records import RunRecords, TownAccount
from sterna.measure.papers.emma.targets import EmmaTarget, target

SERVED_S: Final = 30.0
OFF_S: Final = 30.0
"""After the patience with a node that nobody needs."""
NOTE: Final = (
    "Real nodes, workers, gateways and a coordinator in network namespaces, and plain clients; each packet between "
    "hosts takes a sample of the same geography. There are fewer gateways and publishers than in the thesis, and "
    "thresholds of pressure are lower by as much. Management is echoes on the wire: the words of control lines pass "
    "inside MQTT and are not counted."
)


def live_targets(runs: list[RunRecords], dynamic: RunRecords, calm_s: float) -> list[EmmaTarget]:
    """Of all runs, and of the one whose nodes come and go."""
    found = [*_visits(visits(dynamic), calm_s)]
    accounts = [run.account for run in runs if run.account is not None]
    for what, of in (("lost at QoS 1 and 2", "lost"), ("twice at QoS 2", "twice")):
        count = sum(getattr(one, of) for one in accounts)
        found.append(
            target(f"messages {what}, of {_published(accounts):,} published", count, "0", "unknown", not count)
        )
    gone = sum(one.disconnected for one in accounts)
    found.append(target("clients that lost their connection", gone, "0", "unknown", not gone))
    return found


def are_kept(runs: list[RunRecords]) -> bool:
    """The promises."""
    return all(
        run.account is None or not (run.account.lost or run.account.twice or run.account.disconnected) for run in runs
    )


def _visits(found: list[CrowdVisit], calm_s: float) -> list[EmmaTarget]:
    never = float("inf")
    served = max((never if one.served_s is None else one.served_s for one in found), default=0.0)
    left = [one for one in found if one.leaves]
    off = max((never if one.off_s is None else one.off_s for one in left), default=0.0)
    bound = calm_s + OFF_S
    return [
        target(
            "a node beside a new crowd serves all of it after, s, slowest", served, "<= 30", "-", served <= SERVED_S
        ),
        target("it is off after the crowd has left, s, slowest", off, f"<= {bound:g}", "-", off <= bound),
    ]


def _published(accounts: list[TownAccount]) -> int:
    return sum(one.published for one in accounts)
