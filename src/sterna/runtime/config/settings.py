"""Everything an operator can set: one class per table of the configuration file, one field per key.

The classes are the schema.  The reader, the environment names, the checks and the printed effective configuration are
all derived from them (and from the settings of the cores), so a key is written down once.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import socket
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct, field

from sterna.broker.limits import Limits
from sterna.journal.settings import JournalSettings
from sterna.operators.settings import Settings as OperatorSettings

_HOST_AND_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*):(?P<port>\d+)")


class Unusable(ValueError):
    """A value that cannot be used, and what to write instead."""

    def __init__(self, text: str, fix: str) -> None:
        super().__init__(f"{text}; {fix}")
        self.text = text
        self.fix = fix


@dataclasses.dataclass(frozen=True, slots=True)
class Bind:
    """Where to listen: a host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    """0 lets the system pick a free port."""
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Bind:
        if text.startswith("unix:"):
            if text == "unix:":
                raise Unusable("the socket has no path", 'write "unix:/run/sterna.sock"')
            return cls(path=text.removeprefix("unix:"))
        found = _HOST_AND_PORT.fullmatch(text)
        if found is None:
            raise Unusable(f'"{text}" is no address', 'write "127.0.0.1:1883", "[::1]:1883" or "unix:/run/sterna.sock"')
        host, port = found["host"].strip("[]"), int(found["port"])
        if host in ("", "*"):
            raise Unusable("the host is missing", f'write "127.0.0.1:{port}", or "0.0.0.0:{port}" for every interface')
        if port > 65535:
            raise Unusable(f"port {port} is out of range", "use 1..65535")
        return cls(host, port)

    @property
    def is_local(self) -> bool:
        """Nobody outside this machine can reach it."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    """One table of the file."""


class Node(Table, frozen=True):
    name: str = field(default_factory=socket.gethostname)
    """Name of this node, unique in its network."""
    data: Path = Path("sterna-data")
    """Directory for the journal and the sessions; made when missing."""


class Mqtt(Table, frozen=True):
    sys_interval_s: float = 10
    """Seconds between two updates of the $SYS tree; 0 switches it off."""
    gateways: tuple[str, ...] = ("127.0.0.0/8", "::1")
    """Addresses, or networks of them, whose connections may say that they are a gateway.  Unix sockets always may."""


class Listener(Table, frozen=True):
    bind: Bind = Bind("127.0.0.1", 1883)
    transport: Literal["tcp", "websocket"] = "tcp"
    anonymous: bool = True
    """Let clients in that show no credentials.  When left out: true for loopback and Unix sockets
    unless passwords or tokens are configured, else false."""
    certificate: Path | None = None
    """Certificate chain (PEM).  With it the listener speaks TLS."""
    key: Path | None = None
    """Private key of the certificate (PEM, not encrypted)."""
    client_ca: Path | None = None
    """Authorities (PEM) whose client certificates are believed.  With it clients are asked for a certificate."""
    require_certificate: bool = False
    """Refuse clients that show no certificate."""
    allowed_origins: tuple[str, ...] = ()
    """Web pages that may connect by WebSocket, such as "https://plant.example"; "*" is all of them.
    Empty: those of the same host name.  Requests without Origin, which come from no browser, are always taken."""

    @property
    def is_secure(self) -> bool:
        return self.certificate is not None


class Token(Table, frozen=True):
    """JSON Web Tokens, sent as the MQTT password."""

    algorithms: tuple[str, ...]
    """Signatures believed: HS256 (shared secret), RS256 and ES256 (public key)."""
    secret_file: Path | None = None
    """The secret; a newline at its end does not count."""
    public_key_file: Path | None = None
    """PEM."""
    audience: str | None = None
    """The `aud` claim tokens must carry."""
    issuer: str | None = None
    """The `iss` claim tokens must carry."""


class Authentication(Table, frozen=True):
    password_file: Path | None = None
    """Written by `sterna passwd`."""
    certificates: bool = False
    """The common name of a client's verified certificate is its user name."""
    token: Token | None = None


class Rule(Table, frozen=True):
    """Who may do what where.  The first rule that fits decides."""

    filters: tuple[str, ...]
    """Topic filters; %u stands for the user name, %c for the client id."""
    user: tuple[str, ...] = ("*",)
    """User names; "*" is everybody, "anonymous" whoever showed no credentials."""
    client: tuple[str, ...] = ()
    """Client ids the rule holds for; empty means any."""
    access: Literal["publish", "subscribe", "both"] = "both"
    effect: Literal["allow", "deny"] = "allow"


class Authorization(Table, frozen=True):
    default: Literal["allow", "deny"] = "allow"
    """What happens when no rule fits.  When left out: allow without rules, deny as soon as there is one."""
    client_ids: tuple[str, ...] = ()
    """Client identifiers that may be chosen: `%u` is the user name, `*` at the end anything.  Empty: any."""
    rules: tuple[Rule, ...] = field(default=(), name="rule")


class NetworkTls(Table, frozen=True):
    """TLS between nodes: everybody shows a certificate, and it must be of this authority."""

    certificate: Path
    """This node's certificate chain (PEM), good for serving and for connecting."""
    key: Path
    """Private key of the certificate (PEM, not encrypted)."""
    ca: Path
    """Authorities (PEM) whose certificates are believed."""
    check_names: bool = True
    """A certificate must name the host that was dialled.  False if the authority signs nodes of this network only."""
    check_nodes: bool = True
    """A certificate must name the node that shows it, as its common name or one of its DNS names.  False if nodes share
    a certificate: then whoever has one, and the key, may take the name of any node."""


class Tree(Table, frozen=True):
    """Timers and weights of the spanning tree, see `overlay.tree_settings`."""

    multicast: Bind | None = Bind("239.255.83.84", 7884)
    """Group in which nodes look for each other; "" where there is no multicast: then `neighbours` are called."""
    cpu_weight: float = 1.0
    """Weight of the processors (MHz, all together) in a node's capability; the most capable node is the root."""
    memory_weight: float = 1.0
    """Weight of the memory (MiB)."""
    listen_s: float = 0.3
    """After the start, how long to listen before the first parent is dialled."""
    ping_s: float = 0.5
    """How often every other node is pinged."""
    dead_after_s: float = 1.5
    """A node not heard for so long is dead."""
    probe_s: float = 0.5
    """A node whose link broke and that does not answer for so long is dead."""
    discover_s: float = 2.0
    """How often to call for nodes that are not known yet."""
    round_s: float = 0.25
    """How often the root says that it is there."""
    change_s: float = 0.002
    """A shorter path to the root is taken only if it is shorter by more than this ..."""
    change_ratio: float = 0.2
    """... and by more than this part of the present one ..."""
    steady_s: float = 1.0
    """... and has been so for this long."""


class Routing(Table, frozen=True):
    """What routing strategies go by."""

    advertisement_idle_s: float = 300.0
    """A topic nobody has published on for so long is no longer advertised."""
    advertised_topics_max: int = 1000
    """Topics a node advertises one by one; more are gathered under common beginnings."""
    filters_per_link: int = 1_000_000
    """Filters one neighbour may ask for on behalf of everybody behind it; with more its link is ended."""
    filter_bytes_per_link: int = 256 * 1024 * 1024
    """Bytes of these filters."""


class Network(Table, frozen=True):
    """This node's place among others.  Without the table it is alone."""

    name: str
    """Name of the network; nodes of other networks are refused."""
    bind: Bind | None = None
    """Where other nodes connect; "" or left out: only this node makes connections."""
    advertise: str | None = None
    """Address (host:port) others are told to reach this node by, if it is not `bind`."""
    key: str | None = None
    """The secret all nodes of the network share.  Never printed; a file or the environment keeps it better."""
    key_file: Path | None = None
    """A file with the secret; a newline at its end does not count."""
    overlay: Literal["static", "spanning-tree"] = "static"
    """How neighbours are found: the listed ones, or a tree that forms by itself."""
    neighbours: tuple[str, ...] = ()
    """Addresses (host:port): the static neighbours, or where a spanning tree begins to look for others."""
    strategy: Literal["publication-flooding", "subscription-flooding", "advertisement"] = "subscription-flooding"
    """How messages find their subscribers; the same on every node."""
    tls: NetworkTls | None = None
    tree: Tree = field(default_factory=Tree)
    routing: Routing = field(default_factory=Routing)
    clients: str | None = None
    """Address (host:port) that clients are sent to when they are moved here, if it is not the first listener's."""
    settle_s: float = 1.0
    """How long SUBACK may wait for the news of a subscription to have reached every node."""
    dial_s: float = 0.1
    """Pause before a connection that failed is tried again; doubled each time ..."""
    dial_max_s: float = 1.0
    """... up to this."""
    keep_alive_s: float = 1.0
    """A link on which nothing else was sent for so long says that it is there."""
    dead_after_s: float = 3.0
    """A connection on which nothing was heard for so long is dropped."""
    resume_s: float = 2.0
    """How long a link waits for a new connection before its neighbour counts as gone."""
    handshake_s: float = 5.0
    """From connecting to an authenticated link."""
    resend_bytes: int = 8 * 1024 * 1024
    """Bytes kept for one link until they are acknowledged; congested at half of it, given up at all of it."""
    batch_bytes: int = 256 * 1024
    """Bytes gathered for one link before they are sent without waiting for the end of the turn."""
    ack_bytes: int = 256 * 1024
    """Bytes received over one link before they are acknowledged without waiting for something to send."""
    frame_bytes: int = 2 * 1024 * 1024
    """Largest single thing sent over a link; a message of `packet_bytes` must fit."""
    pending_handshakes: int = 64
    """Connections of nodes not authenticated yet; those of one bundle count as one."""
    compress: bool = True
    """Deflate small batches between nodes.  Whoever can publish and watch sizes may guess at what travels beside."""
    connections: int = 1
    """TCP connections to each neighbour that this node dials; together they are one link."""


class Feed(Table, frozen=True):
    """The journal as a table for readers such as Spark.  Without the table there is no feed."""

    bind: Bind = Bind("127.0.0.1", 7885)
    """Where readers connect; beyond loopback a token is required."""
    token: str | None = None
    """The secret readers have to know.  Never printed; a file or the environment keeps it better."""
    token_file: Path | None = None
    """A file with the token; white space around it does not count."""
    certificate: Path | None = None
    """Certificate chain (PEM).  With it the feed speaks TLS."""
    key: Path | None = None
    """Private key of the certificate (PEM, not encrypted)."""
    advertise: str = ""
    """Where readers elsewhere find this feed, host:port; other nodes of the network tell it to their readers.  Without
    it: `bind`, and if that is every address of the machine, the host of `advertise` or `bind` in `[network]`."""
    peers: tuple[str, ...] = ()
    """Feeds of other nodes, such as "plant-2=10.0.0.2:7885", besides those of nodes this one is linked with."""
    connections: int = 256
    """Connections of readers at once."""
    readers: int = 256
    """Names of readers that may be registered."""
    idle_s: float = 600.0
    """A reader that asks nothing, or takes nothing of what it asked for, for so long is let go; it may come again."""
    hold_bytes: int = 0
    """For what a registered reader has not committed the journal may grow to this; if less, `retention_bytes` holds."""
    hold_age_s: float = 0.0
    """What a registered reader has not committed may grow this old; if less, `retention_age_s` holds."""
    forget_nodes_s: float = 7 * 24 * 3600.0
    """So long after it was last reachable a node with a feed is still told to readers, who expect it to answer; 0: at
    once it is forgotten."""
    parquet: Path | None = None
    """A directory in which every sealed segment is also written as a Parquet file; nodes may share it."""
    parquet_age_s: float = 30 * 24 * 3600.0
    """Age at which a Parquet file goes, counted from its newest message; 0: never."""
    parquet_bytes: int = 0
    """Bytes of Parquet files of this node before the oldest goes; 0: any number."""


class OwnFunction(Table, frozen=True):
    """A data processing operator of the operator's own."""

    name: str
    """How subscribers write it, without the $: capital letters and digits."""
    call: str
    """What computes it, as "module:function": bytes in, a number out."""
    description: str
    """What it does to a payload; clients read it in `$SYS/capabilities`."""
    returns: str = "a number"
    """What the number means."""


class FunctionTable(Table, frozen=True):
    """Data processing functions: which there are, and what their processes may use."""

    own: tuple[OwnFunction, ...] = ()
    directory: Path | None = None
    """Where modules of one's own are looked for, before anywhere else."""
    workers: int = 1
    """Processes, so calls at the same time."""
    time_out_s: float = 10.0
    """A call that takes longer is given up, and its process killed."""
    memory_bytes: int = 2 * 1024 * 1024 * 1024
    """Memory (address space) of one process; 0: any."""


class Admin(Table, frozen=True):
    bind: Bind | None = Bind("127.0.0.1", 9883)
    """Where metrics and health are served; "" switches it off."""
    anonymous: bool = True
    """Let everybody read who can reach the port.  When left out: true on loopback, else false."""
    hosts: tuple[str, ...] = ()
    """Names by which the port may be asked without a token, besides addresses, localhost and the name of this machine;
    "*" is any."""
    token: str | None = None
    """Whoever shows it may read and change.  Never printed; a file or the environment keeps it better."""
    token_file: Path | None = None
    """A file with the token; white space around it does not count."""


class Log(Table, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Migration(Table, frozen=True):
    """Clients that change their node, see `migration.settings`."""

    owner_unreachable: Literal["begin-anew", "refuse"] = "begin-anew"
    """A client whose session is on a node that cannot be reached gets a new session, or no connection."""
    owner_absent_s: float = 60.0
    """For how long that node must have been away before its clients begin anew; until then they get no connection."""
    drain_s: float = 0.15
    """How long a client that is moved by plan may take to acknowledge what it was sent."""
    retry_s: float = 0.5
    """After how long without an answer nodes say something again."""
    patience_s: float = 10.0
    """How long a step of a move may take, and a client waits for its session."""
    at_once: int = 64
    """Sessions that may be on their way from this node at a time, and to it."""
    server_references: bool = False
    """Tell MQTT 5 clients that are moved by plan where to go.  Few libraries do, and libmosquitto's clients end."""
    rate: float = 50.0
    """Clients an evacuation begins to move per second."""


class Configuration(Table, frozen=True):
    """The whole file, every default filled in and every path absolute."""

    node: Node = field(default_factory=Node)
    journal: JournalSettings = field(default_factory=JournalSettings)
    limits: Limits = field(default_factory=Limits)
    mqtt: Mqtt = field(default_factory=Mqtt)
    listeners: tuple[Listener, ...] = field(default=(Listener(),), name="listener")
    authentication: Authentication = field(default_factory=Authentication)
    authorization: Authorization = field(default_factory=Authorization)
    operators: OperatorSettings = field(default_factory=OperatorSettings)
    functions: FunctionTable = field(default_factory=FunctionTable)
    network: Network | None = None
    migration: Migration = field(default_factory=Migration)
    feed: Feed | None = None
    admin: Admin = field(default_factory=Admin)
    log: Log = field(default_factory=Log)


class Key(NamedTuple):
    """One key of a table: the attribute it fills and the type it must have (None left out)."""

    attribute: str
    kind: Any
    required: bool
    optional: bool


def keys_of(table: type[Any]) -> dict[str, Key]:
    """The keys of a table as they are spelled in the file; works for our structs and the cores' dataclasses."""
    if issubclass(table, Struct):
        return {
            found.encode_name: Key(found.name, *_without_none(found.type, found.required))
            for found in msgspec.structs.fields(table)
        }
    hints = get_type_hints(table)
    return {
        found.name: Key(found.name, *_without_none(hints[found.name], _is_required(found)))
        for found in dataclasses.fields(table)
    }


def _is_required(found: dataclasses.Field[Any]) -> bool:
    return found.default is dataclasses.MISSING and found.default_factory is dataclasses.MISSING


def _without_none(kind: Any, required: bool) -> tuple[Any, bool, bool]:
    choices = [choice for choice in get_args(kind) if choice is not type(None)]
    if type(None) in get_args(kind):
        return choices[0], required, True
    return kind, required, False


def is_table(kind: Any) -> bool:
    """Ours are structs, those of the cores dataclasses; an address is a value."""
    return isinstance(kind, type) and (
        issubclass(kind, Table) or (dataclasses.is_dataclass(kind) and not issubclass(kind, Bind))
    )


def table_in_list(kind: Any) -> type[Any] | None:
    """The table type of an array of tables, None for every other kind."""
    inner = get_args(kind)[0] if get_origin(kind) is tuple else None
    return inner if is_table(inner) else None


def as_plain(value: Any) -> Any:
    """Dicts, lists, text and numbers, keys spelled as in the file; what is unset is left out."""
    if is_table(type(value)):
        plain = {key: as_plain(getattr(value, found.attribute)) for key, found in keys_of(type(value)).items()}
        if isinstance(value, Admin) and value.bind is None:
            plain["bind"] = ""  # Silence would mean the default.
        if isinstance(value, Network):
            del plain["key"]  # What is printed ends up in logs and tickets.
        if isinstance(value, Admin | Feed):
            del plain["token"]
        return {key: item for key, item in plain.items() if item is not None}
    if isinstance(value, tuple):
        return [as_plain(item) for item in value]
    return str(value) if isinstance(value, Bind | Path) else value
