"""The question of `sterna pipeline evaluate`: an expression, checked before Spark starts, and how Spark computes it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Literal

import typer

from sterna.cli.operators import parsed
from sterna.operators.window_division import division
from sterna.pipeline.expressions.batch_evaluation import Evaluation
from sterna.pipeline.expressions.function_tasks import check
from sterna.runtime.config.loading import load
from sterna.runtime.functions.pool import functions_of
from sterna.runtime.functions.settings import FunctionTable
from sterna.vocabulary.errors import SternaError


def question(
    text: str,
    since: datetime | None,
    until: datetime | None,
    anchor: Literal["subscription", "wall"] | None,
    config: Path | None,
) -> Evaluation:
    configuration = load(config, os.environ)
    settings, known = configuration.operators, functions_of(configuration.functions)
    expression = parsed(text, known)
    if expression.function and (refusal := known.refusal(expression.function)) is not None:
        raise SternaError(f"{refusal}, and name that configuration with --config FILE")
    if anchor is not None:
        settings = replace(settings, anchor=anchor)
    if since is None and expression.periodic is not None and settings.anchor == "subscription":
        raise typer.BadParameter(
            "say where windows begin: --from 2026-01-31T12:00:00Z, or --anchor wall", param_hint="--from"
        )
    since_us = 0 if since is None else round(since.timestamp() * 1e6)
    until_us = round((time.time() if until is None else until.timestamp()) * 1e6)
    table = configuration.functions if expression.function else None
    if table is not None:
        check(table)
    return Evaluation(expression.text, settings, since_us, until_us, table)


def functions(config: Path | None) -> FunctionTable:
    """Those of a node's configuration; PipelineError if one cannot be loaded."""
    table = load(config, os.environ).functions
    check(table)
    return table


def plan(asked: Evaluation) -> str:
    if asked.functions is not None:
        return "every task computes the numbers of what it reads; these go through one task, in order"
    return division(asked.expression).value
