"""Talking to a node's admin port: one question, its answer, or an error that says what to do."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from sterna.runtime.config.schema import Bind, Unusable
from sterna.vocabulary.errors import ConfigurationError, SternaError

PATIENCE_S = 10.0

AdminOption = Annotated[str, typer.Option("--admin", metavar="ADDRESS", help="Admin port of the node, or unix:PATH.")]
TokenOption = Annotated[
    Path | None, typer.Option("--token-file", help="File with the token, where the node's [admin] asks for one.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DEFAULT_ADMIN = "127.0.0.1:9883"


class Unanswered(SternaError):
    """The node said no, or nothing."""


def ask(admin: str, page: str, token_file: Path | None, change: dict[str, Any] | None = None) -> Any:
    """The contents of a page; with `change`, after that."""
    headers = {"Content-Type": "application/json"} | _authorization(token_file)
    connection = _connection(admin)
    try:
        body = None if change is None else json.dumps(change)
        connection.request("GET" if change is None else "POST", page, body, headers)
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Unanswered(f"no answer at {admin}: {reason}; is the node running, and is this its admin port?") from None
    finally:
        connection.close()
    if answer.status == http.client.UNAUTHORIZED:
        raise Unanswered(f"{admin} asks for its token; name its file with --token-file")
    if answer.status != http.client.OK:
        raise Unanswered(text.strip() or f"{admin} answers {answer.status} {answer.reason}")
    return json.loads(text)


def question(admin: str, page: str, token_file: Path | None, **given: str) -> Any:
    """The answer of all nodes to a question; see `node/management.py`."""
    return ask(admin, f"{page}?{urlencode(given)}", token_file)


def tell_rows(answer: dict[str, Any], as_json: bool, line: Callable[[dict[str, Any]], str], what: str) -> None:
    """Print an answer of all nodes: as JSON, or a line for each row, and on stderr what is missing."""
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    for row in answer["rows"]:
        print(line(row))
    tell_nothing(answer["rows"], what)
    tell_incomplete(answer)


def tell_nothing(rows: object, what: str) -> None:
    """Say on stderr that a list is empty: silence looks like a question that was not understood."""
    if not rows:
        print(f"no {what}", file=sys.stderr)


def tell_incomplete(answer: dict[str, Any]) -> None:
    """Say on stderr what is missing from an answer of all nodes."""
    if answer["is_cut"]:
        print("there is more; narrow the question", file=sys.stderr)
    if answer["silent"]:
        print(f"no answer in time from: {', '.join(answer['silent'])}", file=sys.stderr)


def tell_changed(answer: dict[str, Any], as_json: bool) -> None:
    """Say which nodes have taken in a change, and which have not yet."""
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    for one in sorted(answer["rows"], key=lambda row: str(row["node"])):
        print(f"node {one['node']}: {_done(one)}")
    if answer["silent"]:
        print(f"no answer yet from: {', '.join(answer['silent'])}; they get it when they answer again", file=sys.stderr)


def _done(row: dict[str, Any]) -> str:
    # A node of an earlier release does not say whether there was something to remove.
    if not row.get("removed", True):
        return "nothing to remove, there was none of that name"
    return f"done, {row['disconnected']} {'client' if row['disconnected'] == 1 else 'clients'} disconnected"


def shown(name: str) -> str:
    """A name that somebody else chose, in a line of ours: what would move the cursor is written out."""
    return name if name.isprintable() else json.dumps(name)


def named(name: str, what: str) -> str:
    """The name as it is to be sent; an empty one is as a rule a shell's variable that was not set."""
    if not name:
        raise ConfigurationError(f"{what} is empty")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{what} is not UTF-8: {name!a}") from None
    return name


def _authorization(token_file: Path | None) -> dict[str, str]:
    if token_file is None:
        return {}
    try:
        return {"Authorization": f"Bearer {token_file.read_text('utf-8').strip()}"}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{token_file} cannot be read: {getattr(error, 'strerror', error)}") from None


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(self._path)


def _connection(admin: str) -> http.client.HTTPConnection:
    try:
        bind = Bind.parse(admin.removeprefix("http://").rstrip("/"))
    except Unusable as error:
        raise ConfigurationError(f"--admin: {error}") from None
    return (
        UnixConnection(bind.path) if bind.path else http.client.HTTPConnection(bind.host, bind.port, timeout=PATIENCE_S)
    )
