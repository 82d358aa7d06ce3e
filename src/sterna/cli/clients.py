"""`sterna clients`: whose sessions are where, as one node knows it."""

from __future__ import annotations

import json
from typing import Any

import typer

from sterna.cli.admin_client import DEFAULT_ADMIN, AdminOption, JsonOption, TokenOption, ask, shown

app = typer.Typer()


@app.command("clients")
def clients(admin: AdminOption = DEFAULT_ADMIN, token_file: TokenOption = None, as_json: JsonOption = False) -> None:
    """List the clients of a node and of its network, or of a gateway: at most 1,000, the node's own first."""
    found = ask(admin, "/clients", token_file)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for one in found:
        print(described(one))


def described(one: dict[str, Any]) -> str:
    return f"{shown(one['client'])}\t{one['node'] or 'no node'}\t{_state(one)}"


def _state(one: dict[str, Any]) -> str:
    if "unanswered" in one:
        return f"through this gateway, {one['unanswered']} not answered"
    if "connected" not in one:
        return "elsewhere"
    state = "connected" if one["connected"] else "away"
    return f"{state}, {one['queued']} waiting, {one['inflight']} in flight"
