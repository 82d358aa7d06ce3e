"""`sterna experiment ...`: repeat experiments of papers."""

from __future__ import annotations

from functools import partial

from sterna.cli.pipeline import spark_session
from sterna.measure.registry import EXPERIMENTS

app = EXPERIMENTS.app(partial(spark_session, "sterna experiment", "local[*]", None))
