"""`sterna bench ...`: measure brokers beside each other, and the pipeline."""

from __future__ import annotations

from functools import partial

from sterna.cli.pipeline import spark_session
from sterna.measure.registry import BENCHES

app = BENCHES.app(partial(spark_session, "sterna bench", "local[*]", None))
