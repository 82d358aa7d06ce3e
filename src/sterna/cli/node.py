"""`sterna node`: run a broker."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from sterna.runtime.config.loading import load
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.settings import Configuration

app = typer.Typer()


@app.command("node")
def node(
    config: Annotated[Path | None, typer.Option("--config", help="TOML file; without it: the defaults.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the first listener.")] = None,
    data: Annotated[Path | None, typer.Option(help="Directory for the journal and the sessions.")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, max=64, help="Processes that serve together, one for each core to be used.")
    ] = None,
    member: Annotated[int, typer.Option(hidden=True)] = 0,
    group: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run an MQTT broker until it gets SIGTERM or Ctrl-C.

    Without a file it listens on 127.0.0.1:1883 and keeps its data in ./sterna-data.
    Every key of the file can also be set in the environment: STERNA_LIMITS_PACKET_BYTES=65536.
    """

    # Imported here so that a configuration that cannot work is refused before the broker is loaded.
    def read() -> Configuration:
        return overridden(load(config, os.environ), port, data, processes)

    configuration = read()
    if group is not None:
        raise typer.Exit(_run_member(read, member, group))
    if configuration.node.processes > 1:
        from sterna.runtime.processes.group import run_group

        given = {"--config": config, "--port": port, "--data": data, "--processes": processes}
        words = [word for option, value in given.items() if value is not None for word in (option, str(value))]
        raise typer.Exit(run_group(configuration, words))
    from sterna.runtime.server import run_node

    raise typer.Exit(run_node(configuration, read))


def _run_member(read: Callable[[], Configuration], member: int, group: Path) -> int:
    """One process of several, as `run_group` starts them."""
    from sterna.runtime.processes.group import end_with_parent
    from sterna.runtime.processes.members import member_configuration, plan_of
    from sterna.runtime.server import run_node

    end_with_parent(plan_of(group).process)

    def mine() -> Configuration:
        return member_configuration(read(), member, group)

    return run_node(mine(), mine, shared_ports=True)


def overridden(
    configuration: Configuration, port: int | None, data: Path | None, processes: int | None = None
) -> Configuration:
    """The configuration with what the command line says in place of what the file says."""
    if port is not None:
        first, *others = configuration.listeners
        if first.bind.path:
            raise typer.BadParameter(f"the first listener is {first.bind}, which has no port", param_hint="--port")
        first = replace(first, bind=Bind(first.bind.host, port))
        configuration = replace(configuration, listeners=(first, *others))
    if data is not None:
        configuration = replace(configuration, node=replace(configuration.node, data=data.absolute()))
    if processes is not None:
        configuration = replace(configuration, node=replace(configuration.node, processes=processes))
    return configuration
