"""The delivery contract, checked from what the clients recorded.

By QoS of delivery = min(publication, subscription): QoS 0 may be lost and never comes twice; QoS 1 is never lost once
acknowledged; QoS 2 is never lost once acknowledged and never comes twice.  Order is kept per publisher, topic and QoS.
A message is owed if it was first sent after the SUBACK of a subscription that then stayed to the end.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import cache

from sterna.mqtt.topics import levels_of, matches, split_share
from sterna.simulation.records import Publication, ReceivedDelivery, Records, Span, Violation

OF_NODES = b"$"
"""How topics begin that nodes publish to: `$SYS`, and the results of expressions."""
WILL_S = 3.0
"""How long a node must have been well after a connection broke for its will to be owed."""

Check = Callable[[Records], Iterable[Violation]]


@cache
def topic_fits(topic_filter: bytes, topic: bytes) -> bool:
    shared = split_share(topic_filter)
    return matches(levels_of(shared[1] if shared else topic_filter), levels_of(topic))


def check_delivery(records: Records) -> list[Violation]:
    """Everything the records alone can tell."""
    checks: tuple[Check, ...] = (nothing_unknown, nothing_lost, nothing_twice, nothing_reordered, right_qos, shares)
    return [*records.broken, *(violation for check in checks for violation in check(records))]


def _live(records: Records, client: str) -> list[tuple[ReceivedDelivery, Publication]]:
    """Messages that came to a client as they were published; retained copies come whenever somebody subscribes."""
    known = records.publications
    return [
        (arrival, known[arrival.identity])
        for arrival in records.arrivals.get(client, ())
        if not arrival.retain and arrival.identity in known
    ]


def _owed(span: Span, publication: Publication) -> bool:
    """Must whoever held this subscription to the end have got it?"""
    p = publication
    return (
        p.acknowledged_at is not None
        and not p.refused
        and p.sent_at is not None
        and p.sent_at > span.since
        and p.domain == span.domain
        and span.qos > 0
        and topic_fits(span.topic_filter, p.topic)
    )


def _name(publication: Publication) -> str:
    return f"{publication.identity} (QoS {publication.qos} on {publication.topic.decode()})"


def nothing_unknown(records: Records) -> Iterable[Violation]:
    for client, arrivals in records.arrivals.items():
        for arrival in arrivals:
            if arrival.topic.startswith(OF_NODES) or arrival.identity in records.wills:
                continue
            publication = records.publications.get(arrival.identity)
            if publication is None or publication.topic != arrival.topic:
                yield Violation("unknown", f"{client} got {arrival}", (client, arrival.identity))


def nothing_lost(records: Records) -> Iterable[Violation]:
    acknowledged = [p for p in records.publications.values() if p.qos and p.acknowledged_at is not None]
    had: dict[str, set[str]] = {}
    for span in records.spans:
        if span.until is not None or not span.qos or split_share(span.topic_filter):
            continue
        if span.client not in had:
            had[span.client] = {arrival.identity for arrival, _ in _live(records, span.client)}
        for publication in acknowledged:
            if publication.identity not in had[span.client] and _owed(span, publication):
                if _was_in_flight(records, span, publication.identity, publication.qos):
                    continue
                detail = f"{_name(publication)} never came to {span.client}, subscribed to {span.topic_filter.decode()}"
                yield Violation("lost", detail, (publication.identity, span.client))


def _was_in_flight(records: Records, span: Span, identity: str, qos: int) -> bool:
    """At QoS 2, in a session that was fenced: nobody but the client knows whether it has it."""
    return min(qos, span.qos) == 2 and identity in records.in_flight.get(span.client, ())


def _too_often(records: Records, publication: Publication, qos: int, times: int) -> bool:
    if qos == 1:
        return False
    # At QoS 1 a publisher that was not answered sends again, and a broker cannot know that it is the same message.
    may_repeat = publication.qos == 1 or publication.publisher in records.went_back
    repeats = records.repeats(publication.identity)
    return times > (max(1, publication.sends) if may_repeat else 1) + repeats


def _twice(
    who: str, records: Records, found: Iterable[tuple[ReceivedDelivery, Publication]], unreleased: Iterable[str] = ()
) -> Iterable[Violation]:
    """Messages at QoS 0 are written down nowhere, so a node that crashes reads them again: that is not promised."""
    forgotten = set(unreleased)
    times: dict[tuple[str, int, int], int] = {}
    for arrival, publication in found:
        key = arrival.identity, arrival.qos, _crashes_before(records, arrival)
        times[key] = times.get(key, 0) + 1
        if _too_often(records, publication, arrival.qos, times[key]):
            if arrival.qos == 2 and arrival.identity in forgotten:
                forgotten.remove(arrival.identity)
                continue
            detail = f"{_name(publication)} came to {who} at QoS {arrival.qos} for time {times[key]}"
            yield Violation("duplicated", detail, (arrival.identity, who))


def _crashes_before(records: Records, arrival: ReceivedDelivery, said_at: str = "") -> int:
    """Of the node that sent it, and of the one where it was said, as far as they matter.

    A foreign broker that lost its session is given messages again at any QoS."""
    crashes = [at for node in {arrival.node, said_at} for at in records.crashes.get(node, ())]
    lives = sum(at <= arrival.at for at in records.forgetting.get(arrival.node, ()))
    return lives if arrival.qos else lives + sum(at <= arrival.at for at in crashes)


def nothing_twice(records: Records) -> Iterable[Violation]:
    """But for what a client had and forgot when it got a new session, and then goes back to the old one."""
    for client, arrivals in records.arrivals.items():
        forgotten = records.unreleased.get(client, set())
        yield from _twice(client, records, _live(records, client), forgotten)
        wills: dict[tuple[str, int], int] = {}
        for arrival in arrivals:
            if arrival.identity in records.wills and not arrival.retain:
                # At QoS 0 it does not wait for the note that it has been said, which a crash may take along.
                said_at = records.wills[arrival.identity].node
                key = arrival.identity, _crashes_before(records, arrival, said_at)
                wills[key] = wills.get(key, 0) + 1
                allowed = 1 + records.repeats(arrival.identity)
                if wills[key] > allowed + (arrival.qos == 2 and arrival.identity in forgotten) and arrival.qos != 1:
                    detail = f"the will {arrival.identity} came to {client} twice"
                    yield Violation("duplicated", detail, (arrival.identity, client))


def nothing_reordered(records: Records) -> Iterable[Violation]:
    """First arrivals: at QoS 1 what is repeated may repeat in between.

    A publisher that moves has its messages read from two nodes, in order nevertheless, and so has one whose gateway
    sends them to another node.  With a new session it counts as another publisher; from then on it may go back to the
    old one, whose node has not heard of the new one, with each connection.  A subscriber behind a gateway likewise.

    Four kinds of messages come at any place, each known by its identity: those that an old session handed over to the
    new one in its place, those that a node of the client had waited for in vain, those that a gateway had under way
    when their publisher changed its session, and those of which the client can only have got a repetition.
    """
    for client in records.arrivals:
        spans = [span for span in records.spans if span.client == client]
        # A share is worked off by several, and hands on what one of them has not finished.
        shared = [share[1] for span in spans if (share := split_share(span.topic_filter))]
        late = records.handed_over.get(client, set()) | records.overtaken.get(client, set())
        newest: dict[tuple[str, int, int, bytes, int, int], Publication] = {}
        seen: set[str] = set()
        for arrival, publication in _live(records, client):
            if arrival.identity in seen:
                continue
            seen.add(arrival.identity)
            if arrival.identity in late or _was_under_way(records, publication):
                continue
            if any(topic_fits(topic_filter, publication.topic) for topic_filter in shared):
                continue
            if _is_repeat(records, spans, arrival, publication):
                continue
            session = _session_of(records, publication.publisher, publication.sent_at or 0.0)
            reading = _session_of(records, client, arrival.at) if client in records.wandering else 0
            key = publication.publisher, session, reading, publication.topic, publication.qos, arrival.qos
            before = newest.setdefault(key, publication)
            if publication.number > before.number:
                newest[key] = publication
            elif publication is not before:
                detail = f"{_name(publication)} came to {client} after number {before.number}"
                yield Violation("reordered", detail, (arrival.identity, before.identity, client))


def _session_of(records: Records, publisher: str, at: float) -> int:
    """A number that grows when its session at that time may be another one than before."""
    new = records.new_sessions.get(publisher, [])
    since = [instant for instant in records.connected.get(publisher, ()) if new and instant > new[0]]
    return bisect_right(sorted([*new, *since]), at)


def _was_under_way(records: Records, publication: Publication) -> bool:
    """Sent and not answered when its publisher's session became another one: a gateway sends it again there."""
    publisher, sent_at = publication.publisher, publication.sent_at
    if publisher not in records.wandering or sent_at is None:
        return False
    answered_at = math.inf if publication.acknowledged_at is None else publication.acknowledged_at
    return _session_of(records, publisher, sent_at) != _session_of(records, publisher, answered_at)


def _is_repeat(records: Records, spans: list[Span], arrival: ReceivedDelivery, publication: Publication) -> bool:
    """It was sent more than once, and its first copy is not owed to the client: that was sent before the client
    subscribed, or is one at QoS 0, which may be lost."""
    is_repeated = records.repeats(publication.identity) or (publication.qos == 1 and publication.sends > 1)
    if not is_repeated or publication.sent_at is None:
        return False
    held = [
        span.since
        for span in spans
        if (span.until is None or span.until >= arrival.at) and topic_fits(span.topic_filter, arrival.topic)
    ]
    return arrival.qos == 0 or all(since > publication.sent_at for since in held)


def right_qos(records: Records) -> Iterable[Violation]:
    spans: dict[str, list[Span]] = {}
    for span in records.spans:
        spans.setdefault(span.client, []).append(span)
    for client, held in spans.items():
        for arrival, publication in _live(records, client):
            granted = [span.qos for span in held if topic_fits(span.topic_filter, arrival.topic)]
            if granted and arrival.qos > min(publication.qos, max(granted)):
                detail = f"{_name(publication)} came to {client} at QoS {arrival.qos}, granted {max(granted)}"
                yield Violation("QoS", detail, (arrival.identity, client))


def shares(records: Records) -> Iterable[Violation]:
    """Messages that a share is owed must come to one of its members, and at QoS 0 and 2 to one only.

    A message that was in flight to a member at QoS 2 when its session was fenced is for no other member [MQTT-4.8.2-5].
    """
    groups: dict[tuple[str, bytes], list[Span]] = {}
    for span in records.spans:
        if split_share(span.topic_filter):
            groups.setdefault((span.domain, span.topic_filter), []).append(span)
    for (_, topic_filter), spans in groups.items():
        members = list(dict.fromkeys(span.client for span in spans))
        came = [pair for member in members for pair in _live(records, member)]
        yield from _twice(f"the share {topic_filter.decode()}", records, came)
        had = {arrival.identity for arrival, _ in came}
        lasting = [span for span in spans if span.until is None]
        if not lasting:
            continue
        first = min(lasting, key=lambda span: span.since)
        in_flight = {identity for member in members for identity in records.in_flight.get(member, ())}
        for publication in records.publications.values():
            if publication.qos and publication.identity not in had and _owed(first, publication):
                if min(publication.qos, first.qos) == 2 and publication.identity in in_flight:
                    continue
                detail = f"{_name(publication)} never came to any of {', '.join(members)} ({topic_filter.decode()})"
                yield Violation("share lost", detail, (publication.identity, *members))


def retained_values(records: Records, auditors: Iterable[tuple[str, str]]) -> Iterable[Violation]:
    """Each auditor (client, domain) has just subscribed to everything: it must have the last retained values.

    Each retained topic has one publisher and one QoS above 0, so the value may be the last acknowledged one or one
    that was sent later.  One that went back to its old session counts as a publisher at each node, between which clocks
    decide: the value may be the last one at any of them.
    """
    retained: dict[tuple[str, bytes], list[Publication]] = {}
    for publication in records.publications.values():
        if publication.retain and publication.acknowledged_at is not None and not publication.refused:
            retained.setdefault((publication.domain, publication.topic), []).append(publication)
    for auditor, domain in auditors:
        found = {a.topic: a.identity for a in records.arrivals.get(auditor, ()) if a.retain}
        for (where, topic), acknowledged in retained.items():
            if where != domain:
                continue
            value, last = records.publications.get(found.get(topic, "")), acknowledged[-1]
            later = [p for p in acknowledged if value is None or p.number > value.number]
            nodes = value.nodes if value is not None and last.publisher in records.went_back else ()
            if later and not any(all(p.nodes != {node} for p in later) for node in nodes):
                got = "nothing" if value is None else value.identity
                detail = f"{topic.decode()}: {auditor} found {got}, {_name(last)} was acknowledged"
                yield Violation("retained", detail, (last.identity, auditor))


def wills_published(records: Records, unwell: dict[str, list[float]]) -> Iterable[Violation]:
    """A connection that broke where the node could see it has its will published; `unwell` says when nodes were not."""
    for will in records.wills.values():
        if will.aborted_at is None or will.welcomed_at is None or not will.qos:
            continue
        if any(will.welcomed_at <= instant <= will.aborted_at + WILL_S for instant in unwell[will.node]):
            continue
        for span in records.spans:
            if (
                span.until is None
                and span.qos
                and span.domain == will.domain
                and span.since < will.aborted_at
                and topic_fits(span.topic_filter, will.topic)
                and not split_share(span.topic_filter)
                and not _was_in_flight(records, span, will.identity, will.qos)
                and all(arrival.identity != will.identity for arrival in records.arrivals.get(span.client, ()))
            ):
                detail = f"the will {will.identity} never came to {span.client}"
                yield Violation("will", detail, (will.identity, will.client, span.client))
