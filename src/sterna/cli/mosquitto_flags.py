"""The flags that mosquitto_pub and mosquitto_sub have in common, with the same letters and the same meaning.

--keep-trying is ours: theirs give up at the first failed connect (mosquitto_sub not if it is hung up on), and so do we.

A set of flags is a dataclass; `command_of` turns it into a command.  Flags of Mosquitto's that have no counterpart here
are refused by name, never ignored.
"""

from __future__ import annotations

import inspect
import urllib.parse
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

Flags = TypeVar("Flags", bound="ConnectionFlags")

PROPERTY_SEPARATOR = "\x1f"
_NOT_SUPPORTED = {
    "--psk": "TLS with pre-shared keys",
    "--psk-identity": "TLS with pre-shared keys",
    "--tls-engine": "TLS engines",
    "--tls-engine-kpass-sha1": "TLS engines",
    "--keyform": "TLS engines",
    "--proxy": "SOCKS proxies",
}
_VERSIONS = {"31": 3, "mqttv31": 3, "311": 4, "mqttv311": 4, "5": 5, "mqttv5": 5}
_SCHEMES = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
_NEVER = 0xFFFFFFFF


class Target(NamedTuple):
    """Where -L, or -h and its companions, lead."""

    host: str
    port: int
    username: str | None
    password: str | None
    topic: str | None
    transport: str
    is_secure: bool


@dataclass(frozen=True, kw_only=True)
class ConnectionFlags:
    host: Annotated[str, typer.Option("-h", "--host", help="Broker.")] = "localhost"
    port: Annotated[int | None, typer.Option("-p", "--port", min=1, max=65535, help="1883, or 8883 with TLS.")] = None
    unix: Annotated[str | None, typer.Option("--unix", help="Connect to this Unix socket.")] = None
    ws: Annotated[bool, typer.Option("--ws", help="Connect by WebSocket.")] = False
    url: Annotated[str | None, typer.Option("-L", "--url", help="mqtt(s)://[user[:password]@]host[:port]/topic")] = None
    bind_address: Annotated[str, typer.Option("-A", help="Local address to connect from.")] = ""
    id: Annotated[str | None, typer.Option("-i", "--id", help="Client id.")] = None
    id_prefix: Annotated[str | None, typer.Option("-I", "--id-prefix", help="Client id is this and the pid.")] = None
    username: Annotated[str | None, typer.Option("-u", "--username")] = None
    password: Annotated[str | None, typer.Option("-P", "--pw")] = None
    version: Annotated[str, typer.Option("-V", "--protocol-version", help="5, 311 or 31, or mqttv5 ...")] = "311"
    qos: Annotated[int, typer.Option("-q", "--qos", min=0, max=2)] = 0
    keep_alive: Annotated[int, typer.Option("-k", "--keepalive", min=5, max=65535, help="Seconds.")] = 60
    persistent: Annotated[bool, typer.Option("-c", "--disable-clean-session", help="Keep the session.")] = False
    session_expiry: Annotated[str | None, typer.Option("-x", help="Seconds the session is kept; -1: for ever.")] = None
    properties: Annotated[
        list[str], typer.Option("-D", "--property", metavar="COMMAND NAME VALUE", help="Add an MQTT 5 property.")
    ] = field(default_factory=list)
    inflight: Annotated[int, typer.Option("-M", min=1, max=65535, help="QoS 1 and 2 messages in flight.")] = 20
    nodelay: Annotated[bool, typer.Option("--nodelay", help="Disable Nagle's algorithm.")] = False
    debug: Annotated[bool, typer.Option("-d", "--debug", help="Say on stderr what is sent and received.")] = False
    keep_trying: Annotated[bool, typer.Option("--keep-trying", help="Try again if the first connect fails.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no errors.")] = False
    will_topic: Annotated[str | None, typer.Option("--will-topic")] = None
    will_payload: Annotated[str | None, typer.Option("--will-payload")] = None
    will_qos: Annotated[int, typer.Option("--will-qos", min=0, max=2)] = 0
    will_retain: Annotated[bool, typer.Option("--will-retain")] = False
    cafile: Annotated[Path | None, typer.Option("--cafile", help="Trusted authorities; switches TLS on.")] = None
    capath: Annotated[Path | None, typer.Option("--capath", help="Directory of trusted authorities.")] = None
    os_certs: Annotated[bool, typer.Option("--tls-use-os-certs", help="Trust the system's authorities.")] = False
    cert: Annotated[Path | None, typer.Option("--cert", help="Client certificate.")] = None
    key: Annotated[Path | None, typer.Option("--key", help="Its private key.")] = None
    ciphers: Annotated[str | None, typer.Option("--ciphers")] = None
    tls_version: Annotated[str | None, typer.Option("--tls-version", help="tlsv1.2 or tlsv1.3, at least.")] = None
    alpn: Annotated[str | None, typer.Option("--tls-alpn")] = None
    insecure: Annotated[bool, typer.Option("--insecure", help="Do not check the server's name.")] = False

    def __post_init__(self) -> None:
        if self.version not in _VERSIONS:
            raise typer.BadParameter(f"unknown version {self.version}; use 5, 311 or 31", param_hint="-V")
        if self.id is not None and self.id_prefix is not None:
            raise typer.BadParameter("-i and -I exclude each other")
        is_kept = self.persistent or self.session_expiry_s == _NEVER
        if is_kept and not (self.id or self.id_prefix):
            raise typer.BadParameter("a session that is kept needs a client id: add -i")
        if self.will_topic is None and (self.will_payload or self.will_qos or self.will_retain):
            raise typer.BadParameter("a will needs --will-topic")
        if (self.cert is None) != (self.key is None):
            raise typer.BadParameter("--cert and --key belong together")

    @property
    def protocol(self) -> int:
        """The protocol level; a property is reason enough for version 5."""
        return 5 if self.properties else _VERSIONS[self.version]

    @property
    def session_expiry_s(self) -> int:
        text = self.session_expiry or ("-1" if self.persistent else "0")
        try:
            seconds = _NEVER if text in ("-1", "∞") else int(text)
        except ValueError:
            seconds = -1
        if not 0 <= seconds <= _NEVER:
            raise typer.BadParameter(f"{text} is no session expiry; use -1 or 0..{_NEVER}", param_hint="-x")
        return seconds

    @property
    def target(self) -> Target:
        is_secure = bool(self.cafile or self.capath or self.os_certs)
        if self.url is not None:
            return _target_of_url(self.url, self, is_secure)
        if self.unix is not None:
            return Target(self.unix, 1, self.username, self.password, None, "unix", is_secure)
        port = self.port or (8883 if is_secure else 1883)
        transport = "websockets" if self.ws else "tcp"
        return Target(self.host, port, self.username, self.password, None, transport, is_secure)


def _target_of_url(url: str, flags: ConnectionFlags, is_secure: bool) -> Target:
    scheme, found, rest = url.partition("://")
    authority, _, topic = rest.partition("/")
    userinfo, _, address = authority.rpartition("@")
    host, colon, port = address.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = address, ""
    if not found or scheme not in _SCHEMES or not host or not (port == "" or port.isdecimal()):
        raise typer.BadParameter(f"{url} is not like mqtt(s)://[user[:password]@]host[:port]/topic", param_hint="-L")
    username, colon, password = userinfo.partition(":")
    return Target(
        host=host.strip("[]"),
        port=int(port) if port else _SCHEMES[scheme],
        username=urllib.parse.unquote(username) or flags.username,
        password=urllib.parse.unquote(password) if colon else flags.password,
        topic=topic or None,
        transport="websockets" if scheme in ("ws", "wss") or flags.ws else "tcp",
        is_secure=is_secure or scheme in ("mqtts", "wss"),
    )


class MosquittoCommand(TyperCommand):
    """A command line read as Mosquitto reads it: -D takes three words, or four for a user property."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with_value = {name for option in self.params if not getattr(option, "is_flag", False) for name in option.opts}
        return super().parse_args(ctx, list(_joined_properties(args, with_value)))


def _joined_properties(words: list[str], with_value: set[str]) -> list[str]:
    joined: list[str] = []
    waiting = list(reversed(words))
    while waiting:
        word = waiting.pop()
        if word in _NOT_SUPPORTED:
            raise typer.BadParameter(f"{_NOT_SUPPORTED[word]} are not supported", param_hint=word)
        joined.append(word)
        if word in ("-D", "--property"):
            count = 4 if waiting[-2:-1] == ["user-property"] else 3
            if len(waiting) < count:
                raise typer.BadParameter("write -D command identifier value", param_hint="-D")
            joined.append(PROPERTY_SEPARATOR.join(waiting.pop() for _ in range(count)))
        elif word in with_value and waiting:
            joined.append(waiting.pop())
    return joined


def command_of(flags: type[Flags], run: Callable[[Flags], int]) -> Callable[..., None]:
    """A function with one keyword per flag, as Typer wants it."""

    def command(**values: Any) -> None:
        raise typer.Exit(run(flags(**values)))

    hints = get_type_hints(flags, include_extras=True)
    parameters = []
    for found in fields(flags):
        default = found.default if found.default_factory is MISSING else found.default_factory()
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(found.name, kind, default=default, annotation=hints[found.name]))
    command.__dict__["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = hints
    command.__doc__ = run.__doc__
    return command
