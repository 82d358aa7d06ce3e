"""`sterna topics`: how many messages are published under which topics, counted for a while at all nodes."""

from __future__ import annotations

import json
import secrets
import sys
import time
from typing import Annotated, Any

import typer

from sterna.cli.admin_client import (
    DEFAULT_ADMIN,
    AdminOption,
    JsonOption,
    TokenOption,
    ask,
    named,
    shown,
    tell_incomplete,
)
from sterna.cli.durations import seconds

app = typer.Typer()

ASKED_EVERY_S = 2.0
"""A count that nobody asks for ends."""


@app.command("topics")
def topics(
    topic_filter: Annotated[str, typer.Argument(metavar="[FILTER]", help="Count topics of this filter only.")] = "",
    levels: Annotated[int, typer.Option("--levels", min=1, max=128, help="Levels of a topic that are told apart.")] = 2,
    span: Annotated[str, typer.Option("--for", metavar="TIME", help="How long to count, such as 5s or 1m.")] = "5s",
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count what clients publish, by topic, at all nodes for a while; the busiest first.

    Counting costs CPU while it runs, and nothing before and after.  A node tells at most 1,000 topics apart.
    """
    request: dict[str, Any] = {"id": secrets.token_hex(8), "levels": levels}
    request |= {"topic": named(topic_filter, "the filter")} if topic_filter else {}
    ask(admin, "/trace", token_file, request)
    end = time.monotonic() + seconds(span, "--for")
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, ASKED_EVERY_S))
        answer = ask(admin, "/trace", token_file, request)
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    if not answer["rows"]:
        where = f" on {shown(topic_filter)}" if topic_filter else ""
        print(f"nobody published{where} while this counted, for {span}; --for counts longer", file=sys.stderr)
    sums: dict[str, list[float]] = {}
    for row in answer["rows"]:
        one = sums.setdefault(row["topic"], [0, 0.0, 0.0])
        rate = 1 / max(row["seconds"], 0.001)
        for place, more in enumerate((row["messages"], row["messages"] * rate, row["bytes"] * rate)):
            one[place] += more
    for topic, (count, rate, size) in sorted(sums.items(), key=lambda item: -item[1][1]):
        print(f"{rate:,.1f}/s\t{size / 1000:,.1f} kB/s\t{count:,} messages\t{shown(topic)}")
    tell_incomplete(answer)
