"""Manual pages, made of the commands' own help: `python -m sterna.cli.man_pages DIRECTORY`, or `make man`.

There is a page for `sterna`, one for each command and one for each command of a group.  Nothing stands in a page that
`--help` does not say.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from sterna import __version__
from sterna.cli.main import assemble


def pages() -> Iterator[tuple[str, str]]:
    """File name and text of each page."""
    root: Any = typer.main.get_command(assemble(""))
    yield from _pages(root, "sterna")


def _pages(command: Any, name: str) -> Iterator[tuple[str, str]]:
    yield f"{name.replace(' ', '-')}.1", _page(command, name)
    for word, below in sorted(getattr(command, "commands", {}).items()):
        yield from _pages(below, f"{name} {word}")


def _page(command: Any, name: str) -> str:
    help_text = (command.help or command.short_help or "").strip()
    first, _, rest = help_text.partition("\n")
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    commands = sorted(getattr(command, "commands", {}).items())
    lines = [f'.TH "{name.replace(" ", "-").upper()}" 1 "" "sterna {__version__}" "Sterna"']
    lines += [".SH NAME", f"{_escaped(name.replace(' ', '-'))} \\- {_escaped(first.rstrip('.'))}", ".SH SYNOPSIS"]
    shown = " ".join(["[OPTIONS]", *(_named(one) for one in arguments), *(["COMMAND"] if commands else [])])
    lines += [f".B {_escaped(name)}", _escaped(shown), ".SH DESCRIPTION", _escaped(first)]
    for paragraph in rest.strip().split("\n\n") if rest.strip() else ():
        lines += [".PP", _escaped(" ".join(paragraph.split()))]
    lines += _section("ARGUMENTS", [(_named(one), getattr(one, "help", None) or "") for one in arguments])
    lines += _section("OPTIONS", [(_spelled(one), one.help or "") for one in options])
    lines += _section("COMMANDS", [(f"{name.replace(' ', '-')}-{word}(1)", _summary(one)) for word, one in commands])
    return "\n".join([*lines, ""])


def _section(title: str, entries: list[tuple[str, str]]) -> list[str]:
    lines = [f".SH {title}"] if entries else []
    for head, text in entries:
        lines += [".TP", f"\\fB{_escaped(head)}\\fR", _escaped(text) or "\\&"]
    return lines


def _named(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _spelled(option: Any) -> str:
    names = ", ".join(option.opts)
    return names if option.is_flag else f"{names} {option.metavar or option.type.name.upper()}"


def _summary(command: Any) -> str:
    return str(command.help or command.short_help or "").strip().partition("\n")[0]


def _escaped(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def main(directory: str) -> None:
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (folder / name).write_text(text)
    print(f"{len(list(folder.glob('*.1')))} pages in {folder}; read one with: man {folder}/sterna.1")


if __name__ == "__main__":
    main(sys.argv[1])
