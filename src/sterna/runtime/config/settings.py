"""Everything an operator can set about a node: one class per table of the configuration file, one field per key.

Tables that configure one core are that core's own settings, so a key is written once.  How a field becomes a key, a
check and a row of the documentation is told in `vocabulary.settings`.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from sterna.broker.limits import Limits
from sterna.interworking.settings import InterworkingSettings
from sterna.journal.settings import JournalSettings
from sterna.migration.settings import MigrationSettings
from sterna.node.network_settings import SETTLE_S
from sterna.operators.settings import OperatorSettings as OperatorSettings
from sterna.overlay.bundle import COUNT_MAX
from sterna.overlay.dialling import DIAL_MAX_S, DIAL_S
from sterna.overlay.kinds import OVERLAYS
from sterna.overlay.link_settings import LinkTuning
from sterna.overlay.mobile_settings import MobileTuning
from sterna.overlay.tree_settings import TreeTuning
from sterna.routing.strategies import STRATEGIES
from sterna.routing.strategy import RoutingSettings
from sterna.runtime.config.process_tables import Admin, ListenerTable, Log
from sterna.runtime.config.schema import Bind, Table
from sterna.runtime.functions.settings import FunctionTable
from sterna.runtime.hooks.settings import HookTable
from sterna.runtime.telemetry.settings import TelemetryTable
from sterna.vocabulary.settings import Allowed, Choice, Hidden, ShownDefault

_MULTICAST = Bind("239.255.83.84", 7884)
HELLO_GROUPS = {True: Bind("ff02::5354", 7886), False: Bind("239.255.83.85", 7886)}
"""By whether addresses are of IPv6."""


class NodeTable(Table, frozen=True):
    name: Annotated[str, ShownDefault("host name")] = msgspec.field(default_factory=socket.gethostname)
    """Name of this node, unique in its network."""
    data: Path = Path("sterna-data")
    """Directory for the journal and the sessions; made when missing."""
    backups: Annotated[Path | None, ShownDefault("`backups` below `data`")] = None
    """Directory in which `sterna backup` puts backups; another disk is wiser."""
    processes: Annotated[int, Allowed(1, 64)] = 1
    """Processes that serve the listeners [together](#many-cores), one for each core that is to be used."""

    @property
    def backups_directory(self) -> Path:
        return self.backups or self.data / "backups"


class NodeListener(ListenerTable, frozen=True):
    serves: Annotated[Literal["node", "broker"], ShownDefault('`"node"`; in proxy mode `"broker"`')] = "node"
    """The node serves clients here itself, or relays them to the foreign broker of [`[interworking]`](#interworking) in
    proxy mode."""


class Mqtt(Table, frozen=True):
    sys_interval_s: Annotated[float, Allowed(0, 86400)] = 10
    """Time between two updates of the `$SYS` tree; 0 switches it off (states of [bridges](#bridges) stay)."""
    gateways: tuple[str, ...] = ("127.0.0.0/8", "::1")
    """Addresses and networks from which a connection may say that it is a [gateway](gateway.md); Unix sockets always
    may."""


class Token(Table, frozen=True):
    """JSON Web Tokens, sent as the MQTT password."""

    algorithms: tuple[str, ...]
    """Signatures believed: HS256 (shared secret), RS256 and ES256 (public key)."""
    secret_file: Path | None = None
    """The secret; a newline at its end does not count."""
    public_key_file: Path | None = None
    """The public key (PEM)."""
    audience: str | None = None
    """The `aud` claim tokens must carry."""
    issuer: str | None = None
    """The `iss` claim tokens must carry."""


class Authentication(Table, frozen=True):
    password_file: Path | None = None
    """Made by `sterna passwd` (argon2; with `--scram` also for SCRAM-SHA-256); lines of `mosquitto_passwd` are taken
    too."""
    certificates: bool = False
    """The common name of a client's verified certificate is its user name."""
    token: Token | None = None
    hook: HookTable | None = None


class RuleTable(Table, frozen=True):
    """The rights of users and clients on topics.  The first rule that fits decides."""

    filters: tuple[str, ...]
    """Topic filters; `%u` stands for the user name, `%c` for the client id."""
    user: tuple[str, ...] = ("*",)
    """User names; `"*"` is everybody, `"anonymous"` a client that showed no credentials."""
    client: Annotated[tuple[str, ...], ShownDefault("any")] = ()
    """Client ids the rule holds for."""
    access: Literal["publish", "subscribe", "both"] = "both"
    """The operations the rule is about."""
    effect: Literal["allow", "deny"] = "allow"
    """The decision."""


class Authorization(Table, frozen=True):
    default: Annotated[Literal["allow", "deny"], ShownDefault("`allow` without rules, else `deny`")] = "allow"
    """The decision when no rule fits."""
    client_ids: Annotated[tuple[str, ...], ShownDefault("any")] = ()
    """Client identifiers that may be chosen, such as `["%u", "%u:*"]`: `%u` is the user name, `*` at the end anything;
    another one is refused with 0x85."""
    partial_subscriptions: bool = False
    """Grant a filter as soon as some of its topics may be read, as Mosquitto does; messages on the others are held
    back.  Without it a filter is granted if one rule allows all of it."""
    rules: tuple[RuleTable, ...] = msgspec.field(default=(), name="rule")


class ControlTable(Table, frozen=True):
    """Users that may touch the [control topics](adaptation.md) `$adaptation/...`.  Nobody else can publish or hear
    there, by any rule of `[authorization]`; messages are at QoS 0, never retained, and never in the journal or the
    feed."""

    users: tuple[str, ...] = ()
    """User names of coordinators and workers; `"anonymous"` is a client that showed no credentials."""
    gateways: tuple[str, ...] = ()
    """User names of gateways that measure, `"*"` is any user: each may speak in its own name only."""


class NetworkTls(Table, frozen=True):
    """TLS between nodes: each side shows a certificate, and it must be of this authority."""

    certificate: Path
    """This node's certificate chain (PEM), good for serving and for connecting."""
    key: Path
    """Private key of the certificate (PEM, not encrypted)."""
    ca: Path
    """Authorities (PEM) whose certificates are believed."""
    check_names: bool = True
    """A certificate must name the host that was dialled.  False if the authority signs nodes of this network only."""
    check_nodes: bool = True
    """A certificate must name the node that shows it, as its common name or one of its DNS names.  False on all nodes
    where they share a certificate: then a node that has one, and the key, may take the name of any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree(TreeTuning):
    """With `overlay = "spanning-tree"`: nodes find each other by datagrams on the port of their links."""

    multicast: Bind | None = _MULTICAST
    """Group in which nodes look for each other; `""` where there is no multicast: then `neighbours` are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mobile(MobileTuning):
    """With `overlay = "mobile"`: nodes that move say hello to all within reach, on the port of their links."""

    interfaces: tuple[str, ...] = ()
    """Interfaces to say hello on, such as `["wlan0"]`; empty: all that are up and know multicast."""
    multicast: Annotated[Bind | None, ShownDefault('`"[ff02::5354]:7886"`, `"239.255.83.85:7886"`')] = None
    """Group of the hellos, of the same family of addresses as `bind`; they go no further than the link."""

    def group(self, bind: Bind) -> Bind:
        """Where hellos go, for a node that takes links there."""
        return self.multicast or HELLO_GROUPS[":" in bind.host]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTable(LinkTuning):
    """This node's place among others.  Without the table the node is a network of one."""

    name: str
    """Name of the network; nodes of other networks are refused."""
    bind: Bind | None = None
    """Where other nodes connect; port 0 picks a free one.  Empty: only this node makes connections."""
    advertise: Annotated[str | None, ShownDefault("`bind`")] = None
    """Address (host:port) others are told to reach this node by."""
    key: Annotated[str | None, Hidden()] = field(default=None, repr=False)
    """The secret all nodes of the network share, 16 bytes or more; required beyond loopback.  Never printed; a file or
    the environment keeps it better."""
    key_file: Path | None = None
    """A file with the secret; a newline at its end does not count."""
    overlay: Annotated[str, Choice(OVERLAYS)] = "static"
    """How neighbours are found: the listed ones, a tree that forms by itself (`"spanning-tree"`), or those within reach
    (`"mobile"`)."""
    neighbours: tuple[str, ...] = ()
    """Addresses (host:port): the static neighbours, or where a spanning tree begins to look for others."""
    strategy: Annotated[str, Choice(STRATEGIES)] = "subscription-flooding"
    """How messages find their subscribers; the same on every node."""
    tls: NetworkTls | None = None
    tree: Tree = field(default_factory=Tree)
    mobile: Mobile = field(default_factory=Mobile)
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    clients: Annotated[str | None, ShownDefault("first TCP listener")] = None
    """Address (host:port) that [clients are sent to](migration.md) when they are moved to this node."""
    settle_s: float = SETTLE_S
    """How long SUBACK may wait for the news of a subscription to have reached every node."""
    dial_s: Annotated[float, Allowed(0.01, 3600)] = DIAL_S
    """Pause before a connection that failed is tried again; doubled each time ..."""
    dial_max_s: Annotated[float, Allowed(0.01, 3600)] = DIAL_MAX_S
    """... up to this: a node that is back is linked so soon."""
    connections: Annotated[int, Allowed(1, COUNT_MAX)] = 1
    """TCP connections to each neighbour that this node dials; together they are
    [one link](network.md#several-connections-per-neighbour)."""

    @property
    def overlay_table(self) -> Any:
        """The table of the overlay that is chosen; None if that cannot be tuned."""
        table = OVERLAYS[self.overlay].table
        return getattr(self, table) if table else None


class FeedTable(Table, frozen=True):
    """The journal as a table for readers such as Spark.  Without the table there is no feed."""

    bind: Bind = Bind("127.0.0.1", 7885)
    """Where readers connect; beyond loopback a token is required.  Port 0 picks a free one."""
    token: Annotated[str | None, Hidden()] = None
    """The secret readers have to know, 16 bytes or more.  Reader and node each prove to the other that they know it.
    Never printed; a file or the environment keeps it better."""
    token_file: Path | None = None
    """A file with the token; white space around it does not count."""
    certificate: Path | None = None
    """Certificate chain (PEM).  With it the feed speaks TLS."""
    key: Path | None = None
    """Private key of the certificate (PEM, not encrypted)."""
    advertise: Annotated[str, ShownDefault("`bind`")] = ""
    """Where readers elsewhere find this feed, host:port; all nodes of the network tell their readers.  With `bind` on
    every address: the host of `advertise` or `bind` in `[network]`."""
    peers: tuple[str, ...] = ()
    """Feeds of nodes that this one is not linked with, such as `["plant-2=10.0.0.2:7885"]`: readers that know this node
    find them here."""
    connections: Annotated[int, Allowed(1, 65535)] = 256
    """Connections of readers at once; one that is idle makes room for another reader, which waits otherwise."""
    readers: Annotated[int, Allowed(1, 65535)] = 256
    """Names of readers that may be registered."""
    idle_s: Annotated[float, Allowed(1, 86400)] = 600.0
    """A reader that asks nothing, or takes nothing of what it asked for, for so long is let go; it may come again."""
    hold_bytes: int = 0
    """For what a registered reader has not committed the journal may grow to this; if less, `retention_bytes` holds."""
    hold_age_s: float = 0.0
    """Messages that a registered reader has not committed may grow this old; if less, `retention_age_s` holds."""
    forget_nodes_s: float = 7 * 24 * 3600.0
    """How long after it was last reachable a node with a feed is still expected: a read of the table as of now fails
    without it (see `ignoreMissingNodes` in [pipeline](pipeline.md)).  0: it is forgotten at once."""
    parquet: Path | None = None
    """Directory in which every sealed segment is also written as a Parquet file; nodes may share it.  Files, and the
    directory if the node makes it, are for the user that runs the node alone: read them as that user."""
    parquet_age_s: float = 30 * 24 * 3600.0
    """Age at which a Parquet file goes, counted from its newest message; 0: never."""
    parquet_bytes: int = 0
    """Bytes of Parquet files of this node before the oldest goes; 0: any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterworkingTable(InterworkingSettings):
    """A broker of another make that this node joins to the network.  Without the table there is none."""

    broker: str
    """Its address (host:port), where it takes MQTT clients."""
    user: str | None = None
    """User name for the broker."""
    password_file: Path | None = None
    """A file with the password; white space around it does not count."""
    tls: bool = False
    """Speak TLS to the broker."""
    ca: Annotated[Path | None, ShownDefault("those of the machine")] = None
    """Authorities (PEM) whose certificates are believed."""
    certificate: Path | None = None
    """This node's certificate chain (PEM), for a broker that asks for one."""
    key: Path | None = None
    """Private key of the certificate (PEM, not encrypted)."""
    check_names: bool = True
    """The broker's certificate must name the host that is dialled."""


class Configuration(Table, frozen=True):
    """The whole file, every default filled in and every path absolute."""

    node: NodeTable = msgspec.field(default_factory=NodeTable)
    journal: JournalSettings = msgspec.field(default_factory=JournalSettings)
    limits: Limits = msgspec.field(default_factory=Limits)
    mqtt: Mqtt = msgspec.field(default_factory=Mqtt)
    listeners: tuple[NodeListener, ...] = msgspec.field(default=(NodeListener(),), name="listener")
    authentication: Authentication = msgspec.field(default_factory=Authentication)
    authorization: Authorization = msgspec.field(default_factory=Authorization)
    adaptation: ControlTable = msgspec.field(default_factory=ControlTable)
    operators: OperatorSettings = msgspec.field(default_factory=OperatorSettings)
    functions: FunctionTable = msgspec.field(default_factory=FunctionTable)
    network: NetworkTable | None = None
    migration: MigrationSettings = msgspec.field(default_factory=MigrationSettings)
    feed: FeedTable | None = None
    telemetry: TelemetryTable = msgspec.field(default_factory=TelemetryTable)
    interworking: InterworkingTable | None = None
    admin: Admin = msgspec.field(default_factory=Admin)
    log: Log = msgspec.field(default_factory=Log)
