"""`sterna clients`: whose sessions are where, as one node knows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from sterna.cli.admin_client import (
    DEFAULT_ADMIN,
    AdminOption,
    JsonOption,
    TokenOption,
    Unanswered,
    ask,
    question,
    shown,
    tell_incomplete,
    tell_nothing,
)

#: MQTT versions as a gateway names them, by the number on the wire.
_VERSIONS = {3: "3.1", 4: "3.1.1", 5: "5"}

app = typer.Typer()


@app.command("clients")
def clients(admin: AdminOption = DEFAULT_ADMIN, token_file: TokenOption = None, as_json: JsonOption = False) -> None:
    """List the clients of a node and of its network, or of a gateway: at most 1,000 of each node, its own first.

    Of a node that cannot be reached, sessions that outlive a connection are known by name.
    """
    found = ask(admin, "/clients", token_file)
    elsewhere = _at_all_nodes(admin, token_file)
    if elsewhere is not None:
        found = _merged(found, elsewhere["rows"])
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        for one in found:
            print(described(one))
        tell_nothing(found, "clients, and no sessions of any")
    if elsewhere is not None:
        tell_incomplete(elsewhere)


def _at_all_nodes(admin: str, token_file: Path | None) -> dict[str, Any] | None:
    """None of a gateway, which knows its own."""
    try:
        answer: dict[str, Any] = question(admin, "/clients/search", token_file, text="")
    except Unanswered:
        return None
    return answer


def _merged(known: list[dict[str, Any]], told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where a client has just moved two nodes may name it: the one it is connected to counts."""
    rows = {one["client"]: one for one in known}
    for one in told:
        before = rows.get(one["client"], {})
        if one["connected"] or not before.get("connected"):
            rows[one["client"]] = one
    return list(rows.values())


def described(one: dict[str, Any]) -> str:
    columns = [shown(one["client"]), one["node"] or "no node", _state(one), _known(one)]
    return "\t".join(column for column in columns if column)


def _known(one: dict[str, Any]) -> str:
    """User, address and version, as far as the node knows them."""
    if "address" not in one:
        return ""
    user = [shown(one["user"]) if one["user"] is not None else "anonymous"] if "user" in one else []
    version = [f"MQTT {_VERSIONS.get(one['version'], one['version'])}"] if one["version"] else []
    return ", ".join([*user, *([one["address"]] if one["address"] else []), *version])


def _state(one: dict[str, Any]) -> str:
    if "unanswered" in one:
        return f"through this gateway, {one['unanswered']} not answered"
    if "connected" not in one:
        return "has its session there"
    state = "connected" if one["connected"] else "away"
    return f"{state}, {one['queued']} waiting, {one['inflight']} in flight"
