"""`sterna readers`: the named readers that nodes keep messages for, and forgetting one of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sterna.cli.admin_client import JsonOption, named, shown, tell_nothing
from sterna.vocabulary.errors import SternaError

if TYPE_CHECKING:
    from sterna.pipeline.source.named_readers import ReaderAt

app = typer.Typer(no_args_is_help=True, help="List the named readers of all nodes' feeds, or forget one.")

_Nodes = Annotated[
    str, typer.Option("--nodes", help="Feeds to ask, host:port, with commas; one is enough to find the others.")
]
_TokenFile = Annotated[Path | None, typer.Option("--token-file", help="File with the feeds' token.")]
_CaFile = Annotated[Path | None, typer.Option("--cafile", help="Authorities (PEM) of the feeds' certificates.")]
_DEFAULT = "127.0.0.1:7885"


@app.command("list")
def list_(
    nodes: _Nodes = _DEFAULT, token_file: _TokenFile = None, cafile: _CaFile = None, as_json: JsonOption = False
) -> None:
    """Print each reader at each node: how far it has read, how many messages it is behind, and what it has lost."""
    from sterna.pipeline.source.named_readers import readers_of

    found = readers_of(_options(nodes, token_file, cafile))
    _tell_missing(found.missing)
    if as_json:
        print(json.dumps([one._asdict() for one in found.readers], indent=2))
        return
    for one in found.readers:
        print("\t".join(_words(one)))
    tell_nothing(found.readers, "named readers")


def _words(one: ReaderAt) -> list[str]:
    lost = [f"lost {one.lost}"] if one.lost else []
    return [shown(one.reader), one.node, f"at {one.committed}", f"{one.behind} behind", *lost]


@app.command()
def forget(
    reader: Annotated[str, typer.Argument(metavar="READER", help="Its name.")],
    nodes: _Nodes = _DEFAULT,
    token_file: _TokenFile = None,
    cafile: _CaFile = None,
) -> None:
    """Have all nodes forget a reader: they keep nothing for it any more, and under its name one begins anew."""
    from sterna.pipeline.source.named_readers import forget_reader

    done = forget_reader(_options(nodes, token_file, cafile), named(reader, "the reader's name"))
    _tell_missing(done.missing)
    if not done.readers:
        raise SternaError(f'no node knows a reader "{shown(reader)}"; sterna readers list names them')
    for one in done.readers:
        print(f"{shown(one.reader)} forgotten by node {one.node}")


def _options(nodes: str, token_file: Path | None, cafile: Path | None) -> dict[str, str]:
    given = {"nodes": nodes, "tokenFile": token_file, "caFile": cafile}
    return {name: str(value) for name, value in given.items() if value is not None}


def _tell_missing(missing: list[str]) -> None:
    if missing:
        print(f"no answer from: {', '.join(missing)}", file=sys.stderr)
