"""Tables that workers, coordinators and gateways that measure share, and their checks."""

from __future__ import annotations

import re
import ssl
from functools import partial
from pathlib import Path
from typing import Annotated

from sterna.overlay.neighbours import checked_address
from sterna.runtime.adaptation.control_line import ControlAccount
from sterna.runtime.config.files import attempt, check_authority, contents
from sterna.runtime.config.problems import ProblemReport
from sterna.runtime.config.schema import Table
from sterna.runtime.config.secrets import Secret
from sterna.vocabulary.settings import Hidden

CONTROL_KEY = Secret(
    "adaptation", "key", "the network key has {} bytes and could be guessed", lambda contents: contents.rstrip(b"\r\n")
)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class AdaptationTable(Table, frozen=True):
    """The control line: where and as whom this process speaks on [control topics](adaptation.md#control-topics)."""

    network: str = ""
    """Name of the network, as in `[network]` of its nodes."""
    region: str = "default"
    """Coordinators of one region decide about its workers and gateways; one of them leads."""
    nodes: tuple[str, ...] = ("127.0.0.1:1883",)
    """Addresses (host:port) of nodes that take clients, in the order they are tried.  Name some that are never
    stopped."""
    user: str | None = None
    """User name for the nodes; one that their `[adaptation]` names."""
    password_file: Path | None = None
    """A file with the password; white space around it does not count."""
    ca: Path | None = None
    """Authorities (PEM) whose certificates are believed.  With it nodes are spoken to by TLS."""


class SealedAdaptationTable(AdaptationTable, frozen=True):
    key: Annotated[str | None, Hidden()] = None
    """The secret that all nodes of the network share.  Orders and reports are sealed with a key made of it.  Never
    printed; a file or the environment keeps it better."""
    key_file: Path | None = None
    """A file with the secret; a newline at its end does not count."""


def account(table: AdaptationTable, client_id: str) -> ControlAccount:
    context = None
    if table.ca is not None:
        context = ssl.create_default_context(cafile=str(table.ca))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    password = table.password_file.read_bytes().strip() if table.password_file is not None else None
    return ControlAccount(client_id, table.nodes, table.user, password, context)


def check_adaptation(table: AdaptationTable, report: ProblemReport) -> None:
    for key in ("network", "region"):
        check_name(getattr(table, key), ("adaptation", key), report)
    if not table.nodes:
        report.add(("adaptation", "nodes"), "there are none", 'write nodes = ["127.0.0.1:1883"]')
    for address in table.nodes:
        attempt(partial(checked_address, address), ("adaptation", "nodes"), report)
    if table.password_file is not None:
        contents(table.password_file, ("adaptation", "password_file"), report)
        if table.user is None:
            report.add(("adaptation", "user"), "a password without a user name", "add user")
    if table.ca is not None and contents(table.ca, ("adaptation", "ca"), report) is not None:
        check_authority(table.ca, ("adaptation", "ca"), report)


def check_key(table: SealedAdaptationTable, report: ProblemReport) -> None:
    if not CONTROL_KEY.check(table, report):
        text = "nothing would show that an order comes from a coordinator of this network"
        report.add(("adaptation", "key_file"), text, "name the file with the key of [network]")


def check_name(name: str, place: tuple[str, ...], report: ProblemReport) -> None:
    if not _NAME.fullmatch(name):
        report.add(place, f'"{name}" is no name', "use up to 64 letters, digits, . _ -")
