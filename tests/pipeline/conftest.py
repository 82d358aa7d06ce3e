"""Fixtures: one Spark session for all tests, and nodes whose feed it reads.

Nodes are real processes; Spark runs in this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from sterna.measure.harness.ports import free_port

from .feeding import FeedingNode
from .gating import ADMIN
from .object_store import store_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session")
def store_port() -> Iterator[int]:
    """The port of the object store, which starts with the first test that needs it.  Processes of Spark have the
    environment of its start, so that is set before."""
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store_environment(port).items():
            patch.setenv(name, value)
        yield port


@pytest.fixture(scope="session")
def spark(store_port: int) -> Iterator[SparkSession]:
    from sterna.pipeline.spark_session import open_session

    session = open_session("tests", "local[2]", SMALL)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def feeding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeedingNode]:
    """A node shared by every test that harms nobody; tests use topics of their own."""
    with FeedingNode(tmp_path_factory.mktemp("feeding"), ADMIN, name="shared") as node:
        yield node


@pytest.fixture
def start_feeding(tmp_path: Path) -> Iterator[Callable[..., FeedingNode]]:
    """Starts a node of the test's own: `start_feeding("b", "[journal]\\n...")`."""
    nodes: list[FeedingNode] = []

    def start(name: str = "own", toml: str = "", **feed: object) -> FeedingNode:
        nodes.append(FeedingNode(tmp_path / name, toml, name=name, **feed))
        nodes[-1].start()
        return nodes[-1]

    yield start
    for node in nodes:
        node.kill()


@pytest.fixture
def topic() -> str:
    """A first level that no other test uses."""
    return f"t{uuid4().hex[:10]}"
