"""Settings of data processing functions: the `[functions]` table of a node's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sterna.runtime.config.schema import Table
from sterna.vocabulary.settings import Allowed


class OwnFunction(Table, frozen=True):
    """A data processing function of your own."""

    name: str
    """How subscribers write it, without the `$`: capital letters and digits."""
    call: str
    """The function that computes it, as `module:function`: bytes in, a number out."""
    description: str
    """Its work on a payload; clients read it in `$SYS/capabilities`."""
    returns: str = "a number"
    """The meaning of the number."""


class FunctionTable(Table, frozen=True):
    """Data processing functions, see [operators](operators.md#functions-of-a-payload).  They run in processes of their
    own."""

    own: tuple[OwnFunction, ...] = ()
    directory: Path | None = None
    """Where modules of your own are looked for, before anywhere else."""
    workers: Annotated[int, Allowed(1, 256)] = 1
    """Processes, so calls at the same time."""
    time_out_s: Annotated[float, Allowed(0.01, 3600)] = 10.0
    """A call that takes longer is given up, and its process killed and replaced."""
    memory_bytes: int = 2 * 1024 * 1024 * 1024
    """Memory (address space) of one process; 0: any."""
