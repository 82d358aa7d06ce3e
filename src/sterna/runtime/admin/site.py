"""The pages of an admin port as a table: path, right, text for the index, and handler.

Reading is open to this machine, and beyond it to a client that shows the token; so is changing something.  Requests of
web pages are refused when they would change something: a browser on this machine runs other people's programs.  So that
no page can read either, by a name of its own that was made to point here (DNS rebinding), the port answers to known
names only.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from sterna.runtime.config.process_tables import Admin
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.secrets import ADMIN_TOKEN
from sterna.runtime.reloading import ReloadOutcome
from sterna.vocabulary.errors import ConfigurationError

T = TypeVar("T")

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Guard:
    """Who may do what."""

    token: bytes = field(default=b"", repr=False)
    """With it, changing needs it; so does reading unless it is open."""
    open_to_readers: bool = True
    open_to_changes: bool = True
    """As long as there is no token."""
    hosts: frozenset[str] = frozenset()
    """Names it answers to, besides addresses and localhost; "*" is any."""

    def answers_to(self, host: bytes | None) -> bool:
        """Whether a request for this host (the header, None without one) is for us.  A browser always sends the host of
        the page's address; a page that came by an address is of another origin than we are."""
        if host is None or "*" in self.hosts:
            return True
        name = host.decode("latin-1").strip().lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].rstrip(".")
        if name in self.hosts or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def knows(self, authorization: bytes) -> bool:
        scheme, _, shown = authorization.partition(b" ")
        return bool(self.token) and scheme.lower() == b"bearer" and hmac.compare_digest(shown.strip(), self.token)


def guard(settings: Admin) -> Guard:
    """As the configuration says.  May raise ConfigurationError or OSError."""
    bind = settings.bind or Bind()
    own = ("*",) if bind.path else (bind.host, socket.gethostname())  # no name leads a browser to a Unix socket
    hosts = frozenset(name.lower().rstrip(".") for name in (*settings.hosts, *own))
    return Guard(ADMIN_TOKEN.read(settings), settings.anonymous, settings.bind is not None and bind.is_local, hosts)


class Request(NamedTuple):
    """One request.  Header names are in lower case, as HTTP means them."""

    method: str
    target: str
    headers: dict[bytes, bytes]
    body: bytes = b""


class Answer(NamedTuple):
    status: int
    body: bytes
    content_type: str = _TEXT
    headers: tuple[tuple[str, str], ...] = ()


class Right(Enum):
    """The right that a client needs to ask for a page."""

    NOTHING = "nothing"
    """Everybody who can reach the port may ask."""
    READ = "read"
    CHANGE = "change"
    """Asked for by POST, with JSON."""


@dataclass(frozen=True, slots=True)
class AdminPage(Generic[T]):
    """A page of the admin port of a `T`."""

    path: str
    handler: Callable[[Request, T], Answer | Awaitable[Answer]]
    about: str = ""
    """Its line of the index; empty: it is not listed."""
    right: Right = Right.READ


class AdminSite(Generic[T]):
    """All pages of an admin port, with an index of them at `/`."""

    def __init__(self, title: str, pages: Iterable[AdminPage[T]]) -> None:
        self._pages: tuple[AdminPage[T], ...] = (AdminPage("/", self._index), *pages)
        listed = (f"{page.path:<12} {page.about}" for page in self._pages if page.about)
        self._listing = "\n".join((title, *listed, ""))

    @property
    def pages(self) -> tuple[AdminPage[T], ...]:
        """All but the index."""
        return self._pages[1:]

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(page.path for page in self._pages)

    def answer(self, asked: Request, subject: T, guard: Guard) -> Answer | Awaitable[Answer]:
        """The answer to one request; bad requests get one too."""
        path, changes = asked.target.partition("?")[0], asked.method == "POST"
        here = {page.right is Right.CHANGE: page for page in self._pages if page.path == path}
        if refused := _wrong_method(asked, reads=False in here or not here, changes=True in here):
            return refused
        page = here.get(changes)
        if refused := _refusal(asked, page.right if page else Right.READ, guard):
            return refused
        if page is None:
            return text(404, "no such page; / lists them\n")
        return (_not_json(asked) if changes else None) or page.handler(asked, subject)

    def _index(self, _asked: Request, _subject: T) -> Answer:
        return text(200, self._listing)


def _wrong_method(asked: Request, *, reads: bool, changes: bool) -> Answer | None:
    """The answer to a method that the page does not have, if so."""
    allowed = [*(("GET", "HEAD") if reads else ()), *(("POST",) if changes else ())]
    if asked.method in allowed:
        return None
    said = f"only {', '.join(allowed[:-1])} and {allowed[-1]}" if len(allowed) > 1 else f"only {allowed[0]}"
    return text(405, f"{said}\n", ("Allow", ", ".join(allowed)))


def _not_json(asked: Request) -> Answer | None:
    """Another type could come from a form on a web page."""
    if asked.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == _JSON.encode():
        return None
    return text(415, f"send {_JSON}\n")


def _refusal(asked: Request, right: Right, guard: Guard) -> Answer | None:
    """Why the client may not ask, if so."""
    if guard.knows(asked.headers.get(b"authorization", b"")):
        return None
    changes, is_harmless = right is Right.CHANGE, right is Right.NOTHING
    if not is_harmless and not guard.answers_to(asked.headers.get(b"host")):
        return text(421, "this port does not go by that name: add it to hosts in [admin], or show the token\n")
    if changes and not guard.token and not guard.open_to_changes:
        return text(403, "beyond loopback changes need a token: set [admin] token_file\n")
    if changes and b"origin" in asked.headers:
        return text(403, "web pages may change nothing here\n")
    is_open = guard.open_to_readers or is_harmless
    if (changes and guard.token) or not (changes or is_open):
        return text(401, "show the token: Authorization: Bearer ...\n", ("WWW-Authenticate", "Bearer"))
    return None


def text(status: int, words: str, *headers: tuple[str, str]) -> Answer:
    return Answer(status, words.encode(), headers=headers)


def as_json(value: object) -> Answer:
    return Answer(200, msgspec.json.encode(value) + b"\n", _JSON)


class AdminProcess(Protocol):
    """The questions of every admin port to its process."""

    def why_not_ready(self) -> str | None:
        """None when it serves, else the reason in a few words."""

    async def reload(self) -> ReloadOutcome:
        """Read the configuration again; ConfigurationError if nothing came of it."""


def alive(_asked: Request, _process: object) -> Answer:
    return text(200, "alive\n")


def ready(_asked: Request, process: AdminProcess) -> Answer:
    reason = process.why_not_ready()
    return text(200, "ready\n") if reason is None else text(503, f"not ready: {reason}\n")


async def reload(_asked: Request, process: AdminProcess) -> Answer:
    try:
        return as_json(await process.reload())
    except ConfigurationError as error:
        return text(409, f"{error}\n")
