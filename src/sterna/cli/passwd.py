"""`sterna passwd`: add a user to a password file, change a password, remove a user.

The file is replaced as a whole and keeps its other lines, or begins anew with `-c` as with mosquitto_passwd; nobody but
its owner can read a new one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from sterna.broker.access.passwords import PasswordFile, hash_password
from sterna.broker.access.scram import METHODS
from sterna.cli.passwords import ask_password
from sterna.vocabulary.errors import ConfigurationError

app = typer.Typer()


@app.command("passwd")
def passwd(
    file: Annotated[Path, typer.Argument(help="Password file; made when missing.")],
    user: Annotated[str, typer.Argument(help="User name.")],
    scram: Annotated[
        bool, typer.Option("--scram", help=f"Also for enhanced authentication: {', '.join(METHODS)}.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", "-c", help="A new file with this user alone, in place of one that is there.")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", "-D", help="Remove the user.")] = False,
) -> None:
    """Set a user's password, asked for at the terminal or read as one line from stdin."""
    if create and delete:
        raise ConfigurationError("--create and --delete exclude each other")
    try:
        if create:
            _create(file, user, scram)
        else:
            _change(file, user, scram, delete)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be changed: {error.strerror}") from None


def _create(file: Path, user: str, scram: bool) -> None:
    line, is_there = _line(user, scram), file.exists()
    _replace(file, [line])
    if is_there:
        print(f"{file}: written anew; {user} is its only user", file=sys.stderr)


def _change(file: Path, user: str, scram: bool, delete: bool) -> None:
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    PasswordFile.parse("\n".join(lines), str(file))
    places = [number for number, line in enumerate(lines) if line.strip().partition(":")[0] == user]
    if delete and not places:
        raise ConfigurationError(f"{file}: there is no user {user}")
    new = [] if delete else [_line(user, scram)]
    _replace(file, [*(line for number, line in enumerate(lines) if number not in places), *new])


def _line(user: str, scram: bool) -> str:
    try:
        return hash_password(
            user, ask_password(), random_bytes=secrets.token_bytes, scram_methods=METHODS if scram else ()
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _replace(file: Path, lines: list[str]) -> None:
    """Write beside it and rename, so that a node reading the file sees the old or the new one, never half."""
    file = file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write("".join(f"{line}\n" for line in lines))
    if file.exists():
        kept = file.stat()
        os.chmod(temporary, kept.st_mode & 0o7777)
        with contextlib.suppress(PermissionError):  # Only root may give a file away; others keep theirs.
            os.chown(temporary, kept.st_uid, kept.st_gid)
    os.replace(temporary, file)
