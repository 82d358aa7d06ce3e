"""The authenticator and the access rules in force.  Both can be replaced while clients are connected."""

from __future__ import annotations

from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import AccessList


class AccessControl:
    __slots__ = ("authenticator", "rules")

    def __init__(self, authenticator: Authenticator, rules: AccessList) -> None:
        self.authenticator = authenticator
        self.rules = rules

    def may_come(self, user: str | None, client_id: str) -> bool:
        """Might a client that another node has let in as this user be let in here?  A password is known only to it."""
        return self.authenticator.may_know(user) and self.rules.may_be_called(user, client_id)
