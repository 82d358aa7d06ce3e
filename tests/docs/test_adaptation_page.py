"""docs/adaptation.md shows the table that workers go by, and the thresholds of the models."""

from __future__ import annotations

from pathlib import Path

from sterna.adaptation.draining import drawing
from sterna.adaptation.pressure import MODELS
from sterna.adaptation.settings import PRESSURES

PAGE = (Path(__file__).parents[2] / "docs/adaptation.md").read_text()


def test_the_page_shows_the_table() -> None:
    assert drawing() in PAGE


def test_the_page_names_every_model_with_its_thresholds() -> None:
    assert set(MODELS) == set(PRESSURES)
    for name, model in MODELS.items():
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
        assert row.endswith(f"| {model.up:g} | {model.down:g} |")
