"""docs/upgrading.md names the versions that the code speaks and understands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sterna.mqtt import gateway_packets
from sterna.overlay import bundle, datagrams, hellos
from sterna.runtime.feed import requests
from sterna.vocabulary import versions
from sterna.vocabulary.versions import Versions

PAGE = (Path(__file__).parents[2] / "docs/upgrading.md").read_text()
ROWS = dict(re.findall(r"^\| ([^|]+) \| (\d+ \| [^|]+) \|$", PAGE, re.MULTILINE))


@pytest.mark.parametrize(
    ("row", "spoken"),
    [
        ("links between nodes", versions.LINK),
        ("journal segments", versions.JOURNAL),
        ("`sessions.sqlite`", versions.SESSIONS),
        ("datagrams of the spanning tree", Versions(datagrams.VERSION, datagrams.VERSION)),
        ("hellos of the mobile overlay", Versions(hellos.VERSION, hellos.VERSION)),
        ("bundles of connections", Versions(bundle.VERSION, bundle.VERSION)),
        ("control packets of gateways", Versions(gateway_packets.VERSION, gateway_packets.VERSION)),
        ("feed", Versions(requests.VERSION, requests.VERSION)),
    ],
)
def test_the_page_names_the_versions_of_the_code(row: str, spoken: Versions) -> None:
    assert ROWS[row] == f"{spoken.newest} | {spoken}"


def test_every_row_is_checked() -> None:
    assert len(ROWS) == 8
