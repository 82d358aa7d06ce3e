"""What a user is told of an expression, and which functions there can be."""

from __future__ import annotations

import pytest

from sterna.broker.expressions.computations import Computations
from sterna.broker.limits import Limits
from sterna.operators.errors import ExpressionError
from sterna.operators.explain import explain
from sterna.operators.functions import NO_FUNCTIONS, Functions
from sterna.operators.grammar import parse
from sterna.operators.settings import EngineChoice, OperatorSettings


def test_a_plan_names_every_step_from_the_messages_to_the_result() -> None:
    functions = Functions()
    functions.register("CNTPPL", lambda payload: 0.0, "people in an image")
    lines = explain(parse(b"$MAX$DAILYAVG$COUNTPEOPLE/room/+/camera"), OperatorSettings(), functions)
    assert [line.split("  ")[0] for line in lines] == [
        "messages", "$COUNTPEOPLE", "$DAILYAVG", "$MAX", "result", "engine",
    ]  # fmt: skip
    assert "people in an image" in lines[1]
    assert "at each window's end, a number per topic" in lines[2]
    assert "every 86400 s" in lines[2]
    assert "parts can be merged" not in " ".join(lines), "pictures travel to the nodes that have the function"
    assert lines[4].endswith("on $MAX$DAILYAVG$COUNTPEOPLE/room/$A/camera")
    assert lines[5].split()[:2] == ["engine", "node"]


@pytest.mark.parametrize(
    ("text", "chosen", "engine", "why"),
    [
        ("$HOURLYAVG/t/+", OperatorSettings(), "node", 'engine = "node"'),
        ("$HOURLYAVG/t/+", OperatorSettings(engine="spark"), "spark", "sterna pipeline operators must run"),
        ("$MAX$HOURLYAVG$GT;3/t/+", OperatorSettings(engine="auto"), "spark", "windows of 3600 s"),
        ("$QUARTERHOURLYAVG/t/+", OperatorSettings(engine="auto"), "node", "shorter than spark_period_s = 3600"),
        ("$QUARTERHOURLYAVG/t/+", OperatorSettings(engine="auto", spark_period_s=900), "spark", "windows of 900 s"),
        ("$AVG/t/+", OperatorSettings(), "node", 'engine = "node"'),
        ("$AVG/t/+", OperatorSettings(engine="auto"), "node", "answers at each message"),
        ("$AVG/t/+", OperatorSettings(engine="spark"), "spark", "in order of time; sterna pipeline operators must run"),
        ("$GT;3$TMPSUM;0:10:00;.v/t/+", OperatorSettings(engine="spark"), "spark", "in order of time"),
        ("$HOURLYAVG$DELTA/t/+", OperatorSettings(engine="auto"), "node", "inside $HOURLYAVG needs messages in order"),
        ("$HOURLYAVG$DELTA/t/+", OperatorSettings(engine="spark"), "spark", "in order of time"),
        (
            "$CONTAINS;x$CONTAINS;y/t/+",
            OperatorSettings(engine="spark"),
            "spark",
            "passes messages of all nodes on in order",
        ),
        ("$GT;5/t/+", OperatorSettings(engine="auto"), "node", "passes messages on and computes nothing"),
        ("$GT;5/t/+", OperatorSettings(), "node", 'engine = "node"'),
        ("$HOURLYAVG$COUNTPEOPLE/t/+", OperatorSettings(engine="spark"), "spark", "must run, and have the function"),
        (
            "$DAILYAVG$COUNTPEOPLE/t/+",
            OperatorSettings(engine="auto"),
            "node",
            "functions run in nodes unless Spark is chosen",
        ),
    ],
)
def test_a_plan_says_where_it_runs_and_why(text: str, chosen: OperatorSettings, engine: str, why: str) -> None:
    line = explain(parse(text.encode()), chosen)[-1]
    assert line.split()[:2] == ["engine", engine]
    assert why in line


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$GT;5/t/+", "the message itself"),
        ("$GT;5$HOURLYAVG/t/+", "a list of numbers, by topic"),
        ("$HOURLYAVG/t", "a number"),
        ("$HOURLYAVG$MAX/t/+", "a number"),
        ("$DELTA/t/+", "a number"),
    ],
)
def test_a_plan_says_what_is_published(text: str, result: str) -> None:
    assert f"  {result}  " in explain(parse(text.encode()), OperatorSettings())[-2]


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("$GT;5$AVG$GT;2/t/+", "$AVG"),
        ("$MAX$HOURLYAVG/t/+", "$HOURLYAVG"),
        ("$MAX$AVG/t/+", "$AVG"),
        ("$MAX$TMPAVG;0:01:00/t/+", None),
        ("$DELTA/t/+", None),
        ("$SUM$DELTA/t/+", None),
        ("$TMPMAX;0:01:00$SUM/t/+", None),
        ("$HOURLYMAX$SUM/t/+", None),
        ("$HOURLYMAX$COUNTPEOPLE/t/+", None),
    ],
)
def test_a_plan_says_what_is_computed_in_parts_and_that_is_what_nodes_do(text: str, operator: str | None) -> None:
    expression = parse(text.encode())
    for settings in (OperatorSettings(), OperatorSettings(partials=False)):
        marked = [line.split()[0] for line in explain(expression, settings) if line.endswith("parts can be merged")]
        in_parts = Computations(Limits(), settings, NO_FUNCTIONS).comes_in_parts(text.encode())
        assert bool(marked) == in_parts
        assert marked == ([operator] if operator is not None and settings.partials else [])


@pytest.mark.parametrize(
    ("text", "operators"),
    [
        ("$TMPMAX;2:00:00$HOURLYSUM/t", ["$HOURLYSUM"]),
        ("$HOURLYSUM$RATE/t", []),
        ("$HOURLYSUM$COUNTPEOPLE/t", []),
        ("$SUM/t/+", []),
    ],
)
def test_spark_merges_parts_of_periods_over_single_messages(text: str, operators: list[str]) -> None:
    lines = explain(parse(text.encode()), OperatorSettings(engine="spark"))
    assert [line.split()[0] for line in lines if "parts" in line] == operators


CHOICES = (EngineChoice("plant/secret/#", "node"), EngineChoice("plant/#", "spark"), EngineChoice("lab/+/t", "auto"))


@pytest.mark.parametrize(
    ("text", "engine", "why"),
    [
        ("$QUARTERHOURLYAVG/plant/1/+", "spark", '[[operators.engines]] filter = "plant/#" engine = "spark"'),
        ("$HOURLYAVG/plant/secret/x", "node", 'filter = "plant/secret/#" engine = "node"'),
        ("$HOURLYAVG/plant/#", "spark", 'filter = "plant/#"'),
        ("$HOURLYAVG/#", "node", 'engine = "node"'),
        ("$HOURLYAVG/lab/1/t", "spark", "windows of 3600 s"),
        ("$QUARTERHOURLYAVG/lab/1/t", "node", "shorter than spark_period_s"),
        ("$AVG/plant/+", "spark", "in order of time"),
        ("$GT;5/plant/+", "spark", "passes messages of all nodes on"),
        ("$GT;5/lab/1/t", "node", "passes messages on"),
        ("$AVG/lab/1/t", "node", "answers at each message"),
    ],
)
def test_engines_may_differ_by_filter_and_the_first_that_covers_it_decides(text: str, engine: str, why: str) -> None:
    line = explain(parse(text.encode()), OperatorSettings(engines=CHOICES))[-1]
    assert line.split()[:2] == ["engine", engine]
    assert why in line


def test_a_registered_function_is_a_word_of_the_language() -> None:
    functions = Functions()
    functions.register("BRIGHTNESS", lambda payload: 0.0, "0 to 255")
    assert parse(b"$MAX$BRIGHTNESS/t", functions).operators[1].name == "BRIGHTNESS"
    assert functions.names() == ["BRIGHTNESS"]
    with pytest.raises(ExpressionError, match="unknown operator"):
        parse(b"$MAX$BRIGHTNESS/t")


@pytest.mark.parametrize("name", ["AVG", "TMPSUM", "SYS", "brightness", "", "A-B", "A" * 65, "TAKEN", "CNTPPL"])
def test_a_name_that_is_taken_or_cannot_be_one_is_refused(name: str) -> None:
    functions = Functions()
    functions.register("TAKEN", lambda payload: 0.0, "nothing")
    functions.register("COUNTPEOPLE", lambda payload: 0.0, "people")
    with pytest.raises(ValueError, match="cannot be the name"):
        functions.register(name, lambda payload: 0.0, "nothing")
