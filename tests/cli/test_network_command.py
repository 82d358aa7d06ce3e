"""`sterna network` shows what is missing here, and for whom a carrier had no room."""

from __future__ import annotations

import io
from dataclasses import asdict

from rich.console import Console

from sterna.cli.network import _gaps, _heading
from sterna.runtime.links.network_view import NetworkView

CARRIED = {"messages": 0, "bytes": 0, "oldest_s": None, "handed_on": 4, "evicted": 9, "dropped_for": {"boat": 9}}


def _view() -> NetworkView:
    return NetworkView(
        "fleet",
        "a",
        1,
        "mobile",
        {"overlay": "mobile"},
        gaps={"b": {"messages_at_most": 1200, "age_s": 61.4}},
        ways={"claims": 3, "refused": 1},
        carried=CARRIED,
    )


def test_a_gap_is_shown_with_its_age() -> None:
    out = io.StringIO()
    Console(file=out, width=110).print(_gaps(asdict(_view())))
    assert out.getvalue().split()[-4:] == ["b", "1,200", "61", "s"]


def test_who_wanted_what_a_carrier_dropped_is_named() -> None:
    lines = _heading(asdict(_view())).splitlines()
    assert "ways: claims 3, refused 1" in lines
    assert lines[-1].endswith("handed on 4, dropped 9 (wanted by boat 9)")
