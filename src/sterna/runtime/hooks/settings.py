"""Settings of the access hook: the `[authentication.hook]` table of a node's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sterna.runtime.config.schema import Table
from sterna.vocabulary.settings import Allowed, ShownDefault


class HookTable(Table, frozen=True):
    """A program of your own decides who comes in and what they may do, see [Access hooks](#access-hooks).  Without an
    answer nobody comes in."""

    url: str | None = None
    """Asked by HTTP POST; `https://`, or `http://` on this machine."""
    call: str | None = None
    """Or a Python function in a process of its own, as `module:function`."""
    directory: Path | None = None
    """Where its module is looked for, before anywhere else."""
    workers: Annotated[int, Allowed(1, 64)] = 1
    """Processes for the function."""
    time_out_s: Annotated[float, Allowed(0.01, 60)] = 2.0
    """A client that has no answer by then is turned away."""
    cache_s: Annotated[float, Allowed(0, 86400)] = 0
    """How long an answer holds for the same client, user, password and address, `expires_s` at most; 0: it is asked for
    each connection."""
    waiting: Annotated[int, Allowed(1, 100_000)] = 1000
    """Clients that may wait for an answer; further ones are turned away."""
    unencrypted: bool = False
    """Take an `http://` address of another machine: passwords cross the network as they are."""
    ca: Annotated[Path | None, ShownDefault("those of the machine")] = None
    """Authorities (PEM) whose certificates are believed of an `https://` address."""
    token_file: Path | None = None
    """A file with a token that is sent with each question (`Authorization: Bearer`)."""
