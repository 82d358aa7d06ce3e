"""Logins of people at a browser: who has shown a token or a password, in which role, and the proof of each request.

A login is a secret in a cookie that no script can read and no other site can send (HttpOnly, SameSite=Strict).
Cookies know no ports: pages and servers of another port of the same host are of the same site, and the servers are
sent the cookie.  So a change also shows a second secret, in a header.  It is told once, in the answer to the login.
At most `LOGINS_MAX` people are logged in, each for `LOGIN_S`.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from http.cookies import CookieError, SimpleCookie

LOGINS_MAX = 256
LOGIN_S = 12 * 3600.0
CSRF_HEADER = b"x-sterna-csrf"


class Role(Enum):
    READER = "reader"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Login:
    role: Role
    user: str
    """Empty for somebody who showed a token, or nothing."""
    csrf: str = field(repr=False)
    ends_at: float

    def confirms(self, shown: bytes) -> bool:
        """Whether a request to change something comes from our own page."""
        return hmac.compare_digest(shown, self.csrf.encode())


class Logins:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: In order of coming.
        self._open: dict[str, Login] = {}

    def begin(self, role: Role, user: str = "") -> tuple[str, Login]:
        """The secret of the cookie, and the login.  Past `LOGINS_MAX` the oldest ends."""
        if len(self._open) >= LOGINS_MAX:
            del self._open[next(iter(self._open))]
        secret, login = secrets.token_urlsafe(32), Login(role, user, secrets.token_urlsafe(32), self._clock() + LOGIN_S)
        self._open[secret] = login
        return secret, login

    def end(self, headers: dict[bytes, bytes]) -> None:
        self._open.pop(_secret(headers), None)

    def of(self, headers: dict[bytes, bytes]) -> Login | None:
        """The login that a request shows, if it has not ended."""
        secret = _secret(headers)
        login = self._open.get(secret)
        if login is not None and login.ends_at <= self._clock():
            del self._open[secret]
            return None
        return login


def cookie(headers: dict[bytes, bytes], secret: str) -> tuple[str, str]:
    """The header that gives a browser the secret; an empty one takes it away.  A browser that came by TLS, through
    a proxy, keeps it from connections without."""
    age = int(LOGIN_S) if secret else 0
    secure = "; Secure" if headers.get(b"origin", b"").startswith(b"https://") else ""
    return "Set-Cookie", f"{_name(headers)}={secret}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}"


def is_foreign_page(headers: dict[bytes, bytes]) -> bool:
    """Whether the request comes from a page that is not ours."""
    if headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none"):
        return True
    origin, host = headers.get(b"origin"), headers.get(b"host", b"")
    return origin is not None and origin not in (b"http://" + host, b"https://" + host)


def _name(headers: dict[bytes, bytes]) -> str:
    """Cookies know no ports: nodes on one machine would log each other's people out."""
    port = headers.get(b"host", b"").decode("latin-1").rpartition(":")[2]
    return f"sterna-{port}" if port.isdecimal() else "sterna"


def _secret(headers: dict[bytes, bytes]) -> str:
    try:
        found = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1")).get(_name(headers))
    except CookieError:
        return ""
    return found.value if found is not None else ""
