"""The reference of every key in `docs/configuration.md`, written from the classes: `make docs-tables`.

A table of the configuration becomes a section, its class docstring the text above, and each field a row: name, default
with its unit, allowed values, and the docstring below the field.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from sterna.runtime.adaptation.coordinator_settings import CoordinatorConfiguration
from sterna.runtime.adaptation.worker_settings import WorkerConfiguration
from sterna.runtime.config.process_tables import Admin, ListenerTable, Log
from sterna.runtime.config.schema import Bind, Key, is_table, keys_of, table_in_list
from sterna.runtime.config.settings import Configuration
from sterna.runtime.gateway.settings import GatewayConfiguration
from sterna.vocabulary.settings import MANY

_DAY_S = 24 * 3600
_SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_HEAD = "| key | default | allowed | meaning |\n|---|---|---|---|\n"


def regions() -> dict[str, str]:
    """The generated parts of the page, by the names of their markers."""
    shared = (ListenerTable, Admin, Log)
    of_gateways = sections(GatewayConfiguration, " of a gateway", without=shared)
    of_workers = sections(WorkerConfiguration, " of a worker", without=shared)
    of_coordinators = sections(CoordinatorConfiguration, " of a coordinator", without=shared)
    return {
        "keys of a node": "\n".join(sections(Configuration)),
        "keys of a gateway": "\n".join(of_gateways),
        "keys of a worker": "\n".join(of_workers),
        "keys of a coordinator": "\n".join(of_coordinators),
    }


def sections(table: type[Any], suffix: str = "", path: str = "", without: tuple[type[Any], ...] = ()) -> Iterator[str]:
    """One section for each table inside this one, those inside them included."""
    for name, key in keys_of(table).items():
        in_list = table_in_list(key.kind)
        inner = in_list or (key.kind if is_table(key.kind) else None)
        if inner is not None and not issubclass(inner, without):
            place = f"{path}{name}"
            heading = f"[[{place}]]" if in_list else f"[{place}]"
            yield f"### `{heading}`{suffix}\n\n{_introduction(inner)}{_HEAD}{''.join(_rows(inner))}"
            yield from sections(inner, suffix, f"{place}.", without)


def _introduction(table: type[Any]) -> str:
    text = ast.get_docstring(_definition(table))
    return f"{_on_one_line(text)}\n\n" if text else ""


def _rows(table: type[Any]) -> Iterator[str]:
    texts = docstrings(table)
    for name, key in keys_of(table).items():
        if not is_table(key.kind) and not table_in_list(key.kind):
            cells = (f"`{name}`", default_text(name, key), allowed_text(name, key), texts[key.attribute])
            yield f"| {' | '.join(cells)} |\n"


def docstrings(table: type[Any]) -> dict[str, str]:
    """The text below each field, those of base classes included."""
    found: dict[str, str] = {}
    for kind in reversed([kind for kind in table.__mro__ if kind.__module__.startswith("sterna.")]):
        body = _definition(kind).body
        for field, text in pairwise(body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    found[name] = _on_one_line(words)
    return found


def _definition(table: type[Any]) -> ast.ClassDef:
    tree = ast.parse(inspect.getsource(sys.modules[table.__module__]))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == table.__name__)


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def default_text(name: str, key: Key) -> str:
    if key.shown_default or key.required:
        return key.shown_default or "required"
    if key.default is None or key.default in ((), "", {}):
        return "none"
    return _value_text(name, key.default)


def allowed_text(name: str, key: Key) -> str:
    """Empty: anything of its type, if a number 0 or more."""
    if key.choices:
        return ", ".join(_value_text(name, choice) for choice in key.choices)
    least, most = (_value_text(name, bound) for bound in (key.range.least, key.range.most))
    if key.kind not in (int, float) or (key.range.least, key.range.most) == (0, MANY):
        return ""
    return f"{least} or more" if key.range.most == MANY else f"{least} to {most}"


def _value_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return _number_text(name, value)
    if isinstance(value, tuple):
        items = ", ".join(f'"{item}"' for item in value)
        return f"`[{items}]`"
    return f'`"{value}"`' if isinstance(value, str | Path | Bind) else str(value)


def _number_text(name: str, value: float) -> str:
    """With the unit that the name ends with: 64 MiB, 7 days, 0.5 s, 2 ms."""
    if value and re.search(r"_bytes(_|$)", name):
        return next((f"{value // size} {unit}" for size, unit in _SIZES if value % size == 0), f"{value:,}")
    if value and name.endswith("_s") and value % _DAY_S == 0:
        days = value // _DAY_S
        return f"{days:g} {'day' if days == 1 else 'days'}"
    unit = next((f" {unit}" for unit in ("ms", "s") if value and name.endswith(f"_{unit}")), "")
    return f"{value:,}{unit}" if isinstance(value, int) else f"{value:,.10g}{unit}"


def written(page: str) -> str:
    """The page with its generated parts renewed."""
    for name, text in regions().items():
        begin, end = f"<!-- {name}: generated -->", f"<!-- end of {name} -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"the page has no part between {begin} and {end}")
        page = f"{before}{begin}\n\n{text}\n{end}{after}"
    return page


def main(arguments: Sequence[str]) -> None:
    for argument in arguments:
        file = Path(argument)
        file.write_text(written(file.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
