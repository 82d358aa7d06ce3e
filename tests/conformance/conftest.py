"""Fixtures: one broker per test session, and a client id and a topic that no other test uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from . import peer
from .mosquitto_fails import reason_mosquitto_fails
from .peer import Broker, new_client_id, running_broker


@pytest.fixture(scope="session")
def broker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    with running_broker(tmp_path_factory.mktemp("broker")) as address:
        yield address


@pytest.fixture
def broker(broker_address: tuple[str, int]) -> Iterator[Broker]:
    broker = Broker(broker_address)
    yield broker
    broker.hang_up()


@pytest.fixture(params=[4, 5], ids=["v3.1.1", "v5.0"])
def version(request: pytest.FixtureRequest) -> int:
    """Both protocol levels: a test that asks for it holds in both."""
    return int(request.param)


@pytest.fixture
def client_id() -> str:
    return new_client_id()


@pytest.fixture
def topic() -> str:
    return f"conformance/{uuid4().hex[:12]}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if peer.NAME == "mosquitto":
        for item in items:  # the whole run's, so pick ours
            if item.path.parent == Path(__file__).parent and (reason := reason_mosquitto_fails(item.name)):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
