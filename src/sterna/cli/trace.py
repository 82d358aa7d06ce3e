"""`sterna trace`: the packets of one client, or the messages on some topics, at all nodes as they pass."""

from __future__ import annotations

import json
import secrets
import sys
import time
from datetime import datetime
from typing import Annotated, Any

import typer

from sterna.cli.admin_client import DEFAULT_ADMIN, AdminOption, TokenOption, ask, named, shown
from sterna.cli.durations import seconds
from sterna.vocabulary.errors import ConfigurationError

app = typer.Typer()

ASKED_EVERY_S = 0.3
_FIRST = ("time", "node", "client", "direction", "packet", "topic", "filters")
_LEFT_OUT = (*_FIRST, "number", "missing", "address")


@app.command("trace")
def trace(
    client: Annotated[str | None, typer.Option("--client", metavar="ID", help="Packets of this client.")] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="FILTER", help="Messages on topics of this filter.")
    ] = None,
    payload: Annotated[bool, typer.Option("--payload", help="Show the beginning of payloads.")] = False,
    count: Annotated[int, typer.Option("--count", min=1, help="End after so many packets.")] = 1000,
    span: Annotated[
        str, typer.Option("--for", metavar="TIME", help="End after this time, such as 30s or 10m.")
    ] = "60s",
    size: Annotated[int, typer.Option("--bytes", min=1, help="End after so many bytes of output.")] = 1_000_000,
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each packet.")] = False,
) -> None:
    """Show packets of a client, or messages on topics, at all nodes as they pass; with both, what fits both."""
    if client is None and topic is None:
        raise ConfigurationError("say what to trace: --client, --topic or both")
    request: dict[str, Any] = {"id": secrets.token_hex(8), "payload": payload, "after": {}}
    request |= {} if client is None else {"client": named(client, "--client")}
    request |= {} if topic is None else {"topic": named(topic, "--topic")}
    end = time.monotonic() + seconds(span, "--for")
    silent: set[str] = set()
    while True:
        is_last = time.monotonic() >= end
        answer = ask(admin, "/trace", token_file, request)
        if new := set(answer["silent"]) - silent:
            silent |= new
            print(f"no answer in time from: {', '.join(sorted(new))}", file=sys.stderr)
        for row in sorted(answer["rows"], key=lambda row: float(row["time"])):
            request["after"][row["node"]] = max(row["number"], request["after"].get(row["node"], 0))
            line = json.dumps(row) if as_json else _line(row)
            size -= len(line) + 1
            count -= 1
            if size < 0:
                print("--bytes reached", file=sys.stderr)
                return
            print(line, flush=True)
            if not count:
                print("--count reached", file=sys.stderr)
                return
        if is_last:
            print("--for reached", file=sys.stderr)
            return
        time.sleep(min(ASKED_EVERY_S, max(0.0, end - time.monotonic())))


def _line(row: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(row["time"]).strftime("%H:%M:%S.%f")[:-3]
    arrow = "->" if row["direction"] == "received" else "<-"
    what = row.get("topic") or row.get("filters") or ""
    rest = [f"{key}={shown(str(value))}" for key, value in row.items() if key not in _LEFT_OUT]
    missing = f"({row['missing']:,} packets missing here) " if row.get("missing") else ""
    who = shown(row["client"] or row["address"])
    words = [at, row["node"], who, arrow, row["packet"], shown(what), *rest]
    return missing + " ".join(word for word in words if word)
