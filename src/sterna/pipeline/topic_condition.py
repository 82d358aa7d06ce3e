"""MQTT topic filters as a condition of Spark: exactly the topics that a node would take for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as f

_REST = "(/.*)?"


def matches(topic_filters: Sequence[str]) -> Column:
    """Of the column `topic`: does one of the filters match it?"""
    return reduce(or_, (f.col("topic").rlike(pattern_of(one)) for one in topic_filters))


def pattern_of(topic_filter: str) -> str:
    """For a search, as Java and Python have them."""
    levels = topic_filter.split("/")
    has_rest = levels[-1] == "#"
    fixed = ["[^/]*" if level == "+" else re.escape(level) for level in (levels[:-1] if has_rest else levels)]
    # A wildcard at the beginning stands for no topic of the broker's own [MQTT-4.7.2-1].
    start = r"(?!\$)" if levels[0] in ("+", "#") else ""
    rest = ".*" if levels == ["#"] else "/".join(fixed) + (_REST if has_rest else "")
    return rf"(?s)\A{start}{rest}(?!.)"
