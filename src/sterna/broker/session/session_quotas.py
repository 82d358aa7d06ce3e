"""Quotas over all sessions of a node: the bytes of their wills, and the number of sessions of each user.

A session reports every change of its user and its will here, so that limits are checked in constant time.
"""

from __future__ import annotations

from sterna.broker.limits import Limits
from sterna.mqtt.packets import Will
from sterna.vocabulary.allowance import Allowance


def will_size(will: Will | None) -> int:
    return 0 if will is None else len(will.topic) + len(will.payload) + len(will.forwarded)


class SessionQuotas:
    __slots__ = ("_of_user", "wills")

    def __init__(self, limits: Limits) -> None:
        #: Bytes of the wills of all sessions.
        self.wills = Allowance(limits.will_bytes)
        #: User (None: anonymous) -> sessions.
        self._of_user: dict[str | None, int] = {}

    def sessions_of(self, user: str | None) -> int:
        return self._of_user.get(user, 0)

    def gained(self, user: str | None) -> None:
        self._of_user[user] = self._of_user.get(user, 0) + 1

    def lost(self, user: str | None) -> None:
        left = self._of_user[user] - 1
        if left:
            self._of_user[user] = left
        else:
            del self._of_user[user]
