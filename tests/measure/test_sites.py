"""Experiments at the same time are at places of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sterna.measure.errors import MeasurementError
from sterna.measure.harness import sites
from sterna.measure.harness.sites import AtADistance, may_be_at_a_distance

pytestmark = pytest.mark.skipif(not may_be_at_a_distance(), reason="network namespaces need root")

ANOTHER = """
from sterna.measure.harness.sites import AtADistance
with AtADistance(1, lambda *_: 0.0) as site:
    print(site.places[0].host)
"""


def nowhere_far(*_: object) -> float:
    return 0.0


def test_sites_of_two_processes_share_no_address() -> None:
    with AtADistance(1, nowhere_far) as ours:
        run = subprocess.run([sys.executable, "-c", ANOTHER], capture_output=True, text=True, check=True)
        theirs = run.stdout.strip()
    assert theirs.startswith("198.18.")
    assert theirs.rpartition(".")[0] != ours.places[0].host.rpartition(".")[0]


def test_when_all_are_taken_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "NETS", 0)
    with pytest.raises(MeasurementError, match="--loopback"):
        AtADistance(1, nowhere_far)
