"""A node's dashboard: the questions it answers for others' pages, and what its own pages show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from sterna.broker.inspection import Findings
from sterna.node.management import Gathered, Management
from sterna.runtime.dashboard.live_pictures import QUESTION, LivePictures
from sterna.runtime.dashboard.node_picture import NodePicture, PicturedNode
from sterna.runtime.dashboard.password_checks import PasswordChecks
from sterna.runtime.dashboard.questions import QUESTIONS, QuestionedNode


class WatchedNode(PicturedNode, QuestionedNode, Protocol):
    def work(self, piece: Callable[[], None]) -> None:
        """Do this in a turn of the node."""


class Dashboard:
    def __init__(self, node: WatchedNode, alone: Management) -> None:
        """`alone`: where the node's questions go while it knows no others."""
        self._node = node
        self._own = NodePicture(node)
        self.pictures = LivePictures(self._gather)
        self.password_checks = PasswordChecks()
        self.answer_for(alone)

    def answer_for(self, management: Management) -> None:
        """Answer the pages of other nodes, too."""
        management.provide(QUESTION, lambda _argument, _most: Findings([self._own.row()], is_cut=False))
        for kind, answer in QUESTIONS.items():
            management.provide(kind, partial(answer, self._node))

    async def _gather(self, within_s: float) -> Gathered:
        answer: asyncio.Future[Gathered] = asyncio.get_running_loop().create_future()
        management = self._node.management()
        self._node.work(lambda: management.ask(QUESTION, "", 1, answer.set_result, within_s))
        return await answer
