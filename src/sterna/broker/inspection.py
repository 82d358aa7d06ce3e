"""A broker's answers to its operators: sessions, subscriptions, retained messages, traces; and the order to disconnect.

An answer is a list of rows of plain values, so that it travels between nodes and to a page unchanged.  No answer looks
at more than `LOOKED_AT_MAX` things: a question must not make clients wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from sterna.broker.broker import Broker
from sterna.broker.session.session import Session
from sterna.broker.session_lifecycle import KEEP_ALIVE_GRACE
from sterna.broker.tracing import TraceRequest
from sterna.mqtt.message import NEVER, Message
from sterna.mqtt.packets import MQTT_3_1_1, MQTT_5
from sterna.mqtt.reasons import Reason
from sterna.mqtt.topics import is_topic_filter, levels_of, overlap, split_share
from sterna.vocabulary.errors import JournalError

#: Sessions, subscriptions or retained messages that one question looks at.
LOOKED_AT_MAX = 100_000
#: Subscriptions of a client that are listed with it.
SUBSCRIPTIONS_SHOWN = 100
#: Messages of a client that are listed with it: in flight, and the first that wait.
MESSAGES_SHOWN = 20
PAYLOAD_SHOWN = 256
#: States of expressions that one question weighs; it is not said of further ones how big they are.
WEIGHED_BYTES_MAX = 4 * 1024 * 1024

KICKED = "disconnected by an operator"
VERSIONS = {MQTT_3_1_1: "3.1.1", MQTT_5: "5"}

Row = dict[str, Any]


class Findings(NamedTuple):
    rows: list[Row]
    is_cut: bool
    """There is more than was asked for, or than a question may look at."""


class NotAFilter(ValueError):
    """The question names something that is no topic filter."""


def own_sessions(broker: Broker) -> Iterator[Session]:
    """Those that this node has, without remains of sessions that others own."""
    return (one for one in broker.sessions.values() if not (one.is_fenced or one.is_arriving))


def is_control_line(session: Session) -> bool:
    """A session of a coordinator, worker or gateway that ends with its connection: it moves by dialling again."""
    return session.permissions.controls and not session.persistent


def client_row(session: Session, node: str) -> Row:
    """A line of a list of clients."""
    connection = session.connection
    return {
        "client": session.name(),
        "node": node,
        "connected": connection is not None,
        "user": session.user,
        "address": connection.peer.address if connection is not None else None,
        # None of a session that has had no connection since the node was started.
        "version": "3.1" if connection is not None and connection.is_3_1 else VERSIONS.get(session.needs[0]),
        "persistent": session.persistent,
        "subscriptions": len(session.subscriptions),
        "inflight": len(session.inflight),
        "queued": len(session.queue),
        "number": session.number,
    }


def client(broker: Broker, node: str, name: str, most: int) -> Findings:
    """All that is known of one client."""
    session = broker.sessions.get(name.encode())
    if session is None or session.is_arriving or session.is_fenced:
        return Findings([], is_cut=False)
    connection, will = session.connection, session.will
    shown = islice(session.subscriptions.values(), SUBSCRIPTIONS_SHOWN)
    row = client_row(session, node) | {
        "expiry_s": session.expiry_s,
        "seconds": _since(broker, session),
        "keep_alive_s": connection.keep_alive_s / KEEP_ALIVE_GRACE if connection is not None else None,
        "gateway": (connection.gateway or None) if connection is not None else None,
        "will": will.topic.decode("utf-8", "replace") if will is not None else None,
        "inflight_bytes": session.inflight_bytes,
        "unreleased": len(session.received),
        "throttled": connection is not None and connection.is_throttled,
        "dropped_by_retention": session.dropped_by_retention,
        "dropped_by_full_queue": session.dropped_by_full_queue,
        "leaving_for": session.leaving[0] if session.leaving is not None else None,
        "filters": [{"filter": _text(one.topic_filter), "qos": one.qos} for one in shown],
        "in_flight": list(islice(_in_flight(session), MESSAGES_SHOWN)),
        "waiting": list(_waiting(broker, session)),
    }
    return Findings([row][:most], is_cut=False)


def _in_flight(session: Session) -> Iterator[Row]:
    for packet_id, entry in session.inflight.items():
        if entry is None:  # the client has it, and has still to say the last word of QoS 2
            yield {"packet": packet_id, "topic": None, "qos": 2, "bytes": 0}
        else:
            message, grant = entry
            row = {"topic": _text(message.topic), "qos": min(message.qos, grant.qos), "bytes": len(message.payload)}
            yield {"packet": packet_id, **row}


def _waiting(broker: Broker, session: Session) -> Iterator[Row]:
    for offset, _grant in islice(session.queue, MESSAGES_SHOWN):
        try:
            message = broker.read_back(offset)
        except JournalError:
            message = None
        if message is not None:
            waits_s = round(max(0.0, broker.wall - message.received_at), 1)
            yield {"offset": offset, "topic": _text(message.topic), "bytes": len(message.payload), "waits_s": waits_s}


def _since(broker: Broker, session: Session) -> float:
    """For how long it has been connected, or away."""
    if session.connection is not None:
        return round(max(0.0, broker.now - session.opened_at), 1)
    return round(max(0.0, broker.running_clock - session.disconnected_at), 1)


def clients(broker: Broker, node: str, part: str, most: int) -> Findings:
    """Clients with these characters in their identifier or user name."""
    found = (
        client_row(one, node)
        for one in islice(own_sessions(broker), LOOKED_AT_MAX)
        if part in one.name() or part in (one.user or "")
    )
    return _cut(found, most, total=len(broker.sessions))


def subscriptions(broker: Broker, node: str, topic_filter: str, most: int) -> Findings:
    """Subscriptions that some topic of the filter would reach; all without one."""
    wanted = levels_of(_checked(broker, topic_filter)) if topic_filter else None
    every = ((session, one) for session in own_sessions(broker) for one in session.subscriptions.values())
    found = (
        {
            "client": session.name(),
            "node": node,
            "filter": _text(one.topic_filter),
            "qos": one.qos,
            "no_local": one.no_local,
            "retain_as_published": one.retain_as_published,
            "identifier": one.identifier or None,
            "connected": session.connection is not None,
        }
        for session, one in islice(every, LOOKED_AT_MAX)
        if wanted is None or overlap(wanted, levels_of(_plain(one.topic_filter)))
    )
    return _cut(found, most, total=broker.routes.size)


def _plain(topic_filter: bytes) -> bytes:
    """Without the group of a shared subscription, and without the operators of one that computes."""
    shared = split_share(topic_filter) if topic_filter.startswith(b"$share/") else None
    if shared is not None:
        topic_filter = shared[1]
    first, _, rest = topic_filter.partition(b"/")
    return rest if first.startswith(b"$") and first[1:2].isupper() and first != b"$SYS" else topic_filter


def expressions(broker: Broker, node: str, part: str, most: int) -> Findings:
    """Subscriptions that compute, each once, with these characters in them; those that take most messages first."""
    every = broker.routes.computations.every()
    found = [one for one in every if part in _text(one.expression.text)]
    found.sort(key=lambda one: (-one.taken_in, one.expression.text))
    rows: list[Row] = []
    room = WEIGHED_BYTES_MAX
    for one in found[:most]:
        size = one.state_bytes() if room > 0 else None
        room -= size or 0
        rows.append(
            {
                "expression": _text(one.expression.text),
                "node": node,
                "subscribers": one.subscribers,
                "holder": one.holder,
                "engine": one.where,
                "messages": one.taken_in,
                "results": one.given,
                "bytes": size,
                "waiting": len(one.calls),
                "stopped": one.engine.stopped,
            }
        )
    return Findings(rows, is_cut=len(found) > most)


def retained(broker: Broker, node: str, topic_filter: str, most: int) -> Findings:
    """Retained messages of the filter's topics."""
    walked = broker.retained.walk(_checked(broker, topic_filter or "#"))
    looked_at = (message for message in islice(walked, LOOKED_AT_MAX) if message is not None)
    alive = (one for one in looked_at if one.expires_at == NEVER or one.expires_at > broker.wall)
    return _cut((_retained_row(broker, one) for one in alive), most, total=len(broker.retained))


def _retained_row(broker: Broker, message: Message) -> Row:
    payload = bytes(message.payload)
    shown = payload[:PAYLOAD_SHOWN]
    return {
        "topic": _text(message.topic),
        "qos": message.qos,
        "bytes": len(payload),
        "payload": shown.decode("utf-8", "backslashreplace"),
        "is_cut": len(shown) < len(payload),
        "age_s": round(max(0.0, broker.wall - message.received_at), 1),
        "expires_in_s": None if message.expires_at == NEVER else round(message.expires_at - broker.wall, 1),
    }


def kick(broker: Broker, node: str, name: str, most: int) -> Findings:
    """Disconnect a client.  Its session stays, its will is published, and it may come back at once."""
    session = broker.sessions.get(name.encode())
    connection = session.connection if session is not None else None
    if connection is None:
        return Findings([], is_cut=False)
    broker.report("an operator disconnects a client", client=name)
    connection.fail(Reason.ADMINISTRATIVE_ACTION, KICKED)
    return Findings([{"client": name, "node": node, "address": connection.peer.address}][:most], is_cut=False)


def trace(broker: Broker, node: str, argument: str, most: int) -> Findings:
    """The next packets of a trace, which begins with the first question for it.  ValueError if the question is none."""
    request = msgspec.json.decode(argument, type=TraceRequest)
    if request.topic is not None:
        _checked(broker, request.topic)
    return Findings(*broker.tracing.read(request, node, most))


def _checked(broker: Broker, topic_filter: str) -> bytes:
    raw = topic_filter.encode()
    if not is_topic_filter(raw, broker.limits.topic_levels, broker.limits.topic_bytes):
        raise NotAFilter(f"{topic_filter!r} is no topic filter: + and # stand alone in a level, # at the end")
    return raw


def cut_to(rows: list[Row], most: int) -> Findings:
    return Findings(rows[:most], is_cut=len(rows) > most)


def _cut(found: Iterable[Row], most: int, *, total: int) -> Findings:
    rows = list(islice(found, most + 1))
    return Findings(rows[:most], is_cut=len(rows) > most or total > LOOKED_AT_MAX)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
