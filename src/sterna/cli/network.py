"""`sterna network`: a running node's links, what comes in from the other nodes, and its place in the tree."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from sterna.cli.admin_client import DEFAULT_ADMIN, AdminOption, JsonOption, TokenOption, ask

WIDTH_MIN = 110
"""Columns the tables need; a file or a pipe says nothing about its width."""

app = typer.Typer()


@app.command("network")
def network(admin: AdminOption = DEFAULT_ADMIN, token_file: TokenOption = None, as_json: JsonOption = False) -> None:
    """Show the network as one node sees it: links, other nodes, tree."""
    view = ask(admin, "/network", token_file)
    if as_json:
        print(json.dumps(view, indent=2))
        return
    console = Console(highlight=False)
    console.width = max(console.width, WIDTH_MIN)
    console.print(_heading(view), markup=False)
    for table in (_links(view), _nodes(view), _away(view), _gaps(view), _dialled(view)):
        if table.row_count:
            console.print(table)
    if not view["links"]:
        console.print("no links")


def _heading(view: dict[str, Any]) -> str:
    overlay = view["overlay"]
    if not view["network"]:
        alone = "is a network of one: its configuration has no [network] table"
        return "\n".join([f"node {view['node']} (epoch {view['epoch']}) {alone}", *foreign_lines(view)])
    lines = [
        f"node {view['node']} (epoch {view['epoch']}) in network {view['network']}",
        f"routes by {view['strategy']}; overlay {overlay['overlay']}",
    ]
    if "root" in overlay:
        place = f"under {overlay['parent']}" if overlay["parent"] else overlay["state"]
        children = ", ".join(overlay["children"]) or "none"
        lines.append(f"tree: root {overlay['root']}; this node: {place}; children: {children}")
    counts = " ".join(f"{key} {view[key]:,}" for key in ("forwarded", "taken", "refused"))
    lines.append(f"messages: {counts}, QoS 0 dropped {_dropped(view['loose_dropped'])}")
    if view["unconfirmed"]:
        lines.append(f"{view['unconfirmed']:,} times SUBACK did not wait for a node that was too slow to answer")
    if any(view["ways"].values()):
        lines.append("ways: " + ", ".join(f"{key} {number:,}" for key, number in view["ways"].items()))
    return "\n".join([*lines, *_carried(view), *foreign_lines(view)])


def foreign_lines(view: dict[str, Any]) -> list[str]:
    """The broker of another make that the node is attached to, if any."""
    foreign = view["foreign"]
    if not foreign:
        return []
    abilities, trouble = foreign["abilities"], foreign["trouble"]
    able = f"MQTT {abilities['mqtt']}, QoS {abilities['qos']}, {abilities['loop_prevention']}" if abilities else ""
    said = ": ".join(word for word in (foreign["state"], trouble) if word)
    return [f"foreign broker {foreign['broker']}: {said}" + (f" ({able})" if able else "")]


def _dropped(by_reason: dict[str, int]) -> str:
    reasons = ", ".join(f"{reason} {number:,}" for reason, number in by_reason.items())
    return f"{sum(by_reason.values()):,}" + (f" ({reasons})" if reasons else "")


def _table(title: str, *columns: str, numbers: tuple[str, ...] = ()) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    for column in numbers:
        table.add_column(column, justify="right")
    return table


def _links(view: dict[str, Any]) -> Table:
    numbers = ("frames", "bytes sent", "control", "received", "resent", "resumed", "sessions")
    table = _table("\nLinks", "neighbour", "state", numbers=numbers)
    keys = ("messages", "bytes_sent", "control_bytes", "bytes_received", "resends", "resumptions", "sessions")
    for link in view["links"]:
        table.add_row(link["peer"], _state(link), *(f"{link[key]:,}" for key in keys))
    return table


def _state(link: dict[str, Any]) -> str:
    if link["connected"]:
        return "congested" if link["congested"] else "connected"
    return "waiting for a connection" if link["session"] else "gone"


def _nodes(view: dict[str, Any]) -> Table:
    peers = view["overlay"].get("peers", {})
    table = _table("\nOther nodes", "node", "messages", "by way of", "seen up to", "round trip", "parent")
    for name in sorted({*view["streams"], *view["paths"], *peers}):
        peer = peers.get(name, {})
        trip = peer.get("round_trip_ms")
        seen = view["vector"].get(name)
        table.add_row(
            name,
            view["streams"].get(name, "-"),
            view["paths"].get(name, "-"),
            f"{seen[0]}:{seen[1]}" if seen else "-",
            "-" if trip is None else f"{trip:.2f} ms",
            peer.get("parent") or "-",
        )
    return table


def _away(view: dict[str, Any]) -> Table:
    table = _table("\nNodes that are away", "node", numbers=("for", "messages waiting here", "oldest"))
    for name, one in sorted(view["away"].items()):
        oldest = f"{one['oldest_s']:,.0f} s" if one["waiting"] else "-"
        table.add_row(name, f"{one['away_s']:,.0f} s", f"{one['waiting']:,}", oldest)
    return table


def _gaps(view: dict[str, Any]) -> Table:
    table = _table("\nMessages missing here", "of node", numbers=("at most", "for"))
    for name, gap in sorted(view["gaps"].items()):
        table.add_row(name, f"{gap['messages_at_most']:,}", f"{gap['age_s']:,.0f} s")
    return table


def _carried(view: dict[str, Any]) -> list[str]:
    """The node's part as a carrier, if it is one."""
    carried = view["carried"]
    if not carried:
        return []
    oldest = f", the oldest {carried['oldest_s']:,.0f} s old" if carried["messages"] else ""
    told = f"{carried['messages']:,} messages ({carried['bytes']:,} bytes{oldest})"
    whom = ", ".join(f"{name} {number:,}" for name, number in carried["dropped_for"].items())
    dropped = f"{carried['evicted']:,}" + (f" (wanted by {whom})" if whom else "")
    return [f"carries {told} for others; handed on {carried['handed_on']:,}, dropped {dropped}"]


def _dialled(view: dict[str, Any]) -> Table:
    table = _table("\nAddresses dialled", "address", "state")
    for address, state in view["dialled"].items():
        table.add_row(address, state)
    return table
