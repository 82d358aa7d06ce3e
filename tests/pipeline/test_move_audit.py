"""The account of clients that moved finds what was lost, repeated and out of order, and how long it was silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sterna.measure.papers.migration.records import MoveRecords
from sterna.pipeline.audit.move_audit import account

pytestmark = pytest.mark.timeout(600)  # Spark starts slowly on a busy machine

BEGUN = 1_800_000_000.0


def run(client: str, heard: list[int], qos: int) -> MoveRecords:
    """Ten messages, a tenth of a second apart, the client moves at half a second."""
    topic = f"{client.replace(' ', '/')}/topicA"
    origin = f"{topic}@source"
    return MoveRecords(
        messages=[(topic, 2, "p", origin, 1, number, BEGUN + number / 10) for number in range(10)],
        subscriptions=[(client, topic, qos, BEGUN - 2, BEGUN - 1)],
        deliveries=[
            (
                client,
                topic,
                origin,
                1,
                number,
                qos,
                BEGUN + place / 10 + (0.05 if place < 5 else 0.15),
                place,
                False,
                "",
            )
            for place, number in enumerate(heard)
        ],
        moves=[(client, "e", 1, "mqtt5", BEGUN + 0.5, BEGUN + 0.6, BEGUN + 0.6, True, 0, "", "")],
    )


@pytest.fixture(scope="module")
def found(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    directory: Path = tmp_path_factory.mktemp("records")
    stories = {
        "whole 1 mqtt5": (list(range(10)), 2),
        "gap 1 mqtt5": ([0, 1, 2, 3, 4, 7, 8, 9], 0),
        "end 1 mqtt5": (list(range(8)), 1),
        "twice 1 mqtt5": ([0, 1, 2, 3, 4, 3, 4, 5, 6, 7, 8, 9], 1),
        "swapped 1 mqtt5": ([0, 1, 3, 2, 4, 5, 6, 7, 8, 9], 2),
    }
    for client, (heard, qos) in stories.items():
        run(client, heard, qos).write(directory, client.replace(" ", "-"))
    return {row["client"].split()[0]: row for row in account(spark, directory)}


def counts(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(row[name] for name in ("expected", "delivered", "lost", "duplicated", "reordered"))


def test_what_went_well_is_counted_as_such(found: dict[str, dict[str, Any]]) -> None:
    assert counts(found["whole"]) == (10, 10, 0, 0, 0)
    assert found["whole"]["qos"] == 2


def test_what_never_came_is_lost_whether_or_not_anything_came_after_it(found: dict[str, dict[str, Any]]) -> None:
    assert counts(found["gap"]) == (10, 8, 2, 0, 0)
    assert counts(found["end"]) == (10, 8, 2, 0, 0)


def test_what_came_again_and_out_of_order_is_counted(found: dict[str, dict[str, Any]]) -> None:
    assert counts(found["twice"]) == (10, 10, 0, 2, 0)
    assert counts(found["swapped"]) == (10, 10, 0, 0, 1)


def test_latencies_before_and_after_and_the_silence_between(found: dict[str, dict[str, Any]]) -> None:
    row = found["whole"]
    assert row["before_ms"] == pytest.approx(50, abs=1)
    assert row["after_ms"] == pytest.approx(150, abs=1)
    assert row["silence_ms"] == pytest.approx(200, abs=1)
    assert row["gap_ms"] == pytest.approx(100, abs=1)


def test_a_repetition_breaks_no_silence_and_a_silence_that_never_ends_is_none(found: dict[str, dict[str, Any]]) -> None:
    # Numbers 3 and 4 come again where 5 was due: the stream is silent until 5 comes, 0.3 s after 4.
    assert found["twice"]["silence_ms"] == pytest.approx(400, abs=1)
    assert found["end"]["silence_ms"] == pytest.approx(200, abs=1)
