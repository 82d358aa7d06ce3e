"""Asking other nodes for their parts of what clients here want to know, and merging what they tell.

Every node that can be reached is asked; a part that comes replaces what its node said before.  There is no answer while
a node has yet to say what it has, or while a topic would count twice, but not for long: who does not answer is left
out.  A node that cannot be reached counts with what it said last, for as long as values count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sterna.broker.broker import Broker
from sterna.broker.expressions.parts import ExpressionPart
from sterna.node.part_messages import (
    CAUGHT_UP,
    FULL,
    MORE,
    QUIET,
    All,
    Apart,
    Done,
    Heard,
    Told,
    Unwanted,
    Want,
    Windows,
    Word,
    pages,
)
from sterna.node.part_server import Post
from sterna.operators.errors import StateError
from sterna.operators.stages import Outgrown

#: How long an answer may be held back for one node.
HELD_S = 2.0
#: How soon after it was told a node hears that it was heard.
HEARD_S = 5.0
#: How soon a node is asked again that has not answered (it may not know its way to us yet), and twice as late each
#: time, up to so long.
AGAIN_S = 0.1
AGAIN_MAX_S = 5.0


class Asked:
    """One part, as we ask the others for theirs."""

    __slots__ = ("again", "due", "is_held", "number", "part", "said_at", "waited_us")

    def __init__(self, number: int, part: ExpressionPart) -> None:
        self.number = number
        self.part = part
        #: Node that was asked for everything and has not answered -> how long to wait for it.
        self.again: dict[str, float] = {}
        #: News is told at this instant; 0: there is none.
        self.due = 0.0
        #: Of periods: the end of the window that is waited for.
        self.waited_us = 0
        self.said_at = float("-inf")
        #: Somebody looks, in a while, whether there still is no answer.
        self.is_held = False


class PartsAsked:
    def __init__(self, broker: Broker, post: Post, pace_s: float, expiry_s: float) -> None:
        self._broker = broker
        self._post = post
        self._pace_s = pace_s
        self._expiry_s = expiry_s
        self._number = 0
        self._by_number: dict[int, Asked] = {}
        self._by_part: dict[bytes, Asked] = {}
        #: Nodes that can be reached.
        self._nodes: dict[str, None] = {}
        #: Nodes that can not, and could before.
        self._away: dict[str, None] = {}
        #: Node -> number -> the newest it told, until it has been told so.
        self._unsaid: dict[str, dict[int, tuple[int, int]]] = {}
        #: Node -> words that go at the end of the turn.
        self._outgoing: dict[str, list[Word]] = {}

    def _at(self, wait_s: float, action: Callable[[], None]) -> None:
        self._broker.deadlines.at(self._broker.now + wait_s, action)

    @property
    def _grace_s(self) -> float:
        return self._broker.routes.computations.settings.grace_s

    @property
    def untold(self) -> bool:
        """Is there something that others have yet to be told?"""
        return bool(self._outgoing)

    def _write(self, node: str, words: Sequence[Word]) -> None:
        self._outgoing.setdefault(node, []).extend(words)

    def flush(self) -> None:
        if self._outgoing:
            outgoing, self._outgoing = self._outgoing, {}
            for node, words in outgoing.items():
                self._post.send(node, words)

    # -- what clients here want --

    def look(self) -> list[ExpressionPart]:
        """Clients here may want other parts than before; those they do."""
        wanted = [part for part in self._broker.routes.computations.parts if part.computations]
        for part in wanted:
            asked = self._by_part.get(part.name)
            if asked is not None and asked.part is part:
                continue
            if asked is not None:
                self._end(asked)
            self._number += 1
            asked = self._by_number[self._number] = self._by_part[part.name] = Asked(self._number, part)
            for node in self._nodes:
                self._ask(asked, node)
            if part.gathered is not None:
                for node in self._away:  # what they have of the first window is waited for, like later
                    part.gathered.expect(node)
            self._watch(asked)
        names = {part.name for part in wanted}
        for asked in [asked for name, asked in self._by_part.items() if name not in names]:
            self._end(asked)
        return wanted

    def expect(self, nodes: list[str]) -> None:
        """After a restart: there is no answer before these have been found and have said what they have."""
        self._away.update(dict.fromkeys(nodes))
        for asked in self._by_number.values():
            asked.part.awaited.update(dict.fromkeys(nodes))

    def _end(self, asked: Asked) -> None:
        del self._by_number[asked.number], self._by_part[asked.part.name]
        for node in self._nodes:
            self._write(node, [Unwanted([asked.number])])

    def _ask(self, asked: Asked, node: str) -> None:
        merge, gathered = asked.part.merge, asked.part.gathered
        if (merge is not None and node not in merge.remotes) or (gathered is not None and node not in gathered.remotes):
            asked.part.awaited[node] = None
        if node not in asked.again:
            asked.again[node] = AGAIN_S
            self._at(AGAIN_S, partial(self._ask_again, asked, node))
        first, *rest = pages([] if merge is None else merge.shared)
        wanted_us = asked.part.wanted_us
        age_s = max(0.0, self._broker.wall - wanted_us / 1e6) if wanted_us else 0.0
        self._write(node, [Want(asked.number, asked.part.name, age_s, first)])
        self._write(node, [Apart(asked.number, page) for page in rest])

    # -- nodes come and go --

    def found(self, node: str) -> None:
        """Perhaps by another way than before: what was on the old one may be lost."""
        self._nodes[node] = None
        self._away.pop(node, None)
        if self._by_number:
            for asked in self._by_number.values():
                self._ask(asked, node)
                self._watch(asked)
            self._write(node, [All(list(self._by_number))])

    def lost(self, node: str) -> None:
        self._nodes.pop(node, None)
        self._away[node] = None
        self._outgoing.pop(node, None)
        for asked in self._by_number.values():
            asked.part.awaited.pop(node, None)
            merge = asked.part.merge
            if merge is not None and merge.leave_out(node):
                self._left_out(asked, node)
            if merge is not None and merge.lost(node, int(self._broker.wall * 1e6)):
                self._broker.routes.computations.away_changed(asked.part)
            self._moved(asked)
        self._at(self._expiry_s, partial(self._still_away, node))

    def _still_away(self, node: str) -> None:
        if node in self._nodes:
            return
        self._away.pop(node, None)
        for asked in self._by_number.values():
            gathered = asked.part.gathered
            if gathered is not None and not self._post.can_reach(node):
                gathered.remotes.pop(node, None)

    # -- what they tell --

    def told(self, node: str, epoch: int, told: Told) -> None:
        asked = self._by_number.get(told.number)
        if asked is None or asked.part.merge is None:
            self._write(node, [Unwanted([told.number])])
            return
        part, merge = asked.part, asked.part.merge
        is_first, was_away = node not in merge.remotes, node in merge.away
        number = (epoch, told.count)
        try:
            moved = merge.came(node, number, bool(told.flags & FULL), told.aggregate, told.claims, told.apart)
        except (StateError, Outgrown) as error:
            self.stopped(node, told.number, str(error))
            return
        if moved is None:
            if node not in asked.again:
                self._ask(asked, node)
            return
        if was_away and node not in merge.away:
            self._broker.routes.computations.away_changed(part)
        if told.flags & FULL:
            asked.again.pop(node, None)
        if told.flags & MORE:
            part.awaited[node] = None
        else:
            part.awaited.pop(node, None)
        self._note(node, told.number, number)
        for computation in part.computations:
            # A part that was there before the first subscription to it is no news.
            is_old = is_first and computation.said is None and not told.flags & CAUGHT_UP
            is_news = moved and not told.flags & QUIET and not is_old
            computation.owed = computation.owed or is_news
        self._moved(asked)

    def _ask_again(self, asked: Asked, node: str) -> None:
        """Unless it has answered."""
        wait_s = asked.again.get(node)
        if wait_s is None or node not in self._nodes or self._by_number.get(asked.number) is not asked:
            asked.again.pop(node, None)
            return
        asked.again[node] = min(2 * wait_s, AGAIN_MAX_S)
        self._at(asked.again[node], partial(self._ask_again, asked, node))
        self._ask(asked, node)

    def _note(self, node: str, number: int, count: tuple[int, int]) -> None:
        unsaid = self._unsaid.get(node)
        if unsaid is None:
            unsaid = self._unsaid[node] = {}
            self._at(HEARD_S, partial(self._say_heard, node))
        unsaid[number] = max(count, unsaid.get(number, count))

    def _say_heard(self, node: str) -> None:
        counts = [(number, *count) for number, count in self._unsaid.pop(node).items()]
        if node in self._nodes:
            self._post.send(node, [Heard(counts)])

    def stopped(self, node: str, number: int, reason: str) -> None:
        asked = self._by_number.get(number)
        if asked is not None:
            asked.part.stop(f"node {node}: {reason}")
            for computation in asked.part.computations:
                computation.owed = True
            asked.part.awaited.pop(node, None)
            self._moved(asked)

    # -- answers --

    def moved(self, part: ExpressionPart) -> None:
        """Messages have come here: perhaps of topics that others have, too."""
        asked = self._by_part.get(part.name)
        if asked is not None and not part.is_settled:
            self._moved(asked)

    def _moved(self, asked: Asked) -> None:
        """Say what is new, at the pace that is set; or see that it is said before long."""
        if asked.part.gathered is not None:
            self.close_windows(asked.part)
            return
        merge = asked.part.merge
        if merge is not None and merge.asks:
            for place, topics in merge.asks.items():
                self._write(place, [Apart(asked.number, page) for page in pages(topics)])
            merge.asks.clear()
        if not asked.part.is_settled:
            self._watch(asked)
            return
        if not asked.due and any(computation.owed for computation in asked.part.computations):
            now = self._broker.now
            asked.due = max(now, asked.said_at + self._pace_s)
            if asked.due <= now:
                self._say(asked)
            else:
                self._broker.deadlines.at(asked.due, partial(self._say_late, asked, asked.due))

    def _say_late(self, asked: Asked, due: float) -> None:
        if asked.due == due and self._by_number.get(asked.number) is asked:
            self._say(asked)

    def _say(self, asked: Asked) -> None:
        asked.due = 0.0
        asked.said_at = self._broker.now
        self._broker.routes.computations.merge(asked.part)

    def _watch(self, asked: Asked) -> None:
        if not asked.is_held:
            asked.is_held = True
            grace_s = 0.0 if asked.part.gathered is None else self._grace_s
            self._at(max(HELD_S, grace_s), partial(self._held, asked))

    def _held(self, asked: Asked) -> None:
        asked.is_held = False
        part, merge = asked.part, asked.part.merge
        if self._by_number.get(asked.number) is not asked:
            return
        if merge is None:
            part.awaited.clear()
            self._moved(asked)
            return
        if not part.is_settled:
            part.awaited.clear()
            for node in merge.remotes:
                if merge.leave_out(node):
                    self._left_out(asked, node)
        self._moved(asked)

    # -- windows --

    def windows(self, node: str, windows: Windows) -> None:
        asked = self._by_number.get(windows.number)
        if asked is None or asked.part.gathered is None:
            self._write(node, [Unwanted([windows.number])])
            return
        part, gathered = asked.part, asked.part.gathered
        done_us = part.closed_us
        for end_us, is_first, items in windows.windows:
            gathered.came(node, 0, end_us, is_first, items, done_us=done_us, more=True)
        gathered.came(node, windows.closed_us, 0, True, [], done_us=done_us, more=windows.more)
        if not windows.more:
            asked.again.pop(node, None)
            part.awaited.pop(node, None)
        if any(end_us <= done_us for end_us, _, _ in windows.windows):
            self._write(node, [Done(windows.number, done_us)])
        self.close_windows(part)

    def close_windows(self, part: ExpressionPart) -> None:
        """Those that are over and that everybody has reported, or that have waited for long enough."""
        asked, gathered = self._by_part.get(part.name), part.gathered
        if asked is None or gathered is None or part.windows is None:
            return
        now_us = int(self._broker.wall * 1e6)
        over_us = part.windows.boundary(now_us)
        part.end_windows(over_us, self._broker.log)
        grace_us = int(self._grace_s * 1e6)
        while (end_us := gathered.next_end(part.closed_us, over_us)) is not None:
            if part.awaited:
                return  # for as long as `_held` lets it
            if not gathered.is_complete(end_us) and now_us < end_us + grace_us:
                if asked.waited_us != end_us:
                    asked.waited_us = end_us
                    self._at((end_us + grace_us - now_us) / 1e6, partial(self.close_windows, part))
                return
            self._broker.routes.computations.close_window(part, end_us)
            part.closed_us = end_us
            told = gathered.close(end_us)
            # Only when what was made of them is safe may the others forget it.
            self._broker.commitments.in_turn(partial(self._say_done, asked, told, end_us))

    def _say_done(self, asked: Asked, nodes: list[str], end_us: int) -> None:
        for node in nodes:
            self._write(node, [Done(asked.number, end_us)])
        if asked.part.windows is not None and not asked.part.holders:
            asked.part.windows.release(end_us)

    def _left_out(self, asked: Asked, node: str) -> None:
        expression = asked.part.expression.text.decode()
        reason = "it cannot be reached, and other nodes have newer values of its topics"
        self._broker.tell("a node is left out of an answer", {"expression": expression, "node": node, "reason": reason})
