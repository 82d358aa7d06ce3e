"""`sterna gateway`: keep plain clients connected while nodes come, go and pass them on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from sterna.overlay.neighbours import checked_address
from sterna.runtime.config.schema import Bind, Unusable
from sterna.runtime.gateway.settings import GatewayConfiguration, load_gateway
from sterna.vocabulary.errors import ConfigurationError

app = typer.Typer()


@app.command("gateway")
def gateway(
    config: Annotated[Path | None, typer.Option("--config", help="TOML file; without it: the defaults.")] = None,
    listen: Annotated[str | None, typer.Option(help="Where clients connect: host:port, or unix:/path.")] = None,
    nodes: Annotated[str | None, typer.Option(help="Nodes, host:port,host:port, in the order they are tried.")] = None,
) -> None:
    """Run a gateway between plain MQTT clients and the nodes of a network, until it gets SIGTERM or Ctrl-C.

    Clients connect to it as to any broker, and stay connected when nodes fail or stop.  Without a file it listens
    on 127.0.0.1:1884 and speaks to the node on 127.0.0.1:1883.
    """

    def read() -> GatewayConfiguration:
        return overridden(load_gateway(config, os.environ), listen, nodes)

    configuration = read()
    from sterna.runtime.gateway.server import run_gateway

    raise typer.Exit(run_gateway(configuration, read))


def overridden(configuration: GatewayConfiguration, listen: str | None, nodes: str | None) -> GatewayConfiguration:
    """The configuration with what the command line says in place of what the file says."""
    if listen is not None:
        try:
            bind = Bind.parse(listen)
        except Unusable as problem:
            raise typer.BadParameter(str(problem), param_hint="--listen") from None
        if not bind.is_local:
            raise typer.BadParameter(
                f"{bind} can be reached from other machines; say so in a file, with anonymous = true",
                param_hint="--listen",
            )
        first, *others = configuration.listeners
        configuration = replace(configuration, listeners=(replace(first, bind=bind), *others))
    if nodes is not None:
        try:
            addresses = tuple(checked_address(address.strip()) for address in nodes.split(","))
        except ConfigurationError as problem:
            raise typer.BadParameter(str(problem), param_hint="--nodes") from None
        configuration = replace(configuration, upstream=replace(configuration.upstream, nodes=addresses))
    return configuration
