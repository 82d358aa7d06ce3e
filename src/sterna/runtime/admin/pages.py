"""What the admin port answers, whoever asks over whatever transport, and who may ask for what.

Reading is open to this machine, and beyond it to whoever shows the token; so is changing something.  What web pages
send is refused when it would change something: a browser on this machine runs other people's programs.  So that no page
can read either, by a name of its own that was made to point here (DNS rebinding), the port answers to known names only.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, Protocol

import msgspec

from sterna.broker.statistics import SessionView, Statistics
from sterna.runtime.admin.metrics import CONTENT_TYPE, exposition
from sterna.runtime.admin.move_api import Desk
from sterna.runtime.config.process_tables import Admin
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.secrets import ADMIN_TOKEN
from sterna.runtime.feed.view import FeedView
from sterna.runtime.links.network_view import NetworkView
from sterna.runtime.reloading import Outcome
from sterna.vocabulary.errors import ConfigurationError, MigrationError

SESSIONS_SHOWN = 1000
"""A node may have a million: those that lost most and wait longest are shown."""

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
_INDEX = """Sterna admin port
/metrics  statistics for Prometheus
/healthz  200 while the process is alive
/sessions what waits for whom, and what retention took from them, worst first (JSON)
/readyz   200 when the node serves clients and can write its journal, else 503 and the reason
/network  links, streams, paths and the overlay (JSON)
/clients  who is where (JSON, at most 1,000)
/migrations  clients on their way, and what became of others (JSON)
/move     POST {"client": "...", "to": "node"} moves one
/evacuate POST {"node": "...", "rate": 50} empties a node, {"node": "...", "stop": true} no longer
/neighbours  addresses this node was given; POST {"add": [...], "remove": [...]} changes them (JSON)
/reload   POST {} reads passwords, access rules and certificates again
"""


class Observed(Protocol):
    """What the admin port asks the node."""

    def statistics(self) -> Statistics: ...

    def sessions(self, most: int) -> list[SessionView]: ...

    def why_not_ready(self) -> str | None:
        """None when recovered and able to write the journal, else the reason in a few words."""

    def network_view(self, *, tables: bool = False) -> NetworkView:
        """Sizes of tables only if asked for: they take a look at every filter."""

    def moves(self) -> Desk: ...

    def feed_view(self) -> FeedView | None:
        """None for a node without a feed."""

    def neighbours(self) -> list[str]:
        """The addresses given by people."""

    def change_neighbours(self, add: list[str], remove: list[str]) -> None:
        """All of it or, with a ConfigurationError, none."""

    async def reload(self) -> Outcome:
        """Read the configuration again; ConfigurationError if nothing came of it."""


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


class Asked(NamedTuple):
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


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /neighbours."""

    add: list[str] = []
    remove: list[str] = []


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /move."""

    client: str
    to: str


class Evacuate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /evacuate."""

    node: str
    rate: Annotated[float, msgspec.Meta(gt=0, le=100_000)] | None = None
    stop: bool = False


_CHANGED_BY = ("/neighbours", "/move", "/evacuate")
RELOAD = "/reload"


def answer(asked: Asked, node: Observed, guard: Guard) -> Answer | Awaitable[Answer]:
    """What one request gets, whatever it was."""
    page = asked.target.partition("?")[0]
    refused = wrong_method(asked, page, _CHANGED_BY) or refusal(asked, page, guard)
    if refused is not None:
        return refused
    if page == RELOAD:
        return not_json(asked) or reloaded(node)
    return _change(asked, page, node) if asked.method == "POST" else _page(page, node)


def wrong_method(asked: Asked, page: str, changed_by: tuple[str, ...]) -> Answer | None:
    """The answer to a method that the page has not, if so."""
    allowed = ("POST",) if page == RELOAD else ("GET", "HEAD", "POST") if page in changed_by else ("GET", "HEAD")
    if asked.method in allowed:
        return None
    said = f"only {', '.join(allowed[:-1])} and {allowed[-1]}" if len(allowed) > 1 else f"only {allowed[0]}"
    return Answer(405, f"{said}\n".encode(), headers=(("Allow", ", ".join(allowed)),))


class Reloadable(Protocol):
    async def reload(self) -> Outcome: ...


async def reloaded(process: Reloadable) -> Answer:
    try:
        return _json(await process.reload())
    except ConfigurationError as error:
        return _text(409, f"{error}\n")


def not_json(asked: Asked) -> Answer | None:
    """Another type could come from a form on a web page."""
    if asked.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == _JSON.encode():
        return None
    return _text(415, f"send {_JSON}\n")


def refusal(asked: Asked, page: str, guard: Guard) -> Answer | None:
    """Why whoever asks may not, if so."""
    if guard.knows(asked.headers.get(b"authorization", b"")):
        return None
    changes = asked.method == "POST"
    is_harmless = page in ("/healthz", "/readyz")
    if not is_harmless and not guard.answers_to(asked.headers.get(b"host")):
        return _text(421, "this port does not go by that name: add it to hosts in [admin], or show the token\n")
    if changes and not guard.token and not guard.open_to_changes:
        return _text(403, "beyond loopback changes need a token: set [admin] token_file\n")
    if changes and b"origin" in asked.headers:
        return _text(403, "web pages may change nothing here\n")
    is_open = guard.open_to_readers or is_harmless
    if (changes and guard.token) or not (changes or is_open):
        return _text(401, "show the token: Authorization: Bearer ...\n", ("WWW-Authenticate", "Bearer"))
    return None


def _page(page: str, node: Observed) -> Answer:
    match page:
        case "/":
            return Answer(200, _INDEX.encode())
        case "/healthz":
            return Answer(200, b"alive\n")
        case "/readyz":
            reason = node.why_not_ready()
            return Answer(200, b"ready\n") if reason is None else Answer(503, f"not ready: {reason}\n".encode())
        case "/sessions":
            return _json(node.sessions(SESSIONS_SHOWN))
        case "/metrics":
            return Answer(200, exposition(node.statistics(), node.network_view(), node.feed_view()), CONTENT_TYPE)
        case "/network":
            return _json(node.network_view(tables=True))
        case "/neighbours":
            return _neighbours(node)
        case "/clients" | "/migrations" | "/move" | "/evacuate":
            desk = node.moves()
            return _json(desk.clients() if page == "/clients" else desk.migrations())
    return Answer(404, b"no such page; / lists them\n")


def _neighbours(node: Observed) -> Answer:
    return _json({"neighbours": node.neighbours(), "dialled": node.network_view().dialled})


def _change(asked: Asked, page: str, node: Observed) -> Answer:
    if refused := not_json(asked):
        return refused
    if page != "/neighbours":
        return _order(asked, page, node.moves())
    try:
        change = msgspec.json.decode(asked.body, type=Change)
        node.change_neighbours(change.add, change.remove)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return _text(400, f'{error}; send {{"add": ["host:port"], "remove": ["host:port"]}}\n')
    except ConfigurationError as error:
        return _text(400, f"{error}\n")
    return _neighbours(node)


def _order(asked: Asked, page: str, desk: Desk) -> Answer:
    try:
        if page == "/move":
            move = msgspec.json.decode(asked.body, type=Move)
            return _json(desk.move(move.client, move.to))
        order = msgspec.json.decode(asked.body, type=Evacuate)
        return _json(desk.evacuate(order.node, order.rate, stop=order.stop))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return _text(400, f"{error}; / says what to send\n")
    except MigrationError as error:
        return _text(409, f"{error}\n")


def _text(status: int, text: str, *headers: tuple[str, str]) -> Answer:
    return Answer(status, text.encode(), headers=headers)


def _json(value: object) -> Answer:
    return Answer(200, msgspec.json.encode(value) + b"\n", _JSON)
