"""JSON Web Tokens as passwords: a signature we can check instead of a secret we must keep.

Every algorithm is bound to its own key, so a token cannot choose how it is verified.  A token must carry `sub` (the
user name) and `exp`; time is compared with the `now` the caller gives.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from sterna.broker.access.identity import is_user_name
from sterna.vocabulary.errors import ConfigurationError

ALGORITHMS = ("HS256", "RS256", "ES256")

TOKEN_BYTES_MAX = 16 * 1024
"""Longest token looked at; one with a dozen claims has about one kilobyte."""

# Time is checked here against `now`; the library would ask the clock.
_OPTIONS: Any = {"require": ["sub", "exp"], "verify_exp": False, "verify_nbf": False, "verify_iat": False}


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    user: str
    expires_at: float
    """Wall-clock second from which the token counts no more, leeway included."""


class TokenVerifier:
    """Checks tokens against the keys of the configuration: HS256 has a secret, RS256 and ES256 a public key in PEM."""

    def __init__(
        self,
        keys: Mapping[str, bytes],
        *,
        audience: str | None = None,
        issuer: str | None = None,
        leeway_s: float = 10.0,
    ) -> None:
        if not keys:
            raise ConfigurationError(f"tokens need a key for at least one of {', '.join(ALGORITHMS)}")
        self._keys = {algorithm: _prepare_key(algorithm, key) for algorithm, key in keys.items()}
        #: Tells what tokens are checked by from anything else.
        said = repr((sorted(keys.items()), audience, issuer, leeway_s)).encode()
        self.evidence = hashlib.blake2b(said, person=b"tokens", digest_size=16).hexdigest()
        self._audience = audience
        self._issuer = issuer
        self._leeway_s = leeway_s

    def recognises(self, password: bytes) -> bool:
        """Whether a password has the shape of a signed token: three parts, the first a JSON object in base64."""
        return password.startswith(b"eyJ") and password.count(b".") == 2

    def verify(self, token: bytes, *, now: float) -> VerifiedToken | None:
        if len(token) > TOKEN_BYTES_MAX:
            return None
        try:
            claims = self._signed_claims(token)
            expires_at = _instant(claims["exp"]) + self._leeway_s
            valid_from = _instant(claims.get("nbf", 0)) - self._leeway_s
        except (jwt.PyJWTError, ValueError):
            return None
        if not valid_from <= now < expires_at or not is_user_name(claims["sub"]):
            return None
        return VerifiedToken(claims["sub"], expires_at)

    def _signed_claims(self, token: bytes) -> dict[str, Any]:
        algorithm = jwt.get_unverified_header(token).get("alg")
        if not isinstance(algorithm, str) or algorithm not in self._keys:
            raise jwt.InvalidAlgorithmError
        return jwt.decode(
            token,
            self._keys[algorithm],
            algorithms=[algorithm],
            options=_OPTIONS,
            audience=self._audience,
            issuer=self._issuer,
        )


def _prepare_key(algorithm: str, key: bytes) -> Any:
    if algorithm not in ALGORITHMS:
        raise ConfigurationError(f"token algorithm {algorithm!r}: use one of {', '.join(ALGORITHMS)}")
    method = jwt.get_algorithm_by_name(algorithm)
    try:
        prepared = method.prepare_key(key)
    except (jwt.PyJWTError, ValueError, TypeError):
        wanted = "a random secret, not a PEM key" if algorithm == "HS256" else "a public key in PEM of that kind"
        raise ConfigurationError(f"the token key for {algorithm} cannot be used: give {wanted}") from None
    if problem := method.check_key_length(prepared):
        raise ConfigurationError(f"the token key for {algorithm} is too short: {problem}")
    return prepared


def _instant(claim: object) -> float:
    """A NumericDate (RFC 7519, section 2), which JSON may also hold as a string, a boolean or infinity."""
    if isinstance(claim, bool) or not isinstance(claim, int | float):
        raise ValueError("not a number")
    try:
        instant = float(claim)
    except OverflowError:
        raise ValueError("not a time") from None
    if not math.isfinite(instant):
        raise ValueError("not a time")
    return instant
