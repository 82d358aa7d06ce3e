"""The language: what is an expression, what each part of one means, and which operator is to blame when it is none."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.operators.errors import ExpressionError
from sterna.operators.expression import Family
from sterna.operators.grammar import EXPRESSION_BYTES_MAX, OPERATORS_MAX, is_expression, parse
from sterna.operators.keywords import KEYWORDS
from sterna.operators.types import StreamType, check

#: One of each family, in the order of the columns below.
ONE_OF_EACH = {
    "RULE": "$GT;25",
    "CONTAINS": "$CONTAINS;x",
    "SPATIAL": "$AVG",
    "TMP": "$TMPAVG;0:10:00",
    "PERIODIC": "$DAILYAVG",
    "IMAGE": "$COUNTPEOPLE",
    "CHANGE": "$DELTA",
}

#: Outer operator -> may it stand left of RULE, CONTAINS, SPATIAL, TMP, PERIODIC, IMAGE, CHANGE?
ACCEPTED = {
    "RULE": "yes no yes yes yes yes yes",
    "CONTAINS": "no yes no no no no no",
    "SPATIAL": "yes no yes yes yes yes yes",
    "TMP": "yes yes yes yes yes yes yes",
    "PERIODIC": "yes yes yes yes no yes yes",
    "IMAGE": "no no no no no no no",
    "CHANGE": "yes no no no no yes yes",
}
PAIRS = [
    (outer, inner, word == "yes")
    for outer, row in ACCEPTED.items()
    for inner, word in zip(ONE_OF_EACH, row.split(), strict=True)
]


def blamed(text: str) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        parse(text.encode())
    return caught.value


@pytest.mark.parametrize(("outer", "inner", "accepted"), PAIRS)
def test_every_pair_of_operators_is_taken_or_refused_as_the_table_says(outer: str, inner: str, accepted: bool) -> None:
    text = f"{ONE_OF_EACH[outer]}{ONE_OF_EACH[inner]}/room/+"
    if accepted:
        assert len(parse(text.encode()).operators) == 2
    else:
        assert (blamed(text).operator, blamed(text).position) == (ONE_OF_EACH[outer], 0)


def test_three_operators_are_taken_where_both_pairs_are_and_nothing_hides_an_aggregate() -> None:
    may = {(outer, inner) for outer, inner, accepted in PAIRS if accepted}
    aggregates = {"SPATIAL", "TMP", "PERIODIC"}
    taken = set()
    for three in product(ONE_OF_EACH, repeat=3):
        try:
            parse("".join(ONE_OF_EACH[one] for one in three).encode() + b"/t")
        except ExpressionError:
            continue
        taken.add(three)
    assert taken == {
        (a, b, c)
        for a, b, c in product(ONE_OF_EACH, repeat=3)
        if (a, b) in may
        and (b, c) in may
        and (a, b, c).count("PERIODIC") < 2
        and not (a == "CHANGE" and c in aggregates)
    }


@pytest.mark.parametrize("name", sorted(KEYWORDS))
def test_every_word_is_understood_as_its_example_is_written(name: str) -> None:
    operator = parse(f"{KEYWORDS[name].example.replace(KEYWORDS[name].name, name)}/t".encode()).operators[0]
    assert (operator.name, operator.family) == (KEYWORDS[name].name, KEYWORDS[name].family)


def test_the_parts_of_an_expression() -> None:
    expression = parse(b"$GT;-2.50$MAX$HOURLYAVG;.sensor.values.0/plant/+/t/#")
    rule, spatial, periodic = expression.operators
    assert (rule.name, rule.number, rule.position) == ("GT", -2.5, 0)
    assert (spatial.aggregate, spatial.position) == ("MAX", 9)
    assert (periodic.period, periodic.aggregate, periodic.position) == ("HOURLY", "AVG", 13)
    assert periodic.field == ("sensor", "values", "0")
    assert expression.topic_filter == b"plant/+/t/#"
    assert expression.result_topic == b"$GT;-2.50$MAX$HOURLYAVG;.sensor.values.0/plant/$A/t/$ALL"
    assert check(expression) == (StreamType.SINGLE, StreamType.SINGLE, StreamType.SET)


def test_parameters_are_exact() -> None:
    assert parse(b"$QUANTILE;0.95/t").operators[0].quantile == Fraction(95, 100)
    assert parse(b"$TMPAVG;1:02:03/t").operators[0].span_us == 3_723_000_000
    assert parse(b"$TMPAVG;23:59:59/t").operators[0].span_us == 86_399_000_000
    assert parse(b"$EQ;007/t").operators[0].number == 7.0
    assert repr(parse(b"$EQ;-0/t").operators[0].number) == "0.0"


@pytest.mark.parametrize(
    ("text", "needle", "field"),
    [
        ("$CONTAINS;a;b/t", "a;b", ()),
        ("$CONTAINS;.a/t", ".a", ()),
        ("$CONTAINS;;.a/t", None, None),
        ("$CONTAINS;x;.a/t", "x", ("a",)),
        ("$CONTAINS;grün/t", "grün", ()),
    ],
)
def test_the_text_of_contains_ends_where_a_field_begins(text: str, needle: str | None, field: tuple[str, ...]) -> None:
    if needle is None:
        assert "the text to look for" in blamed(text).text
    else:
        operator = parse(text.encode()).operators[0]
        assert (operator.needle, operator.field) == (needle, field)


@pytest.mark.parametrize("alias", ["COUNTPEOPLE", "CNTPPL"])
def test_both_spellings_of_the_counting_operators_are_one(alias: str) -> None:
    expression = parse(f"$MAX$DAILYAVG${alias}/room/+".encode())
    assert expression.operators[-1].name == "COUNTPEOPLE"
    assert expression.operators[-1].family is Family.FUNCTION


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        ("$AVG/room/+", True),
        ("$GT;25$AVG/x", True),
        ("$AVG", True),
        ("$NONSENSE/x", True),
        ("$SYSTEM/x", True),
        ("$SYS/broker/load", False),
        ("$SYS", False),
        ("$share/group/x", False),
        ("$share/group/$AVG/x", True),
        ("$share/group/$SYS/x", False),
        ("$share/$AVG/x", False),
        ("$avg/x", False),
        ("$Avg/x", False),
        ("$internal/x", False),
        ("$", False),
        ("", False),
        ("room/$AVG", False),
        ("AVG/x", False),
    ],
)
def test_what_is_meant_as_an_expression(topic_filter: str, expected: bool) -> None:
    assert is_expression(topic_filter.encode()) is expected


@pytest.mark.parametrize(
    ("text", "position", "operator", "advice"),
    [
        ("$AVG", 4, "expression", "no topic filter"),
        ("$AVG/", 5, "", "no topic filter"),
        ("$AVG/a/#/b", 5, "a/#/b", "# only at the end"),
        ("$AVG/a+/b", 5, "a+/b", "stand alone"),
        ("$AVG/$MAX/b", 5, "$MAX/b", "before the first /"),
        ("$AVG/$share/g/b", 5, "$share/g/b", "no topic filter"),
        ("$share/g/$AVG/b", 0, "$share", "cannot be shared"),
        ("room/temperature", 0, "expression", "begins with $"),
        ("$AVG$MEEN/t", 4, "$MEEN", "unknown operator"),
        ("$AVG$gt;5/t", 4, "$gt;5", "write $GT"),
        ("$MAX$HOURLYAVERAGE/t", 4, "$HOURLYAVERAGE", "write $HOURLYAVG"),
        ("$AVG$$MAX/t", 4, "$", "unknown operator"),
        ("$AVG;5/t", 0, "$AVG;5", "takes no parameter"),
        ("$AVG;/t", 0, "$AVG;", "takes no parameter"),
        ("$AVG$GT/t", 4, "$GT", "one number"),
        ("$GT;1e3/t", 0, "$GT;1e3", "no exponent"),
        ("$GT;.5/t", 0, "$GT;.5", "one number"),
        ("$GT;5.;.a/t", 0, "$GT;5.;.a", "one number"),
        ("$GT;nan/t", 0, "$GT;nan", "one number"),
        ("$GT;1;2/t", 0, "$GT;1;2", "one number"),
        ("$GT;٣/t", 0, "$GT;٣", "one number"),
        (f"$GT;{2**127}/t", 0, f"$GT;{2**127}", "out of range"),
        (f"$GT;{'9' * 400}/t", 0, f"$GT;{'9' * 400}", "out of range"),
        ("$GT;+5/t", 0, "$GT;+5", "wildcards"),
        ("$CONTAINS;C#/t", 0, "$CONTAINS;C#", "wildcards"),
        ("$QUANTILE/t", 0, "$QUANTILE", "from 0 to 1"),
        ("$QUANTILE;1.01/t", 0, "$QUANTILE;1.01", "from 0 to 1"),
        ("$QUANTILE;-0.5/t", 0, "$QUANTILE;-0.5", "from 0 to 1"),
        ("$CONTAINS/t", 0, "$CONTAINS", "text to look for"),
        ("$TMPAVG/t", 0, "$TMPAVG", "H:MM:SS"),
        ("$TMPAVG;0:00:00/t", 0, "$TMPAVG;0:00:00", "H:MM:SS"),
        ("$TMPAVG;24:00:00/t", 0, "$TMPAVG;24:00:00", "H:MM:SS"),
        ("$TMPAVG;0:60:00/t", 0, "$TMPAVG;0:60:00", "H:MM:SS"),
        ("$TMPAVG;10:00/t", 0, "$TMPAVG;10:00", "H:MM:SS"),
        ("$AVG;.a$MAX/t", 0, "$AVG;.a", "only the last operator takes a field"),
        ("$AVG;.a..b/t", 0, "$AVG;.a..b", "empty name"),
        ("$AVG;./t", 0, "$AVG;.", "empty name"),
        ("$COUNTPEOPLE;.image/t", 0, "$COUNTPEOPLE;.image", "whole payload"),
        ("$DAILYAVG$MAX$HOURLYAVG/t", 0, "$DAILYAVG", "$HOURLYAVG stands to its right"),
        ("$MAX$DELTA$GT;5$AVG/t", 4, "$DELTA", "right of every aggregate"),
        ("$CONTAINS;ü$COUNTMALE$AVG/t", 12, "$COUNTMALE", "write it last"),
        ("$GT;5$CONTAINS;x/t", 0, "$GT;5", "between it and CONTAINS"),
    ],
)
def test_an_error_points_at_the_operator_and_says_what_to_write(
    text: str, position: int, operator: str, advice: str
) -> None:
    error = blamed(text)
    assert (error.position, error.operator) == (position, operator)
    assert advice in error.text
    assert operator in str(error)


def test_expressions_are_bounded() -> None:
    assert len(parse(b"$AVG" * OPERATORS_MAX + b"/t").operators) == OPERATORS_MAX
    error = blamed("$AVG" * (OPERATORS_MAX + 1) + "/t")
    assert error.position == 4 * OPERATORS_MAX
    assert len(parse(b"$AVG/" + b"t" * (EXPRESSION_BYTES_MAX - 5)).text) == EXPRESSION_BYTES_MAX
    assert "longer than" in blamed("$AVG/" + "t" * (EXPRESSION_BYTES_MAX - 4)).text
    assert blamed("$" * EXPRESSION_BYTES_MAX).text
    assert blamed("$AVG" * 100_000 + "/t").text
    assert blamed("$AVG/" + "a/" * 200 + "b").text


def test_broken_text_is_an_error_like_any_other() -> None:
    with pytest.raises(ExpressionError, match="UTF-8"):
        parse(b"$AVG/\xff")


pieces = st.sampled_from(
    ["$", "/", ";", ".", "+", "#", "AVG", "GT", "TMPAVG", "0:01:00", "25", "CONTAINS", "DELTA", "é"]
)


@given(st.one_of(st.binary(max_size=40), st.lists(pieces, max_size=12).map(lambda parts: "".join(parts).encode())))
def test_whatever_is_written_becomes_an_expression_or_an_expression_error(text: bytes) -> None:
    try:
        expression = parse(text)
    except ExpressionError as error:
        position = error.position
    else:
        position = 0
        assert is_expression(text)
        assert b"".join(operator.text.encode() for operator in expression.operators) == text.split(b"/")[0]
    assert 0 <= position <= len(text)
