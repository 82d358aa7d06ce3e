"""The tables that nodes and gateways share: `[[listener]]`, `[admin]` and `[log]`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from sterna.runtime.config.schema import Bind, Table
from sterna.vocabulary.settings import Hidden, ShownDefault


class ListenerTable(Table, frozen=True):
    bind: Bind = Bind("127.0.0.1", 1883)
    """Address and port, or `unix:PATH`; port 0 picks a free one."""
    transport: Literal["tcp", "websocket"] = "tcp"
    """How clients speak MQTT here."""
    anonymous: Annotated[
        bool, ShownDefault("on loopback and Unix sockets, unless passwords or tokens are configured")
    ] = True
    """Let clients in that show no credentials."""
    certificate: Path | None = None
    """Certificate chain (PEM).  With it the listener speaks TLS."""
    key: Path | None = None
    """Private key of the certificate (PEM, not encrypted)."""
    client_ca: Path | None = None
    """Authorities (PEM) whose client certificates are believed.  With it clients are asked for a certificate."""
    require_certificate: bool = False
    """Refuse clients that show no certificate."""
    allowed_origins: Annotated[tuple[str, ...], ShownDefault("pages of the same host name")] = ()
    """Web pages that may connect by WebSocket, such as `["https://plant.example"]`; `"*"` is all of them.  Requests
    without Origin, which come from no browser, are always taken."""
    proxies: tuple[str, ...] = ()
    """Addresses or networks of load balancers that speak the PROXY protocol, version 2.  With it every connection must
    come from one of them and begin with that header, before TLS; its address then is the client's."""

    @property
    def is_secure(self) -> bool:
        return self.certificate is not None


class Admin(Table, frozen=True):
    bind: Bind | None = Bind("127.0.0.1", 9883)
    """Where the dashboard, metrics, health and orders are served, `/` lists the pages; `""` switches it off."""
    anonymous: Annotated[bool, ShownDefault("on loopback")] = True
    """Let everybody read who can reach the port; beyond loopback without tokens and people this must be set."""
    hosts: tuple[str, ...] = ()
    """Names by which the port may be asked without a token, besides addresses, `localhost`, and the names of the
    machine and of `bind`; others get 421, so that no web page can read here by a name that was made to point at this
    machine. `"*"` is any; `/healthz` and `/readyz` answer to all."""
    token: Annotated[str | None, Hidden()] = None
    """Secret, 16 bytes or more; a request that shows it (`Authorization: Bearer ...`) may read and change.  Beyond
    loopback, or with one of the secrets below, nothing can be changed without it, except by `operators`.  Never
    printed; a file or the environment keeps it better."""
    token_file: Path | None = None
    """A file with the token; white space around it does not count."""
    read_token: Annotated[str | None, Hidden()] = None
    """Like `token`, for reading only."""
    read_token_file: Path | None = None
    """A file with that token."""
    password_file: Path | None = None
    """People who may log in at the dashboard; `sterna passwd` makes the file.  They may read."""
    operators: tuple[str, ...] = ()
    """Users of `password_file` who may change something, too."""


class Log(Table, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe lines that are written, to stderr; [more about it](#the-log)."""
    format: Literal["text", "json"] = "text"
    """Text for people, `"json"` for machines."""
