"""Copies of several processes' data are cut at one moment, as far as sessions are concerned."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest

from sterna.runtime.admin.backup_api import PartState
from sterna.runtime.admin.site import Request
from sterna.runtime.processes.backup import CUTS_MAX, CopyingProcess, cut_together
from sterna.vocabulary.errors import ConfigurationError


class BusyProcess(CopyingProcess):
    """At each of its first cuts another session has come or gone."""

    def __init__(self, restless_cuts: int) -> None:
        super().__init__(1, Path("unused"), "backup", Request("POST", "/backup", {}))
        self._restless_cuts = restless_cuts
        self.cuts = 0

    async def order(self, step: Literal["open", "cut", "copy", "drop"]) -> None:
        assert step == "cut"
        self.cuts += 1
        self.state = PartState("backup", "open", came_or_went=7 + min(self.cuts, self._restless_cuts))

    async def look(self) -> None:
        self.state = PartState("backup", "open", came_or_went=7)


def test_one_cut_is_enough_while_no_session_comes_or_goes() -> None:
    members = [BusyProcess(0), BusyProcess(0)]
    asyncio.run(cut_together(members))
    assert [one.cuts for one in members] == [1, 1]


def test_all_are_cut_again_until_no_session_has_come_or_gone() -> None:
    members = [BusyProcess(0), BusyProcess(3)]
    asyncio.run(cut_together(members))
    assert [one.cuts for one in members] == [4, 4]


def test_it_is_said_that_sessions_never_stay() -> None:
    with pytest.raises(ConfigurationError, match="try again when fewer clients connect"):
        asyncio.run(cut_together([BusyProcess(0), BusyProcess(CUTS_MAX)]))
