"""`sterna interwork`: a node beside a broker of another make, which becomes part of the network as it is."""

from __future__ import annotations

import os
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Annotated, Literal

import typer
from msgspec.structs import replace

from sterna.cli.node import overridden
from sterna.interworking.settings import MODES
from sterna.overlay.neighbours import checked_address
from sterna.runtime.config.loading import load
from sterna.runtime.config.settings import Configuration, InterworkingTable
from sterna.vocabulary.errors import ConfigurationError

app = typer.Typer()


@app.command("interwork")
def interwork(
    config: Annotated[Path | None, typer.Option("--config", help="TOML file; without it: the defaults.")] = None,
    broker: Annotated[str | None, typer.Option(help="The foreign broker, host:port.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the first listener.")] = None,
    data: Annotated[Path | None, typer.Option(help="Directory for the journal and the sessions.")] = None,
    mode: Annotated[
        str | None, typer.Option(help="attach: beside the broker, as one client; proxy: clients go through the node.")
    ] = None,
) -> None:
    """Run a node that joins a broker of another make to the network, until it gets SIGTERM or Ctrl-C.

    Beside the broker (attach) the node is a client of it: nothing changes for the broker or for its clients.
    Before the broker (proxy) its clients connect to the node's port, and are relayed with their own credentials.
    Filters, passwords and TLS stand in the table [interworking] of the file.
    """

    def read() -> Configuration:
        return in_mode(attached(overridden(load(config, os.environ), port, data), broker), mode)

    configuration = read()
    from sterna.runtime.server import run_node

    raise typer.Exit(run_node(configuration, read))


def attached(configuration: Configuration, broker: str | None) -> Configuration:
    """The configuration with the broker that the command line names; there must be one."""
    table = configuration.interworking
    if broker is None:
        if table is None:
            raise typer.BadParameter("name the broker, host:port, or add a table [interworking]", param_hint="--broker")
        return configuration
    try:
        checked_address(broker)
    except ConfigurationError as problem:
        raise typer.BadParameter(str(problem), param_hint="--broker") from None
    for listener in configuration.listeners:
        if str(listener.bind) == broker.replace("localhost:", "127.0.0.1:"):
            text = f"{broker} is this node itself; name the other broker, or move this node with --port"
            raise typer.BadParameter(text, param_hint="--broker")
    table = InterworkingTable(broker=broker) if table is None else replace_fields(table, broker=broker)
    return replace(configuration, interworking=table)


def in_mode(configuration: Configuration, mode: str | None) -> Configuration:
    """The configuration with the mode that the command line names."""
    table = configuration.interworking
    assert table is not None
    if mode is None or mode == table.mode:
        return configuration
    if mode not in MODES:
        raise typer.BadParameter(f"{mode!r} is no mode: use {' or '.join(MODES)}", param_hint="--mode")
    # As in a file that says no more than the mode: all listeners relay, or none does.
    serves: Literal["node", "broker"] = "broker" if mode == "proxy" else "node"
    listeners = tuple(replace(listener, serves=serves) for listener in configuration.listeners)
    return replace(configuration, interworking=replace_fields(table, mode=mode), listeners=listeners)
