"""What the admin port answers, whoever asks over whatever transport, and who may ask for what.

Reading is open to this machine, and beyond it to whoever shows the token; so is changing something.  What web pages
send is refused when it would change something: a browser on this machine runs other people's programs.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, Protocol

import msgspec

from sterna.broker.statistics import SessionView, Statistics
from sterna.runtime import access
from sterna.runtime.feed_view import FeedView
from sterna.runtime.metrics import CONTENT_TYPE, exposition
from sterna.runtime.moves_desk import MovesDesk
from sterna.runtime.network_view import NetworkView
from sterna.runtime.settings import Admin
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
"""
_ALONE = "this node is alone: its configuration has no [network] table\n"


class Observed(Protocol):
    """What the admin port asks the node."""

    def statistics(self) -> Statistics: ...

    def sessions(self, most: int) -> list[SessionView]: ...

    def why_not_ready(self) -> str | None:
        """None when recovered and able to write the journal, else the reason in a few words."""

    def network_view(self, *, tables: bool = False) -> NetworkView | None:
        """None for a node that is alone.  Sizes of tables only if asked for: they take a look at every filter."""

    def moves(self) -> MovesDesk | None:
        """None for a node that is alone."""

    def feed_view(self) -> FeedView | None:
        """None for a node without a feed."""

    def neighbours(self) -> list[str] | None:
        """The addresses given by people; None for a node that is alone."""

    def change_neighbours(self, add: list[str], remove: list[str]) -> None:
        """All of it or, with a ConfigurationError, none."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Who may do what."""

    token: bytes = field(default=b"", repr=False)
    """With it, changing needs it; so does reading unless it is open."""
    open_to_readers: bool = True
    open_to_changes: bool = True
    """As long as there is no token."""

    def knows(self, authorization: bytes) -> bool:
        scheme, _, shown = authorization.partition(b" ")
        return bool(self.token) and scheme.lower() == b"bearer" and hmac.compare_digest(shown.strip(), self.token)


def guard(settings: Admin) -> Guard:
    """As the configuration says.  May raise ConfigurationError or OSError."""
    return Guard(access.admin_token(settings), settings.anonymous, settings.bind is not None and settings.bind.is_local)


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


def answer(asked: Asked, node: Observed, guard: Guard) -> Answer:
    """What one request gets, whatever it was."""
    page = asked.target.partition("?")[0]
    allowed = ("GET", "HEAD", "POST") if page in _CHANGED_BY else ("GET", "HEAD")
    if asked.method not in allowed:
        said = f"only {' and '.join(allowed)}\n" if len(allowed) == 2 else "only GET, HEAD and POST\n"
        return Answer(405, said.encode(), headers=(("Allow", ", ".join(allowed)),))
    refused = refusal(asked, page, guard)
    if refused is not None:
        return refused
    return _change(asked, page, node) if asked.method == "POST" else _page(page, node)


def refusal(asked: Asked, page: str, guard: Guard) -> Answer | None:
    """Why whoever asks may not, if so."""
    if guard.knows(asked.headers.get(b"authorization", b"")):
        return None
    changes = asked.method == "POST"
    if changes and not guard.token and not guard.open_to_changes:
        return _text(403, "beyond loopback changes need a token: set [admin] token_file\n")
    if changes and b"origin" in asked.headers:
        return _text(403, "web pages may change nothing here\n")
    is_open = guard.open_to_readers or page in ("/healthz", "/readyz")
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
            view = node.network_view(tables=True)
            return _text(404, _ALONE) if view is None else _json(view)
        case "/neighbours":
            return _neighbours(node)
        case "/clients" | "/migrations" | "/move" | "/evacuate":
            desk = node.moves()
            if desk is None:
                return _text(404, _ALONE)
            return _json(desk.clients() if page == "/clients" else desk.migrations())
    return Answer(404, b"no such page; / lists them\n")


def _neighbours(node: Observed) -> Answer:
    addresses, view = node.neighbours(), node.network_view()
    if addresses is None or view is None:
        return _text(404, _ALONE)
    return _json({"neighbours": addresses, "dialled": view.dialled})


def _change(asked: Asked, page: str, node: Observed) -> Answer:
    desk = node.moves()
    if node.neighbours() is None or (desk is None and page != "/neighbours"):
        return _text(404, _ALONE)
    # Another type could come from a form on a web page.
    if asked.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _JSON.encode():
        return _text(415, f"send {_JSON}\n")
    if desk is not None and page != "/neighbours":
        return _order(asked, page, desk)
    try:
        change = msgspec.json.decode(asked.body, type=Change)
        node.change_neighbours(change.add, change.remove)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return _text(400, f'{error}; send {{"add": ["host:port"], "remove": ["host:port"]}}\n')
    except ConfigurationError as error:
        return _text(400, f"{error}\n")
    return _neighbours(node)


def _order(asked: Asked, page: str, desk: MovesDesk) -> Answer:
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
