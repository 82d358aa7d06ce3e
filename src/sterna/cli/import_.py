"""`sterna import`: make the configuration of a node from a mosquitto.conf."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from sterna.runtime.mosquitto.translation import translate
from sterna.runtime.mosquitto.writing import as_json, as_toml
from sterna.vocabulary.errors import ConfigurationError

app = typer.Typer()

PASSWORDS = "passwords"
"""The copy of a password file, beside the configuration."""
BRIDGE_PASSWORD = "bridge-password"
"""The password for the broker that a bridge led to, beside the configuration."""


@app.command("import")
def import_configuration(
    file: Annotated[Path, typer.Argument(help="A mosquitto.conf.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write this file; otherwise to stdout.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document, with bridges, instead of TOML.")
    ] = False,
) -> None:
    """Translate listeners, users, access rules, limits, persistence, TLS and a bridge of a Mosquitto.

    Every line without a counterpart is named on stderr with the reason and the remedy.
    """
    if json and output is not None:
        raise typer.BadParameter("it prints to stdout; leave --output out", param_hint="--json")
    found = translate(file)
    texts: dict[Path, str] = {}
    if output is not None and found.passwords is not None:
        texts[output.parent / PASSWORDS] = found.passwords
        found.set("authentication", "password_file", PASSWORDS)
    if output is not None and found.bridge_password is not None:
        texts[output.parent / BRIDGE_PASSWORD] = found.bridge_password.value + "\n"
        found.set("interworking", "password_file", BRIDGE_PASSWORD)
    if output is None:
        print(as_json(found) if json else as_toml(found).rstrip())
    else:
        texts[output] = as_toml(found)
        _write(texts, force)
    for one in found.untranslated:
        print(one, file=sys.stderr)
    if output is None and found.passwords is not None:
        print("with --output a copy of the password file is written without the lines named here", file=sys.stderr)
    if output is None and found.bridge_password is not None:
        print(f"with --output the password in {found.bridge_password.place} is written to a file", file=sys.stderr)


def _write(texts: dict[Path, str], force: bool) -> None:
    """All or none that would overwrite something; readable by the owner alone, as hashes stand in them."""
    taken = [str(file) for file in texts if file.exists()]
    if taken and not force:
        raise ConfigurationError(f"{', '.join(taken)}: already there; choose another --output, or say --force")
    for file, text in texts.items():
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL), 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(text)
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from None
