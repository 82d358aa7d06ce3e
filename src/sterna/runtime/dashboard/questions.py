"""Questions of the dashboard beside the live picture, answered by every node: a row of `QUESTIONS` each."""

from __future__ import annotations

from collections.abc import Callable
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from sterna.broker.broker import Broker
from sterna.broker.client_pages import client_page
from sterna.broker.inspection import LOOKED_AT_MAX, Findings, client_row, cut_to, expressions, own_sessions
from sterna.broker.topic_tree import TopicPage, WatchRequest
from sterna.mqtt.topics import is_topic_filter
from sterna.operators.errors import ExpressionError
from sterna.operators.explain import steps_of
from sterna.operators.grammar import parse
from sterna.runtime.config.schema import as_plain
from sterna.runtime.config.settings import Configuration
from sterna.runtime.functions.pool import functions_of

if TYPE_CHECKING:
    from sterna.runtime.feed.feed import Feed

WAITING_SHOWN = 50
"""Sessions of each node."""

Row = dict[str, Any]


class QuestionedNode(Protocol):
    broker: Broker
    feed: Feed | None

    @property
    def configuration(self) -> Configuration: ...


def _clients(node: QuestionedNode, argument: str, most: int) -> Findings:
    return client_page(node.broker, node.configuration.node.name, argument, most)


def _expressions(node: QuestionedNode, _argument: str, most: int) -> Findings:
    return expressions(node.broker, node.configuration.node.name, "", most)


def _readers(node: QuestionedNode, _argument: str, most: int) -> Findings:
    """Readers of the feed: those with a name, and those that are connected without being registered."""
    feed = node.feed
    if feed is None:
        return Findings([], is_cut=False)
    safe, name, connected = feed.journal.safe_offset, node.configuration.node.name, feed.connected()
    rows = []
    for one in feed.readers.records():
        lost = feed.readers.lost(one.name)
        rows.append(
            {
                "reader": one.name,
                "node": name,
                "started": one.started,
                "offset": one.committed,
                "lag": max(0, safe - one.committed),
                "lost": 0 if lost is None else lost.messages,
                "connections": connected.pop(one.name, 0),
            }
        )
    nameless = [
        {"reader": reader, "node": name, "connections": number, "started": None, "offset": None, "lag": None, "lost": 0}
        for reader, number in connected.items()
    ]
    return cut_to([*rows, *nameless], most)


def _audits(node: QuestionedNode, _argument: str, most: int) -> Findings:
    """Outcomes of audits that were handed to this node, the newest first."""
    if node.feed is None:
        return Findings([], is_cut=False)
    name = node.configuration.node.name
    return cut_to([{**msgspec.to_builtins(one), "node": name} for one in reversed(node.feed.audits.outcomes)], most)


def _waiting(node: QuestionedNode, _argument: str, most: int) -> Findings:
    """The sessions for which most waits at this node."""
    name = node.configuration.node.name
    sessions = (one for one in islice(own_sessions(node.broker), LOOKED_AT_MAX) if len(one.queue) or one.inflight)
    most_first = nlargest(WAITING_SHOWN + 1, sessions, key=lambda one: len(one.queue) + len(one.inflight))
    return cut_to([client_row(one, name) for one in most_first], min(most, WAITING_SHOWN))


def _settings(node: QuestionedNode, argument: str, _most: int) -> Findings:
    """All settings in effect of the node of that name, secrets left out."""
    name = node.configuration.node.name
    rows = [{"node": name, "settings": as_plain(node.configuration)}] if argument == name else []
    return Findings(rows, is_cut=False)


def _topics(node: QuestionedNode, argument: str, most: int) -> Findings:
    page = msgspec.json.decode(argument, type=TopicPage)
    return Findings(*node.broker.topic_trees.children(page, node.configuration.node.name, most))


def _topic(node: QuestionedNode, argument: str, _most: int) -> Findings:
    return Findings(node.broker.topic_trees.topic(argument.encode(), node.configuration.node.name), is_cut=False)


def _watch(node: QuestionedNode, argument: str, most: int) -> Findings:
    request, limits = msgspec.json.decode(argument, type=WatchRequest), node.broker.limits
    if not is_topic_filter(request.filter.encode(), limits.topic_levels, limits.topic_bytes):
        raise ValueError(f"{request.filter!r} is no topic filter: + and # stand alone in a level, # at the end")
    return Findings(*node.broker.topic_trees.watch(request, node.configuration.node.name, most))


QUESTIONS: dict[str, Callable[[QuestionedNode, str, int], Findings]] = {
    "dashboard-clients": _clients,
    "dashboard-expressions": _expressions,
    "dashboard-readers": _readers,
    "dashboard-settings": _settings,
    "dashboard-topics": _topics,
    "dashboard-topic": _topic,
    "dashboard-watch": _watch,
    "dashboard-audits": _audits,
    "dashboard-waiting": _waiting,
}


def explained(text: str, configuration: Configuration) -> Row:
    """The meaning of an expression at this node, or the reason why no node takes it."""
    functions = functions_of(configuration.functions)
    try:
        read = parse(text.encode(), functions)
    except ExpressionError as error:
        return {"accepted": False, "error": str(error), "steps": []}
    steps = steps_of(read, configuration.operators, functions)
    return {"accepted": True, "steps": [{"step": one, "gives": gives, "remark": more} for one, gives, more in steps]}
