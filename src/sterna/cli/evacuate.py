"""`sterna evacuate`: empty a node, so many clients a second, and show how far it is."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from sterna.cli.admin_client import DEFAULT_ADMIN, AdminOption, JsonOption, TokenOption, ask

LOOK_S = 0.5

app = typer.Typer()


@app.command("evacuate")
def evacuate(
    node: Annotated[
        str, typer.Argument(help="Name of the node; asked at its own admin port, this shows how far it is.")
    ],
    rate: Annotated[float | None, typer.Option(help="Clients a second; else as the node's [migration] says.")] = None,
    stop: Annotated[bool, typer.Option("--stop", help="Let clients in again, and move no more away.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Only begin; ask again to see how far it is.")] = False,
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move every client of a node to the others.  Interrupted, it goes on by itself; ask again to see how far it is."""
    order: dict[str, Any] = {"node": node, "stop": stop}
    if rate is not None:
        order["rate"] = rate
    answer = ask(admin, "/evacuate", token_file, order)
    if "told" in answer:
        print(json.dumps(answer) if as_json else f"node {node} has been told; its own admin port shows how far it is")
        return
    while not (no_wait or stop) and answer["evacuation"]["left"]:
        print(f"\r{_told(answer['evacuation'])}", end="", file=sys.stderr, flush=True)
        time.sleep(LOOK_S)
        answer = ask(admin, "/migrations", token_file)
        if answer["evacuation"] is None:
            break
    print(file=sys.stderr)
    if as_json:
        print(json.dumps(answer, indent=2))
    elif answer["evacuation"] is None:
        print(f"node {node} takes clients")
    else:
        print(_told(answer["evacuation"]))


def _told(evacuation: dict[str, Any]) -> str:
    e = evacuation
    gone = f"{e['moved']} moved, {e['sent_away']} sent away, {e['failed']} to try again"
    return f"{e['left']} of {e['total']} left; {gone}"
