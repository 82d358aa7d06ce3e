"""`sterna bench operators`, in order on Spark: how many messages a second go through one place.

A journal is full of messages when the job starts, so that nothing but the job is measured.  The expression answers one
message in CYCLE, the last of a round; each result that comes says that a round more has been taken.
"""

from __future__ import annotations

import os
import tempfile
from itertools import pairwise

from sterna.measure.errors import MeasurementError
from sterna.measure.figures import FigureRow
from sterna.measure.harness.comparison import Say
from sterna.measure.workloads.operators.on_spark import command_of, job_of, subscribed, wait_for
from sterna.measure.workloads.pipeline.nodes import fill, started_node
from sterna.measure.workloads.pipeline.publisher import CYCLE, SENSORS, PublisherLoad
from sterna.pipeline.expressions.parts_source import HELD_ROWS_MAX

TABLES = {"operators": {"engine": "spark"}}
LINES = 100
GREATEST = sum(range(CYCLE - SENSORS * LINES, CYCLE))
EXPRESSION = f"$GTE;{GREATEST}$SUM/bench/#"
"""Payloads count up, topic after topic: their sum is so great at the end of a round only."""
BATCHES, QUICK_BATCHES = 6, 3
"""Full ones."""
PAUSE_S = 0.15
"""Results of a batch come closer together than that."""


def measure_in_order(say: Say, quick: bool) -> list[FigureRow]:
    rounds = (QUICK_BATCHES if quick else BATCHES) * HELD_ROWS_MAX // CYCLE
    with (
        started_node(tables=TABLES) as node,
        subscribed(node, [EXPRESSION]) as heard,
        tempfile.TemporaryDirectory() as directory,
    ):
        with job_of(command_of(directory, node)) as job:  # so that it knows from where on
            fill(node, PublisherLoad(messages=CYCLE, lines=LINES))
            wait_for(lambda: len(heard.results) >= 1, "first result", job)
        fill(node, PublisherLoad(messages=rounds * CYCLE, lines=LINES))
        say(f"    {rounds * CYCLE:,} messages wait for the job")
        with job_of(command_of(directory, node)) as job:
            wait_for(lambda: len(heard.results) > rounds, "results", job)
        load = os.getloadavg()[0]
    return [judge_in_order([came for came, _ in heard.times()][1:], load)]


def judge_in_order(came: list[float], load: float) -> FigureRow:
    """From the end of the first batch, when its results come, to that of the last."""
    first = next((place for place, (one, other) in enumerate(pairwise(came)) if other - one > PAUSE_S), None)
    if first is None:
        raise MeasurementError("all results came at once")
    messages = (len(came) - 1 - first) * CYCLE
    took_s = came[-1] - came[first]
    return FigureRow(
        name="spark-in-order",
        summary=f"one expression over {SENSORS * LINES:,} topics that needs messages in order ({EXPRESSION}), worked "
        "off from a full journal: messages a second.",
        unit="messages/s",
        figure=messages / took_s,
        verdict="shown",
        remarks=[f"{messages:,} messages in {took_s:.1f} s; the load of the machine was {load:.1f}."],
    )
