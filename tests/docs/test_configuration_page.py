"""docs/configuration.md shows every key as the settings have it: default, unit, allowed values and sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sterna.broker.limits import LIMITS_TOLD, Limits
from sterna.gateway.settings import GATEWAY_LIMITS_TOLD, GatewayLimits
from sterna.runtime.config.reference import allowed_text, default_text, docstrings, written
from sterna.runtime.config.schema import is_table, keys_of, table_in_list
from sterna.runtime.config.settings import Configuration, NetworkTable
from sterna.runtime.gateway.settings import GatewayConfiguration
from sterna.runtime.mosquitto.bridge_table import IMPOSSIBLE as BRIDGE_OPTIONS
from sterna.runtime.mosquitto.options import IMPOSSIBLE as OPTIONS

PAGE = Path(__file__).parents[2] / "docs/configuration.md"


def test_the_page_shows_the_settings_as_they_are() -> None:
    page = PAGE.read_text()
    assert written(page) == page, "run: make docs-tables"


def test_a_page_without_a_place_for_the_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="keys of a node"):
        written("# Configuration\n")


@pytest.mark.parametrize("kind", [Configuration, GatewayConfiguration])
def test_every_key_has_a_sentence(kind: type) -> None:
    assert list(without_sentence(kind)) == []


@pytest.mark.parametrize(("kind", "fixed"), [(Limits, LIMITS_TOLD), (GatewayLimits, GATEWAY_LIMITS_TOLD)])
def test_limits_that_need_a_restart_are_named(kind: type, fixed: frozenset[str]) -> None:
    assert set(re.findall(r"`(\w+)`", kind.__doc__ or "")) == fixed


@pytest.mark.parametrize("line", sorted(OPTIONS | BRIDGE_OPTIONS))
def test_lines_of_mosquitto_without_a_counterpart_are_named(line: str) -> None:
    page = PAGE.with_name("coming-from-mosquitto.md").read_text()
    assert re.search(rf"`{re.escape(line)}[` ]", page.partition("## Lines that stay without a counterpart")[2])


def without_sentence(table: type) -> list[str]:
    found = []
    for name, key in keys_of(table).items():
        inner = key.kind if is_table(key.kind) else table_in_list(key.kind)
        if inner:
            found += without_sentence(inner)
        elif not docstrings(table).get(key.attribute, "").endswith((".", "...")):
            found.append(f"{table.__name__}.{name}")
    return found


@pytest.mark.parametrize(
    ("name", "default", "allowed"),
    [
        ("keep_alive_s", "1 s", "0.05 s to 3,600 s"),
        ("dead_after_s", "3 s", "0.1 s to 1 day"),
        ("resend_bytes", "8 MiB", "64 KiB to 1 TiB"),
        ("connections", "1", "1 to 16"),
        ("compress", "true", ""),
        ("overlay", '`"static"`', '`"static"`, `"spanning-tree"`, `"mobile"`'),
        ("name", "required", ""),
        ("bind", "none", ""),
        ("advertise", "`bind`", ""),
    ],
)
def test_defaults_and_ranges_are_shown_with_their_units(name: str, default: str, allowed: str) -> None:
    key = keys_of(NetworkTable)[name]
    assert (default_text(name, key), allowed_text(name, key)) == (default, allowed)
