"""`sterna clients`: whose sessions are where, as one node knows it."""

from __future__ import annotations

import json

import typer

from sterna.cli.admin_client import DEFAULT_ADMIN, AdminOption, JsonOption, TokenOption, ask

app = typer.Typer()


@app.command("clients")
def clients(admin: AdminOption = DEFAULT_ADMIN, token_file: TokenOption = None, as_json: JsonOption = False) -> None:
    """List the clients of a node and of its network: at most 1,000, the node's own first."""
    found = ask(admin, "/clients", token_file)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for one in found:
        state = "elsewhere"
        if "connected" in one:
            state = "connected" if one["connected"] else "away"
            state += f", {one['queued']} waiting, {one['inflight']} in flight"
        print(f"{one['client']}\t{one['node']}\t{state}")
