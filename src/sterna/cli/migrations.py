"""`sterna migrations`: clients on their way to and from a node, and what became of others."""

from __future__ import annotations

import json

import typer

from sterna.cli.admin_client import DEFAULT_ADMIN, AdminOption, JsonOption, TokenOption, ask, shown

app = typer.Typer()


@app.command("migrations")
def migrations(admin: AdminOption = DEFAULT_ADMIN, token_file: TokenOption = None, as_json: JsonOption = False) -> None:
    """Show the moves under way from and to a node and the last that came to nothing, and count those that are over."""
    answer = ask(admin, "/migrations", token_file)
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    for one in answer["leaving"]:
        print(f"{shown(one['client'])}\tto {one['to']}\t{one['state']}\t{one['seconds']:.1f} s")
    for one in answer["arriving"]:
        print(f"{shown(one['client'])}\tfrom {one['from']}\t{one['state']}\t{one['seconds']:.1f} s")
    for one in answer["not_moved"]:
        print(f"{shown(one['client'])}\tto {one['to']}\tnot moved: {one['reason']}\t{one['seconds']:.1f} s ago")
    counted = [f"{name.replace('_', ' ')} {number:,}" for name, number in answer["counters"].items() if number]
    print(f"node {answer['node']}: {', '.join(counted) or 'no moves since it was started'}")
