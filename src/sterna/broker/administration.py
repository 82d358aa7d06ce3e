"""Changes of bans, users and access rules by operators, and the lists of them.

A change is made once, at the node that was asked, and taken in by every node: it is journalled there and counts at
once, also for clients that are connected.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from sterna.broker.access.access_register import AccessEntry, EntryKind, checked, encoded
from sterna.broker.access.authorization import AccessRule
from sterna.broker.broker import Broker
from sterna.broker.inspection import Findings, Row, cut_to
from sterna.mqtt.topics import SHARE, split_share
from sterna.vocabulary.errors import LinkProtocolError

_SET = {"ban": "banned", "user": "set the user", "rule": "set the access rule"}
_REMOVED = {"ban": "lifted the ban of", "user": "reset the user", "rule": "removed the access rule"}
_decoder = msgspec.json.Decoder(AccessEntry)


def order(broker: Broker, node: str, kind: EntryKind, name: str, value: dict[str, Any] | None) -> str:
    """The change as the question `change` takes it to all nodes.  May raise ConfigurationError."""
    entry = broker.access.register.change(kind, name, value, node=node, wall=broker.wall)
    return msgspec.json.encode(entry).decode()


def change(broker: Broker, node: str, argument: str, most: int) -> Findings:
    """Take in a change; LinkProtocolError if it is none."""
    try:
        entry = checked(_decoder.decode(argument))
    except ValueError as error:
        raise LinkProtocolError(f"not a change of access: {error}") from error
    # An operator who mistyped a name has to hear that nothing of that name was there.
    found: Row = {} if entry.value is not None else {"removed": broker.access.register.holds(entry.kind, entry.name)}
    return Findings([{"node": node, "disconnected": take(broker, [entry])} | found][:most], is_cut=False)


def take(broker: Broker, entries: Iterable[AccessEntry]) -> int:
    """Take in what is newer than what is known; how many clients were disconnected because of it."""
    news = [entry for entry in entries if broker.access.register.merge(entry)]
    if not news:
        return 0
    for entry in news:
        broker.log.access(encoded(entry))
        done = _REMOVED[entry.kind] if entry.value is None else _SET[entry.kind]
        broker.report(f"an operator {done} {entry.name}", at_node=entry.node)
    return broker.renewal.register_changed()


def bans(broker: Broker, node: str, part: str, most: int) -> Findings:
    """Bans that hold, with these characters in what they ban."""
    rows = []
    for entry in broker.access.register.entries("ban"):
        until = entry.value.get("until") if entry.value is not None else 0.0
        if part in entry.name and (until is None or until > broker.wall):
            left_s = None if until is None else round(until - broker.wall, 1)
            rows.append(_row(entry) | {"reason": (entry.value or {}).get("reason", ""), "ends_in_s": left_s})
    return cut_to(rows, most)


def users(broker: Broker, node: str, part: str, most: int) -> Findings:
    """Users that have a password here, and those that were barred while nodes ran."""
    changed = {entry.name: entry for entry in broker.access.register.entries("user") if entry.value is not None}
    names = sorted({*broker.access.authenticator.user_names, *changed})
    rows: list[Row] = []
    for name in names:
        entry = changed.get(name)
        origin: Row = {"user": name, "set_by": "file", "barred": False}
        if entry is not None and entry.value is not None:
            origin = _row(entry) | {"user": name, "set_by": "command", "barred": not entry.value["credential"]}
        if part in name:
            rows.append(origin)
    return cut_to(rows, most)


def access_rules(broker: Broker, node: str, part: str, most: int) -> Findings:
    """The rules in force, in the order in which they are read, and the default."""
    named = [entry for entry in broker.access.register.entries("rule") if entry.value is not None]
    rules = broker.access.rules
    rows = [
        {
            "number": number,
            "name": named[number - 1].name if number <= len(named) else None,
            "set_by": "command" if number <= len(named) else "file",
            **_rule(rule),
        }
        for number, rule in enumerate(rules.rules, start=1)
    ]
    rows.append({"number": len(rows) + 1, "name": None, "set_by": "default", "effect": rules.default})
    return cut_to([row for row in rows if not part or part in str(row)], most)


class AccessCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The argument of the question `check`, as JSON."""

    topic: str
    user: str | None = None
    client: str = ""
    access: Literal["publish", "subscribe"] = "publish"


def check_access(broker: Broker, node: str, argument: str, most: int) -> Findings:
    """May this user's client publish to the topic, or subscribe to the filter, and which rule says so?  ValueError if
    the question is none."""
    asked = msgspec.json.decode(argument, type=AccessCheck)
    permissions = broker.access.rules.for_identity(asked.user, asked.client)
    topic = asked.topic.encode()
    if asked.access == "subscribe" and (shared := split_share(topic) if topic.startswith(SHARE) else None):
        topic = shared[1]
    allowed = permissions.may_publish(topic) if asked.access == "publish" else permissions.may_subscribe(topic)
    reason = broker.access.rules.explain(asked.user, asked.client, topic, asked.access)
    barred = asked.user is not None and not broker.access.authenticator.may_know(asked.user)
    return Findings([{"allowed": allowed, "reason": reason, "unknown_user": barred}][:most], is_cut=False)


def _rule(rule: AccessRule) -> Row:
    client = list(rule.client_ids)
    said = {"user": list(rule.subjects), "client": client, "filters": list(rule.filters)}
    return said | {"access": rule.access, "effect": rule.effect}


def _row(entry: AccessEntry) -> Row:
    return {"name": entry.name, "since": entry.time / 1000, "at_node": entry.node}
