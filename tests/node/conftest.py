"""Every test between nodes that asks for a strategy runs under each."""

from __future__ import annotations

import pytest

STRATEGIES = ("publication-flooding", "subscription-flooding", "advertisement")


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
