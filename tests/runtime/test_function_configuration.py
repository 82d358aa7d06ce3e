"""The `[functions]` table: what is refused, with which advice, and that what is printed can be read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from sterna.runtime.config.loading import load
from sterna.runtime.config.problems import InvalidConfiguration
from sterna.runtime.config.reader import as_toml
from sterna.runtime.functions.pool import functions_of

OWN = '[[functions.own]]\nname = "PEOPLE"\ncall = "vision:people"\ndescription = "people"\n'


@pytest.mark.parametrize(
    ("toml", "text"),
    [
        (OWN.replace("vision:people", "people"), '"people" is no function; write "module:function"'),
        (OWN.replace("vision:people", "vision:"), "is no function"),
        (OWN.replace("vision:people", "vision:people()"), "is no function"),
        (OWN.replace("PEOPLE", "people"), "cannot be the name of a function"),
        (OWN.replace("PEOPLE", "HOURLYAVG"), "cannot be the name of a function"),
        (OWN.replace("PEOPLE", "SYS"), "cannot be the name of a function"),
        (OWN + OWN, "not yet taken"),
        (OWN.replace("PEOPLE", "CNTPPL") + OWN.replace("PEOPLE", "COUNTPEOPLE"), "not yet taken"),
        ('[[functions.own]]\nname = "PEOPLE"\n', "is missing"),
        ("[functions]\nworkers = 0", "0 is out of range"),
        ("[functions]\ntime_out_s = 0", "0.0 is out of range"),
        ("[functions]\nmemory_bytes = 1000", "too little for a process to start in"),
    ],
)
def test_what_cannot_be_is_refused_with_advice(tmp_path: Path, toml: str, text: str) -> None:
    file = tmp_path / "sterna.toml"
    file.write_text(toml)
    with pytest.raises(InvalidConfiguration) as caught:
        load(file, {})
    assert text in str(caught.value)


def test_what_is_printed_can_be_read_again(tmp_path: Path) -> None:
    file = tmp_path / "sterna.toml"
    file.write_text(f'[functions]\ndirectory = "here"\nmemory_bytes = 0\n{OWN}')
    loaded = load(file, {"STERNA_FUNCTIONS_OWN_0_RETURNS": "a count", "STERNA_FUNCTIONS_WORKERS": "3"})
    assert loaded.functions.directory == tmp_path / "here"
    assert (loaded.functions.workers, loaded.functions.own[0].returns) == (3, "a count")
    file.write_text(as_toml(loaded))
    assert load(file, {}).functions == loaded.functions


def test_a_function_of_ones_own_may_take_the_place_of_the_bundled_one(tmp_path: Path) -> None:
    file = tmp_path / "sterna.toml"
    for name, keywords in (("COUNTBLOBS", {"$COUNTBLOBS"}), ("CNTPPL", {"$CNTPPL", "$COUNTPEOPLE"})):
        file.write_text(OWN.replace("PEOPLE", name))
        functions = functions_of(load(file, {}).functions)
        assert {one["keyword"] for one in functions.capabilities() if one["desc"] == "people"} == keywords
