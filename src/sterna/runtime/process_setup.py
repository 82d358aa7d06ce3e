"""Steps that every long-lived process takes at its start."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import sterna
import sterna.broker.delivery.delivery


def allow_many_sockets() -> int:
    """Raise the limit on open files as far as this process may; how many there may be."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else sys.maxsize


def is_compiled() -> bool:
    """Do the hot modules run compiled?"""
    return (sterna.broker.delivery.delivery.__file__ or "").endswith(".so")


def outdated_modules() -> list[str]:
    """Compiled modules whose source has been edited since: what runs is not what is read.

    Only a checkout has sources that are edited; pip unpacks a wheel's files in any order."""
    if not (Path(sterna.__file__).parents[2] / "setup.py").exists():
        return []
    found = []
    for name, module in sorted(sys.modules.items()):
        compiled = Path(getattr(module, "__file__", None) or "")
        if name.startswith("sterna.") and compiled.suffix == ".so":
            source = compiled.with_name(compiled.name.split(".")[0] + ".py")
            if source.exists() and source.stat().st_mtime > compiled.stat().st_mtime:
                found.append(name)
    return found
