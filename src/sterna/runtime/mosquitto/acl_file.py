"""A Mosquitto ACL file as access rules.

Mosquitto asks in this order: prohibitions of the user, permissions of the user, prohibitions by pattern, permissions by
pattern; what none of them allows is forbidden.  Lines before the first `user` are for clients without a name, patterns
for everybody.  The rules come in that order, and the first that fits decides, so the answers are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sterna.broker.access.authorization import ANONYMOUS, EVERYBODY, AccessRule
from sterna.broker.access.identity import is_user_name
from sterna.runtime.mosquitto.conf_lines import ConfLine, Untranslated
from sterna.vocabulary.errors import ConfigurationError

ACCESS = {"read": "subscribe", "write": "publish", "readwrite": "both"}
DENY = "deny"
_Key = tuple[str, str]
"""Whom it is for, and the access it gives or DENY."""


@dataclass(slots=True)
class AclTranslation:
    users_are_known: bool
    """Something proves user names, so that rules for users can fit."""
    untranslated: list[Untranslated] = field(default_factory=list)
    _of_users: dict[_Key, list[str]] = field(default_factory=dict)
    _of_patterns: dict[_Key, list[str]] = field(default_factory=dict)

    def take(self, lines: Iterable[ConfLine]) -> None:
        user: str | None = ANONYMOUS
        for line in lines:
            if line.key == "user":
                user = self._user(line)
            elif line.key not in ("topic", "pattern"):
                self._refuse(line, "it is no line of an ACL file", "write user, topic or pattern")
            elif user is None and line.key == "topic":
                self._refuse(line, "it is for a user that a node cannot have", "see the user line above it")
            else:
                self._rule(line, user or "")

    @property
    def rules(self) -> list[dict[str, Any]]:
        """The tables of `[[authorization.rule]]`."""
        found = []
        for table in self._of_users, self._of_patterns:
            # Sorting is stable: prohibitions first, otherwise as they stood in the file.
            for (subject, access), filters in sorted(table.items(), key=lambda item: item[0][1] != DENY):
                rule: dict[str, Any] = {"user": [subject], "filters": filters}
                rule |= {"effect": DENY} if access == DENY else {"access": access}
                found.append(rule)
        return found

    def _user(self, line: ConfLine) -> str | None:
        if not is_user_name(line.value):
            self._refuse(line, "the name means something else to a node", "rename the user")
            return None
        if not self.users_are_known:
            self._refuse(line, "nothing proves the names of users here", "add a password_file, then import again")
            return None
        return line.value

    def _rule(self, line: ConfLine, user: str) -> None:
        access, topic = _access_and_topic(line.value)
        if access is None:
            self._refuse(line, "the access is unknown", "write read, write, readwrite or deny before the topic")
            return
        try:
            AccessRule((EVERYBODY,), (topic,))
        except ConfigurationError as error:
            self._refuse(line, str(error), "correct the topic")
            return
        if line.key == "topic" and ("%c" in topic or "%u" in topic):
            self._refuse(line, "a node would put the client's name in place of %c and %u", "rename the topic")
            return
        table, subject = (self._of_patterns, EVERYBODY) if line.key == "pattern" else (self._of_users, user)
        table.setdefault((subject, access), []).append(topic)

    def _refuse(self, line: ConfLine, reason: str, remedy: str) -> None:
        self.untranslated.append(Untranslated(line, reason, remedy))


def _access_and_topic(value: str) -> tuple[str | None, str]:
    """With one word it is a topic for both; with more, the first is the access and the topic may have spaces."""
    first, *rest = value.split(None, 1)
    if not rest:
        return "both", first
    return (DENY if first == DENY else ACCESS.get(first)), rest[0]
