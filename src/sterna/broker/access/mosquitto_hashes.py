"""Password hashes of `mosquitto_passwd`, so that users keep their passwords when their broker is exchanged for a node.

    $7$iterations$salt$hash   PBKDF2 with SHA-512 (Mosquitto 2)
    $6$salt$hash              one round of SHA-512 (Mosquitto 1)

Both are guessed much faster than argon2 by who steals the file, so a node takes them and never makes them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

KINDS = ("6", "7")
PREFIXES = ("$6", "$7")
ITERATIONS_MAX = 10_000_000
"""Seconds of work; more is a slip, and would keep the node's workers from everybody else."""
DIGEST_BYTES = 64


def is_hash(encoded: str) -> bool:
    return encoded.startswith(("$6$", "$7$"))


def verify(encoded: str, password: bytes) -> bool:
    iterations, salt, digest = _parts(encoded)
    if iterations is None:
        found = hashlib.sha512(password + salt).digest()
    else:
        found = hashlib.pbkdf2_hmac("sha512", password, salt, iterations)
    return hmac.compare_digest(found, digest)


def check(encoded: str) -> None:
    """ValueError if no password could be held against it."""
    try:
        iterations, salt, digest = _parts(encoded)
    except ValueError:
        raise ValueError("the hash is damaged; make the line again with `sterna passwd`") from None
    if not salt or len(digest) != DIGEST_BYTES:
        raise ValueError("the hash is cut short; make the line again with `sterna passwd`")
    if iterations is not None and not 1 <= iterations <= ITERATIONS_MAX:
        raise ValueError(f"{iterations} iterations: a node does 1 to {ITERATIONS_MAX}; use `sterna passwd`")


def decoy(cost: str, key: bytes) -> str:
    """A hash of this kind and cost (`$7$101`, `$6`) that no password is known to fit."""
    digest = hashlib.sha512(key).digest()
    return "$".join([cost, *(base64.b64encode(part).decode() for part in (key[:12], digest))])


def _parts(encoded: str) -> tuple[int | None, bytes, bytes]:
    """Iterations (none: a single round), salt and digest."""
    _, kind, *rest = encoded.split("$")
    if len(rest) != (3 if kind == "7" else 2):
        raise ValueError(encoded)
    salt, digest = (base64.b64decode(part, validate=True) for part in rest[-2:])
    return int(rest[0]) if kind == "7" else None, salt, digest
