"""The authenticator, the access rules and the bans in force.  All can be replaced while clients are connected."""

from __future__ import annotations

from collections.abc import Sequence

from sterna.broker.access.access_register import AccessRegister
from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import EVERYBODY, AccessList, AccessRule, Permissions

_READ_ALL = (AccessRule((EVERYBODY,), ("#",), "subscribe"),)


class AccessControl:
    __slots__ = ("_users", "authenticator", "configured", "register", "rules")

    def __init__(self, authenticator: Authenticator, rules: AccessList, register: AccessRegister | None = None) -> None:
        #: Those of the configuration, on which the register builds.
        self.configured = (authenticator, rules)
        self.register = AccessRegister() if register is None else register
        self.authenticator = authenticator
        self.rules = rules
        self._users: dict[str, str] = {}
        self.renew()

    def configure(self, authenticator: Authenticator, rules: AccessList) -> None:
        """The configuration was read again."""
        is_new = authenticator is not self.configured[0]
        self.configured = (authenticator, rules)
        self.renew(is_new=is_new)

    def renew(self, *, is_new: bool = False) -> None:
        """The register has changed."""
        authenticator, rules = self.configured
        users = self.register.users()
        if is_new or users != self._users:
            self._users = users
            self.authenticator = authenticator.with_users(users)
        self.rules = rules.preceded_by(self.register.rules())

    def permissions(self, user: str | None, client_id: str, granted: Sequence[AccessRule] | None) -> Permissions:
        """The rights of a client; `granted` are rules that a hook gave it (None: it is away, and will be asked about
        again before it gets anything, so that everything is kept for it)."""
        if granted is None:
            granted = _READ_ALL if self.authenticator.asks_hook else ()
        if not granted:
            return self.rules.for_identity(user, client_id)
        rules = self.configured[1].preceded_by([*self.register.rules(), *granted])
        return rules.for_identity(user, client_id)

    def may_come(self, user: str | None, client_id: str) -> bool:
        """Might a client that another node has let in as this user be let in here?  A password is known only to it."""
        return self.authenticator.may_know(user) and self.rules.may_be_called(user, client_id)
