"""`sterna evacuate`: empty a node, so many clients a second, and show how far it is."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from sterna.cli.admin_client import DEFAULT_ADMIN, AdminOption, JsonOption, TokenOption, ask, named
from sterna.vocabulary.errors import ConfigurationError

LOOK_S = 0.5
#: The exit code by which shells know a program that was ended by Ctrl-C.
INTERRUPTED = 130
#: As the admin port takes it.
RATE_MAX = 100_000

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
    order: dict[str, Any] = {"node": named(node, "the name of the node"), "stop": stop}
    if rate is not None:
        if not 0 < rate <= RATE_MAX:  # neither is what is no number
            raise ConfigurationError(f"--rate is more than 0 and at most {RATE_MAX:,} clients a second")
        order["rate"] = rate
    answer = ask(admin, "/evacuate", token_file, order)
    if "told" in answer:
        print(json.dumps(answer) if as_json else f"node {node} has been told; its own admin port shows how far it is")
        return
    if not (no_wait or stop):
        answer = _watched(answer, admin, token_file)
    if as_json:
        print(json.dumps(answer, indent=2))
    elif answer["evacuation"] is None:
        print(f"node {node} takes clients")
    else:
        print(_told(answer["evacuation"]))


def _watched(answer: dict[str, Any], admin: str, token_file: Path | None) -> dict[str, Any]:
    """Show how far it is until it is over; the last answer."""
    width = 0
    try:
        while answer["evacuation"] is not None and answer["evacuation"]["left"] > answer["evacuation"]["staying"]:
            line = _told(answer["evacuation"])
            width = max(width, len(line))
            print(f"\r{line:{width}}", end="", file=sys.stderr, flush=True)
            time.sleep(LOOK_S)
            answer = ask(admin, "/migrations", token_file)
    except KeyboardInterrupt:
        print(f"\nnode {answer['node']} goes on by itself; `--stop` ends it", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if width:
        print(file=sys.stderr)
    return answer


def _told(evacuation: dict[str, Any]) -> str:
    e = evacuation
    gone = f"{e['moved']} moved, {e['sent_away']} sent away, {e['failed']} attempts failed"
    gone += " (`sterna migrations` says why)" if e["failed"] and e["left"] > e["staying"] else ""
    back = f"; {e['staying']} came back and are served here: they know no other node" if e["staying"] else ""
    return f"{e['left']} of {e['total']} left; {gone}{back}"
