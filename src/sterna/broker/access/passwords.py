"""The password file: who may come in with a password, and how that is checked at the same cost for everybody.

One user per line, `name:credential` or `name:credential:credential`; empty lines and lines that start with `#` do not
count.  A credential is either

    $argon2id$v=19$m=65536,t=3,p=4$salt$hash              for the user name and password of a CONNECT
    $scram-sha-256$iterations$salt$stored-key$server-key  for enhanced authentication, also with sha-512
    $7$iterations$salt$hash and $6$salt$hash              as `mosquitto_passwd` makes them: taken, never made

each kind at most once per user.  SCRAM is optional and worth leaving out where no client uses it: whoever steals
the file guesses passwords against PBKDF2 much faster than against argon2.  The same goes for Mosquitto's hashes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import argon2
from argon2.exceptions import InvalidHashError, VerificationError

from sterna.broker.access import mosquitto_hashes
from sterna.broker.access.identity import is_user_name
from sterna.broker.access.scram import ITERATIONS, METHODS, SALT_BYTES, Exchange, ScramCredential
from sterna.vocabulary.errors import ConfigurationError

REMEMBERED_S = 300.0
"""How long a proven password is taken without a new argon2 run (tens of milliseconds, 64 MiB).  Longer makes reconnect
storms cheaper; memory holds a keyed hash of the password for that time.  A changed file takes effect at once."""

RECOMMENDED = argon2.PasswordHasher()
"""argon2id at the low-memory setting of RFC 9106."""


@dataclass(frozen=True, slots=True)
class _User:
    hashed: str | None = field(default=None, repr=False)
    """For the password of a CONNECT: argon2id, or one of Mosquitto's."""
    scram: Mapping[str, ScramCredential] = field(default_factory=dict)


class PasswordFile:
    """The users of one password file.  Replace the whole object when the file changes.

    `verify` may run on a worker thread while the event loop asks `remembers`: the only thing that changes is a
    dictionary with at most one entry per user of the file.
    """

    def __init__(self, users: Mapping[str, _User], key: bytes) -> None:
        """`key` is a secret, the same for the same contents and for no others."""
        self._users = users
        self.key = key
        self._decoy = _decoy_hash(users, key)
        self._proven: dict[str, tuple[bytes, float]] = {}
        #: A model credential of each method for the decoys: the first user's in this file.
        self._scram_models: dict[str, ScramCredential] = {}
        for user in users.values():
            for method, credential in user.scram.items():
                self._scram_models.setdefault(method, credential)

    @classmethod
    def parse(cls, text: str, source_name: str) -> PasswordFile:
        users: dict[str, _User] = {}
        for number, untrimmed in enumerate(text.splitlines(), start=1):
            line = untrimmed.strip()
            if not line or line.startswith("#"):
                continue
            try:
                name, user = _parse_line(line)
                if name in users:
                    raise ValueError(f"user {name!r} appears a second time; keep one of the lines")
            except ValueError as error:
                raise ConfigurationError(f"{source_name}, line {number}: {error}") from None
            users[name] = user
        # The salts in the file make this a secret, and the same one after a restart, so that decoys do not change.
        return cls(users, hashlib.blake2b(text.encode(), person=b"passwords").digest())

    def changed(self, users: Mapping[str, str]) -> PasswordFile:
        """This file with other users in it: name -> credentials; empty ones take the user out."""
        text = "\n".join(f"{name}:{credentials}" for name, credentials in sorted(users.items()))
        kept = {name: user for name, user in self._users.items() if name not in users}
        for name, credentials in users.items():
            if credentials:
                kept[name] = _parse_line(f"{name}:{credentials}")[1]
        return PasswordFile(kept, hashlib.blake2b(self.key + text.encode(), person=b"passwords").digest())

    def __contains__(self, user: object) -> bool:
        return user in self._users

    @property
    def names(self) -> list[str]:
        return sorted(self._users)

    def __len__(self) -> int:
        return len(self._users)

    def verify(self, user: str, password: bytes, *, now: float) -> bool:
        """Whether this is the user's password.  Slow, on purpose, unless `remembers` says otherwise."""
        if self.remembers(user, password, now=now):
            return True
        known = self._users.get(user)
        hashed = known.hashed if known else None
        # Somebody unknown costs as much as a wrong password: the same work on a hash that nothing fits.
        fits = _verify(hashed or self._decoy, password)
        if hashed is None or not fits:
            return False
        self._proven[user] = (self._digest(password), now + REMEMBERED_S)
        return True

    def remembers(self, user: str, password: bytes, *, now: float) -> bool:
        """Whether this very password was proven not long ago."""
        digest, until = self._proven.get(user, (b"", 0.0))
        return now < until and hmac.compare_digest(digest, self._digest(password))

    def offers(self, method: str) -> bool:
        """Whether any user can authenticate with this SCRAM method."""
        return method in self._scram_models

    def begin_exchange(self, method: str, nonce: str, expected_user: str | None = None) -> Exchange:
        """Let one client prove its password with a method that is on offer."""
        model = self._scram_models[method]

        def lookup(name: str) -> tuple[ScramCredential, bool]:
            user = self._users.get(name)
            credential = user.scram.get(method) if user else None
            return (credential, True) if credential else (model.decoy(name, self.key), False)

        return Exchange(method, lookup, nonce, expected_user, self.evidence)

    def evidence(self, user: str) -> str:
        """Tells a user's entry from any other entry; empty if there is none."""
        known = self._users.get(user)
        if known is None:
            return ""
        entry = [known.hashed or "", *sorted(map(str, known.scram.values()))]
        return hashlib.blake2b(":".join(entry).encode(), person=b"entry", digest_size=16).hexdigest()

    def _digest(self, password: bytes) -> bytes:
        return hashlib.blake2b(password, key=self.key, digest_size=32).digest()


def hash_password(
    user: str,
    password: str,
    *,
    random_bytes: Callable[[int], bytes],
    scram_methods: Sequence[str] = (),
    scram_iterations: int = ITERATIONS,
    hasher: argon2.PasswordHasher = RECOMMENDED,
) -> str:
    """The line of the password file for this user; `random_bytes` is `secrets.token_bytes` or as good."""
    _check_name(user)
    if not password:
        raise ValueError("the password is empty; choose one")
    credentials = [hasher.hash(password, salt=random_bytes(hasher.salt_len))]
    for method in scram_methods:
        salt = random_bytes(SALT_BYTES)
        credentials.append(str(ScramCredential.derive(method, password, salt, scram_iterations)))
    return ":".join([user, *credentials])


def check_credentials(user: str, credentials: str) -> None:
    """ConfigurationError if this is not what `hash_password` makes for the user, behind its name."""
    try:
        _parse_line(f"{user}:{credentials}")
    except ValueError as error:
        raise ConfigurationError(f"user {user!r}: {error}") from None


def _verify(encoded: str, password: bytes) -> bool:
    verify = mosquitto_hashes.verify if mosquitto_hashes.is_hash(encoded) else _verify_argon2
    return verify(encoded, password)


def _verify_argon2(encoded: str, password: bytes) -> bool:
    try:
        return RECOMMENDED.verify(encoded, password)
    except VerificationError:
        return False


def _parse_line(line: str) -> tuple[str, _User]:
    name, *credentials = line.split(":")
    if not credentials:
        raise ValueError("no `:` found; write name:credential, as `sterna passwd` prints it")
    _check_name(name)
    by_kind: dict[str, str] = {}
    for text in credentials:
        kind = text.split("$")[1] if text.startswith("$") else ""
        if kind in mosquitto_hashes.KINDS:
            mosquitto_hashes.check(text)
            kind = "argon2id"  # in its place: one of them checks the password of a CONNECT
        elif kind == "argon2id":
            _check_argon2(text)
        elif kind.upper() not in METHODS:
            raise ValueError("a credential must start with $argon2id$, $scram-sha-256$, $scram-sha-512$, $7$ or $6$")
        if kind in by_kind:
            raise ValueError(f"two {kind} credentials for one user; keep one")
        by_kind[kind] = text
    hashed = by_kind.pop("argon2id", None)
    return name, _User(hashed, {kind.upper(): ScramCredential.parse(text) for kind, text in by_kind.items()})


def _check_name(name: str) -> None:
    if not is_user_name(name) or ":" in name or name.startswith("#") or name != name.strip():
        raise ValueError(
            f"user name {name!r} cannot be used: it must be printable, without `:`, no `#` or space at its ends, "
            "and not `*` or `anonymous`"
        )


def _check_argon2(text: str) -> None:
    try:
        parameters = argon2.extract_parameters(text)
        for part in text.split("$")[-2:]:
            base64.b64decode(part + "=" * (-len(part) % 4), validate=True)
    except (InvalidHashError, ValueError):
        raise ValueError("the argon2id hash is damaged; make the line again with `sterna passwd`") from None
    if parameters.salt_len < 8 or parameters.hash_len < 16:
        raise ValueError("the argon2id hash is cut short; make the line again with `sterna passwd`")


def _decoy_hash(users: Mapping[str, _User], key: bytes) -> str:
    """A hash that costs what most users' hashes cost and that no password is known to fit."""
    costs = Counter(user.hashed.rsplit("$", 2)[0] for user in users.values() if user.hashed)
    r = RECOMMENDED
    default = f"$argon2id$v=19$m={r.memory_cost},t={r.time_cost},p={r.parallelism}"
    cost = costs.most_common(1)[0][0] if costs else default
    if cost.startswith(mosquitto_hashes.PREFIXES):
        return mosquitto_hashes.decoy(cost, key)
    salt, digest = (base64.b64encode(part).decode().rstrip("=") for part in (key[:16], key[16:48]))
    return f"{cost}${salt}${digest}"
