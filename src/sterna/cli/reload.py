"""`sterna reload`: have a running process read its configuration again."""

from __future__ import annotations

import json
from typing import Any

import typer

from sterna.cli.admin_client import DEFAULT_ADMIN, AdminOption, JsonOption, TokenOption, ask

app = typer.Typer()


@app.command("reload")
def reload(admin: AdminOption = DEFAULT_ADMIN, token_file: TokenOption = None, as_json: JsonOption = False) -> None:
    """Read passwords, access rules, limits, certificates and the log level again, as SIGHUP does.

    If anything is wrong with them, everything stays as it was, the problems are printed, and the exit status is 1.
    """
    outcome = ask(admin, "/reload", token_file, {})
    if as_json:
        print(json.dumps(outcome, indent=2))
        return
    for part in outcome["read"]:
        print(described(part))
    clients = outcome["disconnected"]
    if clients:
        print(f"{clients:,} client{'' if clients == 1 else 's'} disconnected: user, password or way in changed")
    for setting in outcome["needs_restart"]:
        print(f"{setting}: changed, and needs a restart")


def described(part: dict[str, Any]) -> str:
    state = "changed" if part["changed"] else "as before"
    return f"{part['what']}: {state}" + (f", {part['detail']}" if part["detail"] else "")
