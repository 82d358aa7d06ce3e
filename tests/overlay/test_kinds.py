"""An overlay is a module and a row: the world goes by what the row says, and asks for none by its name."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from sterna.overlay.kinds import OVERLAYS, DatagramUse, OverlayKind
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.settings import NetworkTable
from sterna.runtime.links.network_sockets import SOCKETS

SOURCE = Path(__file__).parents[2] / "src/sterna"
WORLDS = ("runtime", "node", "routing")
BY_NAME = re.compile(r"overlay [!=]= |\b\w+Overlay\.name\b")


@pytest.mark.parametrize(("name", "kind"), OVERLAYS.items())
def test_a_row_names_its_table_and_its_datagrams(name: str, kind: OverlayKind) -> None:
    table = NetworkTable(name="n", bind=Bind("127.0.0.1", 0), overlay=name).overlay_table
    assert (kind.tuning() is None) == (table is None)
    if table is not None:
        assert isinstance(table, type(kind.tuning()))
        assert kind.table in {field.name for field in fields(NetworkTable)}
    assert (kind.datagrams in SOCKETS) == (kind.datagrams is not DatagramUse.NONE)
    assert kind.why_bind or not kind.datagrams, "those who send datagrams are answered"


def test_nobody_asks_for_an_overlay_by_its_name() -> None:
    paths = [path for world in WORLDS for path in (SOURCE / world).rglob("*.py")]
    paths += (SOURCE / "simulation").glob("*.py")
    assert len(paths) > 150
    assert [str(path) for path in paths if BY_NAME.search(path.read_text())] == []
    assert BY_NAME.search('if network.overlay == "static":')
    assert BY_NAME.search("if overlay is MobileOverlay.name:")
