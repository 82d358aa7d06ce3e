"""Authentication: finds out which user a client is.

The first of these that applies decides; a bad token is not tried as a password.

1. A verified client certificate, where certificates are configured: its common name is the user.
2. A password that looks like a JSON Web Token, where tokens are configured: its `sub` is the user.
3. A program of the operator's own, where a hook is configured; it may leave the client to the next ones.
4. User name and password, where a password file is configured.
5. Neither name nor password, where the listener takes anonymous clients; or any, if nothing is configured that could
   check them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sterna.broker.access.identity import (
    ANONYMOUSLY,
    BAD_CREDENTIALS,
    BY_CERTIFICATE,
    BY_HOOK,
    BY_PASSWORD,
    BY_TOKEN,
    Accepted,
    Challenge,
    Credentials,
    Refused,
    is_user_name,
)
from sterna.mqtt.reasons import Reason

if TYPE_CHECKING:
    # The libraries behind these take tens of milliseconds to load: only a node that is configured with them pays.
    from sterna.broker.access.passwords import PasswordFile
    from sterna.broker.access.scram import Exchange
    from sterna.broker.access.tokens import TokenVerifier

__all__ = ["Accepted", "Authenticator", "Challenge", "Credentials", "Refused"]

ANONYMOUS_REFUSED = Refused(Reason.NOT_AUTHORIZED, "no credentials given, and anonymous clients are not allowed here")


class Authenticator:
    """Every way into the node, in order.  To change passwords or keys while it runs, build another one."""

    def __init__(
        self,
        *,
        passwords: PasswordFile | None = None,
        tokens: TokenVerifier | None = None,
        certificates: bool = False,
        nonce: Callable[[], str] | None = None,
        barred: frozenset[str] = frozenset(),
        asks_hook: bool = False,
    ) -> None:
        """`nonce` makes unguessable printable text (`secrets.token_urlsafe`); without it there is no SCRAM.  `barred`
        users do not come in, whichever way they show who they are.  `asks_hook`: the world asks a program about clients
        that neither a certificate nor a token shows."""
        self._passwords = passwords
        self._tokens = tokens
        self._certificates = certificates
        self._nonce = nonce
        self._barred = barred
        self.asks_hook = asks_hook

    def with_users(self, users: Mapping[str, str]) -> Authenticator:
        """The same ways in, with other passwords for these users: name -> credential; an empty one bars the user."""
        if not users:
            return self
        passwords = self._passwords
        if passwords is not None or any(users.values()):
            from sterna.broker.access.passwords import PasswordFile

            passwords = (passwords or PasswordFile({}, b"")).changed(users)
        return Authenticator(
            passwords=passwords,
            tokens=self._tokens,
            certificates=self._certificates,
            nonce=self._nonce,
            barred=frozenset(name for name, credential in users.items() if not credential),
            asks_hook=self.asks_hook,
        )

    def needs_worker(self, credentials: Credentials, *, now: float) -> bool:
        """Whether `verify` with the same `now` would take tens of milliseconds, so must not run on the event loop."""
        passwords, user, password = self._passwords, credentials.username, credentials.password
        if self.is_for_hook(credentials):
            return True
        if passwords is None or user is None or password is None:
            return False
        if self._has_certificate(credentials) or self._has_token(password):
            return False
        return not passwords.remembers(user, password, now=now)

    def is_for_hook(self, credentials: Credentials) -> bool:
        """Whether the hook is to be asked about this client."""
        if not self.asks_hook or self._has_certificate(credentials):
            return False
        return credentials.password is None or not self._has_token(credentials.password)

    def verify(self, credentials: Credentials, *, now: float) -> Accepted | Refused:
        """`now` is wall-clock time in seconds."""
        user, password = credentials.username, credentials.password
        if user in self._barred:
            return BAD_CREDENTIALS
        if self._has_certificate(credentials):
            return _verify_certificate(credentials)
        if password is not None and self._tokens is not None and self._has_token(password):
            token = self._tokens.verify(password, now=now)
            if token is None or user not in (None, token.user):
                return BAD_CREDENTIALS
            return Accepted(token.user, expires_at=token.expires_at, way=BY_TOKEN, evidence=self._tokens.evidence)
        if user is None and password is None:
            return Accepted(None, way=ANONYMOUSLY) if credentials.anonymous_allowed else ANONYMOUS_REFUSED
        if self._passwords is None and self._tokens is None and credentials.anonymous_allowed:
            return Accepted(None)  # a name nobody can check on an open listener: as good as none
        if self._passwords is None or user is None or password is None:
            return BAD_CREDENTIALS
        if not self._passwords.verify(user, password, now=now):
            return BAD_CREDENTIALS
        return Accepted(user, way=BY_PASSWORD, evidence=self._passwords.evidence(user))

    def still_accepts(self, accepted: Accepted, *, anonymous_allowed: bool) -> bool:
        """Whether a client that was accepted, perhaps by an authenticator before this one, is to stay: its password
        entry, or the keys its token was checked by, are the same as then."""
        if accepted.user in self._barred:
            return False
        if accepted.way == BY_PASSWORD:
            user = accepted.user
            return (
                self._passwords is not None
                and user is not None
                and (self._passwords.evidence(user) == accepted.evidence)
            )
        if accepted.way == BY_TOKEN:
            return self._tokens is not None and self._tokens.evidence == accepted.evidence
        if accepted.way == BY_CERTIFICATE:
            return self._certificates
        if accepted.way == BY_HOOK:
            return self.asks_hook
        return anonymous_allowed

    def is_like(self, other: Authenticator) -> bool:
        """Whether the other one accepts the same clients, so that what it remembers may be kept."""
        mine, others = self._passwords, other._passwords
        return (
            (mine.key if mine else None) == (others.key if others else None)
            and (self._tokens.evidence if self._tokens else None) == (other._tokens.evidence if other._tokens else None)
            and self._certificates == other._certificates
            and self._barred == other._barred
            and self.asks_hook == other.asks_hook
        )

    def may_know(self, user: str | None) -> bool:
        """Whether somebody may be accepted as this user: of tokens and certificates nobody can tell beforehand."""
        if user in self._barred:
            return False
        if user is None or self._tokens is not None or self._certificates or self.asks_hook:
            return True
        return self._passwords is not None and user in self._passwords

    @property
    def user_names(self) -> list[str]:
        """Those that have a password here."""
        return self._passwords.names if self._passwords is not None else []

    @property
    def users(self) -> int | None:
        """How many the password file has; None if there is none."""
        return len(self._passwords) if self._passwords is not None else None

    def presumed(self, credentials: Credentials) -> Accepted | Refused:
        """Whom an enhanced authentication has to prove: the certificate's user, else whom the CONNECT names, if any."""
        if self._has_certificate(credentials):
            return _verify_certificate(credentials)
        return Accepted(credentials.username)

    def begin_exchange(self, method: str, *, expected_user: str | None = None) -> Exchange | None:
        """Start an enhanced authentication; None if the method is not offered (answer 0x8C).

        `expected_user` is the only user who may then succeed: the one `presumed`, or, when a connected client
        authenticates again, the user it already is.
        """
        if self._nonce is None or self._passwords is None or not self._passwords.offers(method):
            return None
        return self._passwords.begin_exchange(method, self._nonce(), expected_user)

    def _has_certificate(self, credentials: Credentials) -> bool:
        return self._certificates and bool(credentials.certificate_name)

    def _has_token(self, password: bytes) -> bool:
        return self._tokens is not None and self._tokens.recognises(password)


def _verify_certificate(credentials: Credentials) -> Accepted | Refused:
    name = credentials.certificate_name
    if name is None or not is_user_name(name) or credentials.username not in (None, name):
        return BAD_CREDENTIALS
    return Accepted(name, way=BY_CERTIFICATE)
