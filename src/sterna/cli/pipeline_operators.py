"""What `sterna pipeline evaluate` is asked: an expression, checked before Spark is started, and how it will be done."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Literal

import typer

from sterna.broker.computation import function_of
from sterna.cli.operators import parsed
from sterna.operators.windows_apart import division
from sterna.pipeline.evaluation import Question
from sterna.runtime.configuration import load
from sterna.vocabulary.errors import SternaError


def question(
    text: str,
    since: datetime | None,
    until: datetime | None,
    anchor: Literal["subscription", "wall"] | None,
    config: Path | None,
) -> Question:
    expression = parsed(text)
    if function_of(expression):
        raise SternaError("functions run on nodes only; leave the data processing operator out")
    settings = load(config, os.environ).operators
    if anchor is not None:
        settings = replace(settings, anchor=anchor)
    if since is None and expression.periodic is not None and settings.anchor == "subscription":
        raise typer.BadParameter(
            "say where windows begin: --from 2026-01-31T12:00:00Z, or --anchor wall", param_hint="--from"
        )
    since_us = 0 if since is None else round(since.timestamp() * 1e6)
    until_us = round((time.time() if until is None else until.timestamp()) * 1e6)
    return Question(expression.text, settings, since_us, until_us)


def plan(asked: Question) -> str:
    return division(asked.expression).value
