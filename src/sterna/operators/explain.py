"""Explains an expression to a user: the type after each step, the state it keeps, and where it runs."""

from __future__ import annotations

from sterna.operators.expression import Expression, Family, Operator
from sterna.operators.functions import NO_FUNCTIONS, Functions
from sterna.operators.settings import OperatorSettings
from sterna.operators.split import halves
from sterna.operators.types import StreamType, check
from sterna.operators.window_division import Division, division

_KEPT = {
    "COUNT": "a count",
    "SUM": "a count and a sum",
    "AVG": "a count and a sum",
    "STDDEV": "a count, a sum and a sum of squares",
    "MIN": "the least",
    "MAX": "the greatest",
    "MEDIAN": "a sketch (within 1 %)",
    "QUANTILE": "a sketch (within 1 %)",
    "LAST": "the newest",
}


def merged(expression: Expression, settings: OperatorSettings) -> Operator | None:
    """The aggregate that is computed in parts, where the messages are; None if these have to come to one place.  On
    Spark that is a period over single messages, between nodes what `halves` says."""
    if placed(expression, settings)[0] == "spark":
        return expression.periodic if division(expression) is Division.BY_MESSAGE else None
    found = halves(expression) if settings.partials else None
    return None if found is None else expression.operators[len(found.outside)]


def placed(expression: Expression, settings: OperatorSettings) -> tuple[str, str]:
    """Which engine computes it, node or spark, and why."""
    engine, words = settings.engine_of(expression.topic_filter)
    if engine == "node":
        return "node", f"as {words} says"
    if engine == "auto":
        return _placed_by_length(expression, settings)
    return "spark", f"as {words} says; {_on_spark(expression)}"


def _on_spark(expression: Expression) -> str:
    if expression.function:
        return "takes numbers in order of time; sterna pipeline operators must run, and have the function"
    if expression.forwards:
        return "passes messages of all nodes on in order of time; sterna pipeline operators must run"
    in_order = "" if division(expression) is Division.BY_MESSAGE else "takes the values of all nodes in order of time; "
    return f"{in_order}sterna pipeline operators must run"


def _placed_by_length(expression: Expression, settings: OperatorSettings) -> tuple[str, str]:
    if expression.function:
        return "node", "functions run in nodes unless Spark is chosen"
    if expression.forwards:
        return "node", "it passes messages on and computes nothing"
    periodic = expression.periodic
    if periodic is None:
        return "node", "it answers at each message, not at the end of windows"
    if division(expression) is not Division.BY_MESSAGE:
        return "node", f"what stands inside {periodic.text} needs messages in order"
    length_s = settings.period_us(periodic.period) / 1e6
    if length_s < settings.spark_period_s:
        return "node", f"its windows are shorter than spark_period_s = {settings.spark_period_s:g}"
    return "spark", f"windows of {length_s:g} s; sterna pipeline operators must run"


Step = tuple[str, str, str]
"""The work, its result, and a remark."""


def steps_of(expression: Expression, settings: OperatorSettings, functions: Functions = NO_FUNCTIONS) -> list[Step]:
    """From the messages to the result, and which engine computes it."""
    streams = check(expression)
    parts = merged(expression, settings)
    steps: list[Step] = [("messages", expression.topic_filter.decode(), "")]
    for operator, stream in zip(reversed(expression.operators), reversed(streams), strict=True):
        kept = _kept(operator, settings, functions) + ("; parts can be merged" if operator is parts else "")
        steps.append((operator.text, stream.value, kept))
    steps.append(("result", _result(expression, streams[0]), f"on {expression.result_topic.decode()}"))
    steps.append(("engine", *placed(expression, settings)))
    return steps


def explain(expression: Expression, settings: OperatorSettings, functions: Functions = NO_FUNCTIONS) -> list[str]:
    steps = steps_of(expression, settings, functions)
    wide, wider = (max(len(step[column]) for step in steps) for column in (0, 1))
    return [f"{name:{wide}}  {gives:{wider}}  {kept}".rstrip() for name, gives, kept in steps]


def _kept(operator: Operator, settings: OperatorSettings, functions: Functions) -> str:
    if operator.family is Family.FUNCTION:
        function = functions.get(operator.name)
        return "no such function on this node" if function is None else function.returns
    if operator.family is Family.CHANGE:
        return "keeps each topic's previous value"
    if operator.family is Family.SPATIAL:
        return f"keeps each topic's last value for {settings.expiry_us / 1e6:g} s, and {_KEPT[operator.aggregate]}"
    if operator.family is Family.SLIDING:
        return f"keeps the values of the last {operator.span_us / 1e6:g} s, and {_KEPT[operator.aggregate]}"
    if operator.family is Family.PERIODIC:
        length_s = settings.period_us(operator.period) / 1e6
        return f"keeps per topic {_KEPT[operator.aggregate]}; every {length_s:g} s from {settings.anchor} time"
    return "keeps nothing"


def _result(expression: Expression, stream: StreamType) -> str:
    if expression.forwards:
        return "the message itself"
    return "a list of numbers, by topic" if stream is StreamType.SET and expression.wildcard else "a number"
