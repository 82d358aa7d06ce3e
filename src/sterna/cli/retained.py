"""`sterna retained`: the retained messages of the network."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sterna.cli.admin_client import (
    DEFAULT_ADMIN,
    AdminOption,
    JsonOption,
    TokenOption,
    question,
    shown,
    tell_rows,
)

app = typer.Typer()


@app.command("retained")
def retained(
    topic_filter: Annotated[
        str, typer.Argument(metavar="[FILTER]", help="Only topics that this filter matches; mind the quotes.")
    ] = "",
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """List retained messages, at most 1,000, with the first 256 bytes of their payloads."""
    answer = question(admin, "/retained", token_file, filter=topic_filter)
    tell_rows(answer, as_json, _line, "retained messages")


def _line(one: dict[str, Any]) -> str:
    payload = shown(one["payload"]) + ("..." if one["is_cut"] else "")
    return f"{shown(one['topic'])}\tQoS {one['qos']}\t{one['bytes']:,} bytes\t{one['age_s']:,.0f} s ago\t{payload}"
