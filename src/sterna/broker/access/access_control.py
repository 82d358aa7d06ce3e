"""The authenticator and the access rules in force.  Both can be replaced while clients are connected."""

from __future__ import annotations

from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import AccessList


class AccessControl:
    __slots__ = ("authenticator", "rules")

    def __init__(self, authenticator: Authenticator, rules: AccessList) -> None:
        self.authenticator = authenticator
        self.rules = rules
