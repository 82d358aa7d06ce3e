"""`sterna client`: all that the network knows of one client."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from sterna.cli.admin_client import (
    DEFAULT_ADMIN,
    AdminOption,
    JsonOption,
    TokenOption,
    Unanswered,
    named,
    question,
    shown,
    tell_incomplete,
)

app = typer.Typer()


@app.command("client")
def client(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Its client identifier.")],
    admin: AdminOption = DEFAULT_ADMIN,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one client, wherever in the network it is: its connection, its subscriptions, and what waits for it."""
    answer = question(admin, "/client", token_file, id=named(client, "the client identifier"))
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    tell_incomplete(answer)
    if not answer["rows"]:
        raise Unanswered(f"no node that answers has a session of client {shown(client)}")
    for one in answer["rows"]:
        print("\n".join(_lines(one)))


def _lines(one: dict[str, Any]) -> list[str]:
    state = "connected" if one["connected"] else "away"
    through = f" through gateway {shown(one['gateway'])}" if one["gateway"] else ""
    user = "anonymous" if one["user"] is None else shown(one["user"])
    lines = [
        f"client {shown(one['client'])} at node {one['node']}: {state} for {one['seconds']:,.0f} s{through}",
        f"  user {user}" + (f", from {one['address']}" if one["address"] else "") + _version(one),
        f"  session {_lasting(one)}; {one['inflight']:,} in flight, {one['queued']:,} waiting, "
        f"{one['unreleased']:,} to be released by the client",
    ]
    lost = one["dropped_by_retention"] + one["dropped_by_full_queue"]
    if lost:
        reasons = f"{one['dropped_by_retention']:,} by retention, {one['dropped_by_full_queue']:,} by a full queue"
        lines.append(f"  lost {lost:,} messages: {reasons}")
    if one["will"] is not None:
        lines.append(f"  will on {shown(one['will'])}")
    if one["throttled"]:
        lines.append("  sends faster than client_messages_per_s or client_bytes_per_s in [limits] allow, and waits")
    if one["leaving_for"]:
        lines.append(f"  moving to node {one['leaving_for']}")
    lines += [f"  subscribed to {shown(each['filter'])} at QoS {each['qos']}" for each in one["filters"]]
    more = one["subscriptions"] - len(one["filters"])
    return [*lines, *([f"  and to {more:,} more"] if more else [])]


def _version(one: dict[str, Any]) -> str:
    keep_alive = f", keep-alive {one['keep_alive_s']:g} s" if one["keep_alive_s"] else ""
    return (f", MQTT {one['version']}" if one["version"] else "") + keep_alive


def _lasting(one: dict[str, Any]) -> str:
    if not one["persistent"]:
        return "ends with the connection"
    return "never expires" if one["expiry_s"] == 0xFFFFFFFF else f"expires {one['expiry_s']:,} s after the connection"
