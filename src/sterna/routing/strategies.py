"""The strategies by name.  A network uses one; its nodes compare names when they meet."""

from __future__ import annotations

from collections.abc import Callable

from sterna.routing.advertisement import Advertisement
from sterna.routing.publication_flooding import PublicationFlooding
from sterna.routing.strategy import RoutingOutput, RoutingSettings, Strategy
from sterna.routing.subscription_flooding import SubscriptionFlooding
from sterna.vocabulary.errors import ConfigurationError

STRATEGIES = (PublicationFlooding.name, SubscriptionFlooding.name, Advertisement.name)


def make_strategy(
    name: str,
    node: str,
    output: RoutingOutput,
    *,
    now: Callable[[], float],
    schedule: Callable[[float, Callable[[], None]], None],
    settings: RoutingSettings | None = None,
) -> Strategy:
    if name == PublicationFlooding.name:
        return PublicationFlooding(output)
    if name == SubscriptionFlooding.name:
        return SubscriptionFlooding(output, settings)
    if name == Advertisement.name:
        return Advertisement(node, output, now=now, schedule=schedule, settings=settings or RoutingSettings())
    raise ConfigurationError(f"no routing strategy is called {name!r}; there are: {', '.join(STRATEGIES)}")
