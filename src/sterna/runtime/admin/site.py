"""The pages of an admin port as a table: path, right, text for the index, and handler.

Reading is open to this machine, and beyond it to a client that shows a token; so is changing something.  A browser on
this machine runs other people's programs, so requests of web pages are refused, unless the page is our own and somebody
has logged in there.  So that no page can read either, by a name of its own that was made to point here (DNS rebinding),
the port answers to known names only.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from sterna.runtime.admin.logins import CSRF_HEADER, Login, Logins, Role, is_foreign_page
from sterna.runtime.config.access import passwords
from sterna.runtime.config.process_tables import Admin
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.secrets import ADMIN_READ_TOKEN, ADMIN_TOKEN
from sterna.runtime.reloading import ReloadOutcome
from sterna.vocabulary.errors import ConfigurationError

if TYPE_CHECKING:
    from sterna.broker.access.passwords import PasswordFile

T = TypeVar("T")

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Guard:
    """The rights of callers."""

    token: bytes = field(default=b"", repr=False)
    """With it, changing needs it; so does reading unless it is open."""
    open_to_readers: bool = True
    open_to_changes: bool = True
    """As long as nothing at all is asked for."""
    hosts: frozenset[str] = frozenset()
    """Names it answers to, besides addresses and localhost; "*" is any."""
    read_token: bytes = field(default=b"", repr=False)
    """With it one may read."""
    passwords: PasswordFile | None = field(default=None, repr=False, compare=False)
    """People who may log in at the dashboard."""
    passwords_key: bytes = field(default=b"", repr=False)
    """The same for the same passwords."""
    operators: frozenset[str] = frozenset()
    """Those of them who may change something."""
    logins: Logins = field(default_factory=Logins, repr=False, compare=False)

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

    def bearer(self, authorization: bytes) -> Role | None:
        """The role that this header proves."""
        scheme, _, shown = authorization.partition(b" ")
        return self.role_of(shown.strip()) if scheme.lower() == b"bearer" else None

    def role_of(self, token: bytes) -> Role | None:
        if self.token and hmac.compare_digest(token, self.token):
            return Role.OPERATOR
        return Role.READER if self.read_token and hmac.compare_digest(token, self.read_token) else None

    @property
    def stranger(self) -> Role | None:
        """The role of somebody who shows nothing."""
        if not self.open_to_readers:
            return None
        is_guarded = self.read_token or self.knows_operators or not self.open_to_changes
        return Role.READER if is_guarded else Role.OPERATOR

    @property
    def knows_operators(self) -> bool:
        """Somebody can prove to be one, or at least a person."""
        return bool(self.token or self.passwords_key)

    def after(self, before: Guard) -> Guard:
        """Read again: who is logged in stays so, if all secrets are the same."""
        return replace(self, logins=before.logins) if self == before else self


def guard(settings: Admin) -> Guard:
    """As the configuration says.  May raise ConfigurationError or OSError."""
    bind = settings.bind or Bind()
    own = ("*",) if bind.path else (bind.host, socket.gethostname())  # no name leads a browser to a Unix socket
    hosts = frozenset(name.lower().rstrip(".") for name in (*settings.hosts, *own))
    people = passwords(settings.password_file) if settings.password_file is not None else None
    return Guard(
        ADMIN_TOKEN.read(settings),
        settings.anonymous,
        settings.bind is not None and bind.is_local,
        hosts,
        ADMIN_READ_TOKEN.read(settings),
        people,
        people.key if people is not None else b"",
        frozenset(settings.operators),
    )


class Request(NamedTuple):
    """One request.  Header names are in lower case, as HTTP means them."""

    method: str
    target: str
    headers: dict[bytes, bytes]
    body: bytes = b""
    address: str = ""
    """Of the client, without its port."""


class EventSink(Protocol):
    """The receiving end of a stream of events: a page that is open."""

    def send(self, event: bytes) -> None:
        """A page that reads too slowly misses events."""


class EventSource(Protocol):
    def join(self, sink: EventSink) -> None: ...

    def leave(self, sink: EventSink) -> None: ...


class Answer(NamedTuple):
    status: int
    body: bytes
    content_type: str = _TEXT
    headers: tuple[tuple[str, str], ...] = ()
    events: EventSource | None = None
    """Whose events follow the body, until the client goes."""


class Right(Enum):
    """The right that a client needs to ask for a page."""

    NOTHING = "nothing"
    """Everybody who can reach the port may ask, by any name."""
    OWN_PAGE = "own page"
    """Everybody may ask but pages of others."""
    READ = "read"
    CHANGE = "change"
    """Asked for by POST, with JSON."""
    LOGIN = "login"
    """Asked for by POST, with JSON, by anybody who is no other page."""

    @property
    def is_posted(self) -> bool:
        return self in (Right.CHANGE, Right.LOGIN)


@dataclass(frozen=True, slots=True)
class AdminPage(Generic[T]):
    """A page of the admin port of a `T`."""

    path: str
    handler: Callable[[Request, T], Answer | Awaitable[Answer]]
    about: str = ""
    """Its line of the index; empty: it is not listed."""
    right: Right = Right.READ
    of_dashboard: bool = False
    """Only the dashboard asks for it."""


class AdminSite(Generic[T]):
    """All pages of an admin port, with an index of them at `/`."""

    def __init__(self, title: str, pages: Iterable[AdminPage[T]], front: Callable[[], Answer] | None = None) -> None:
        """`front`: what a browser gets in place of the index."""
        self._front = front
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
        if path == "/" and self._front is not None and asked.method == "GET" and _is_browser(asked):
            return self._front()
        here = {page.right.is_posted: page for page in self._pages if page.path == path}
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


def _is_browser(asked: Request) -> bool:
    return b"text/html" in asked.headers.get(b"accept", b"")


def _refusal(asked: Request, right: Right, guard: Guard) -> Answer | None:
    """Why the client may not ask, if so."""
    shown = guard.bearer(asked.headers.get(b"authorization", b""))
    if right is Right.NOTHING or shown is Role.OPERATOR or (shown is Role.READER and right is Right.READ):
        return None
    if not guard.answers_to(asked.headers.get(b"host")):
        return text(421, "this port does not go by that name: add it to hosts in [admin], or show the token\n")
    if is_foreign_page(asked.headers):
        return text(403, "pages of other origins may do nothing here\n")
    if right in (Right.LOGIN, Right.OWN_PAGE):
        return None
    login = guard.logins.of(asked.headers)
    if right is Right.READ:
        return None if login is not None or guard.open_to_readers else _unknown()
    if login is not None:
        return _not_ours(asked, login)
    if guard.stranger is not Role.OPERATOR and not guard.knows_operators:
        return text(403, "here changes need a token: set [admin] token_file\n")
    if b"origin" in asked.headers:
        return text(403, "web pages may change nothing here unless somebody has logged in\n")
    if shown is Role.READER:
        return text(403, "this token is for reading only\n")
    return None if guard.stranger is Role.OPERATOR else _unknown()


def may_read(asked: Request, guard: Guard) -> bool:
    """Whether the client may still have the answer to a request that goes on: its login may have ended since."""
    return _refusal(asked, Right.READ, guard) is None


def _not_ours(asked: Request, login: Login) -> Answer | None:
    """Why somebody who is logged in may not change something."""
    if login.role is not Role.OPERATOR:
        return text(403, "you may read only: name the user among operators in [admin], or show the token\n")
    if not login.confirms(asked.headers.get(CSRF_HEADER, b"")):
        return text(403, "the request does not come from the dashboard's own page\n")
    return None


def _unknown() -> Answer:
    return text(401, "show the token: Authorization: Bearer ...\n", ("WWW-Authenticate", "Bearer"))


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
