"""SCRAM (RFC 5802, RFC 7677), the server's side: proof of a password that never crosses the wire.

The node keeps a `ScramCredential` per user, from which the password cannot be used elsewhere, and an `Exchange` walks
one client through the two steps.  A stranger gets the same challenge as a user does and fails at the same point.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from scramp import ScramException, ScramMechanism

from sterna.broker.access.identity import BAD_CREDENTIALS, BY_PASSWORD, Accepted, Challenge, Refused

METHODS = ("SCRAM-SHA-256", "SCRAM-SHA-512")

MESSAGE_BYTES_MAX = 1024
"""Longest client message looked at: names are normalised character by character, on the event loop."""

SALT_BYTES = 16

ITERATIONS = 20_000
"""PBKDF2 rounds of new credentials.  Each client pays them per connection, a thief of the file per guess; RFC 7677
asks for 4096 at least."""

_ITERATIONS_MIN, _ITERATIONS_MAX, _SALT_BYTES_MIN = 4096, 10_000_000, 12


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The keys that the server keeps of a password.  Written `$scram-sha-256$iterations$salt$stored-key$server-key`."""

    method: str
    iterations: int
    salt: bytes
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def derive(cls, method: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> ScramCredential:
        """ValueError if the method, the iterations or a character of the password is not one SCRAM can use."""
        try:
            _, stored_key, server_key, _ = ScramMechanism(method).make_auth_info(password, iterations, salt)
        except ScramException as error:
            raise ValueError(f"{method}: {error}") from None
        return cls(method, iterations, salt, stored_key, server_key)

    @classmethod
    def parse(cls, text: str) -> ScramCredential:
        """Read what `str()` wrote; ValueError says what is wrong, without repeating the secret."""
        fields = text.split("$")
        if len(fields) != 6 or fields[0] or fields[1].upper() not in METHODS:
            raise ValueError("not of the form $scram-sha-256$iterations$salt$stored-key$server-key")
        method = fields[1].upper()
        try:
            iterations = int(fields[2])
            salt, stored_key, server_key = (base64.b64decode(part, validate=True) for part in fields[3:])
        except (binascii.Error, ValueError):
            raise ValueError("iterations must be a number, and salt and keys base64") from None
        key_bytes = hashlib.new(_hash_name(method)).digest_size
        if not _ITERATIONS_MIN <= iterations <= _ITERATIONS_MAX or len(salt) < _SALT_BYTES_MIN:
            raise ValueError(f"needs at least {_ITERATIONS_MIN} iterations and {_SALT_BYTES_MIN} bytes of salt")
        if len(stored_key) != key_bytes or len(server_key) != key_bytes:
            raise ValueError(f"both keys must have {key_bytes} bytes")
        return cls(method, iterations, salt, stored_key, server_key)

    def __str__(self) -> str:
        parts = (base64.b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key))
        return f"${self.method.lower()}${self.iterations}${'$'.join(parts)}"

    def decoy(self, name: str, key: bytes) -> ScramCredential:
        """A credential for a name without one: always the same for that name, and no password fits it."""
        salt, stored_key, server_key = (
            hashlib.blake2b(name.encode(), key=key, digest_size=len(part), person=purpose).digest()
            for part, purpose in ((self.salt, b"salt"), (self.stored_key, b"stored"), (self.server_key, b"server"))
        )
        return ScramCredential(self.method, self.iterations, salt, stored_key, server_key)


Lookup = Callable[[str], tuple[ScramCredential, bool]]
"""A user's credential and whether it is real; a decoy and False for everybody else."""


class Exchange:
    """One client proving its password.  Give `step` the authentication data of CONNECT, then that of AUTH."""

    def __init__(
        self,
        method: str,
        lookup: Lookup,
        nonce: str,
        expected_user: str | None = None,
        evidence: Callable[[str], str] = lambda _user: "",
    ) -> None:
        self._lookup = lookup
        self._evidence = evidence
        self._server = ScramMechanism(method).make_server(self._credential_of, s_nonce=nonce)
        self._steps = [self._first, self._final]
        self._expected_user = expected_user
        self._user = ""
        self._genuine = False

    def step(self, data: bytes) -> Challenge | Accepted | Refused:
        if not self._steps or len(data) > MESSAGE_BYTES_MAX:
            return self._refuse()
        try:
            return self._steps.pop(0)(data.decode())
        except (ScramException, UnicodeDecodeError):
            return self._refuse()

    def _first(self, message: str) -> Challenge:
        self._server.set_client_first(message)
        return Challenge(self._server.get_server_first().encode())

    def _final(self, message: str) -> Accepted | Refused:
        self._server.set_client_final(message)
        if not self._genuine:
            return self._refuse()
        said = self._server.get_server_final().encode()
        return Accepted(self._user, data=said, way=BY_PASSWORD, evidence=self._evidence(self._user))

    def _refuse(self) -> Refused:
        self._steps.clear()
        return BAD_CREDENTIALS

    def _credential_of(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        credential, self._genuine = self._lookup(user)
        self._user = user
        # Refused only after the proof, so that nobody learns which name the session belongs to.
        self._genuine = self._genuine and self._expected_user in (None, user)
        return credential.salt, credential.stored_key, credential.server_key, credential.iterations


def _hash_name(method: str) -> str:
    return method.removeprefix("SCRAM-").replace("-", "").lower()
