"""An installation of the package gets no version of a library that is known to have a hole."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]

#: library -> the last version of which a hole was published that matters to anybody
HOLES = {
    "cbor2": "6.1.0",
    "cryptography": "49.0.0",
    "h11": "0.15.0",
    "pillow": "12.2.0",
    "pyjwt": "2.14.0",
    "pytest": "9.0.2",
    "setuptools": "78.1.0",
    "websockets": "9.0",
}


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    return [Requirement(text) for text in (*project["dependencies"], *extras)]


@pytest.mark.parametrize(("library", "version"), HOLES.items())
def test_ranges_begin_after_the_last_known_hole(library: str, version: str) -> None:
    found = [one for one in requirements() if one.name == library]
    assert found
    assert not any(one.specifier.contains(version) for one in found)


def test_the_lock_is_within_the_ranges() -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    locked = {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}
    for one in requirements():
        assert one.specifier.contains(locked[one.name.lower().replace("_", "-")]), one
