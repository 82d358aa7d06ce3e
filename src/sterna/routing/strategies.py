"""The routing strategies by name.  A network uses one; its nodes compare names when they meet.

A new strategy is a module and a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sterna.routing.advertisement import Advertisement
from sterna.routing.mobile import MobileRouting
from sterna.routing.publication_flooding import PublicationFlooding
from sterna.routing.strategy import RoutingOutput, RoutingSettings, Strategy
from sterna.routing.subscription_flooding import SubscriptionFlooding
from sterna.vocabulary.errors import ConfigurationError


class Surroundings(NamedTuple):
    """A node as its strategy sees it."""

    node: str
    output: RoutingOutput
    now: Callable[[], float]
    schedule: Callable[[float, Callable[[], None]], None]
    settings: RoutingSettings


STRATEGIES: dict[str, Callable[[Surroundings], Strategy]] = {
    PublicationFlooding.name: lambda at: PublicationFlooding(at.output),
    SubscriptionFlooding.name: lambda at: SubscriptionFlooding(at.output, at.settings),
    Advertisement.name: lambda at: Advertisement(
        at.node, at.output, now=at.now, schedule=at.schedule, settings=at.settings
    ),
    MobileRouting.name: lambda at: MobileRouting(
        at.node, at.output, now=at.now, schedule=at.schedule, settings=at.settings
    ),
}


def make_strategy(
    name: str,
    node: str,
    output: RoutingOutput,
    *,
    now: Callable[[], float],
    schedule: Callable[[float, Callable[[], None]], None],
    settings: RoutingSettings | None = None,
) -> Strategy:
    if name not in STRATEGIES:
        raise ConfigurationError(f"no routing strategy is called {name!r}; there are: {', '.join(STRATEGIES)}")
    return STRATEGIES[name](Surroundings(node, output, now, schedule, settings or RoutingSettings()))
