"""Bans, users and access rules that operators set while nodes run: one table, the same at every node of a network.

Of two changes of one entry the later one counts, by the clock of the node at which it was made; that clock is moved on
past every change it has heard of.  A removed entry stays as a mark, so that a node that was away does not bring it
back; the oldest marks make way when the table is full.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from sterna.broker.access.authorization import AccessRule
from sterna.broker.access.identity import is_user_name
from sterna.vocabulary.errors import ConfigurationError

ENTRIES_MAX = 10_000
ENTRY_BYTES_MAX = 4096
TIME_MAX = 1 << 62

EntryKind = Literal["ban", "user", "rule"]
BAN_SUBJECTS = ("client", "user", "address")


class AccessEntry(msgspec.Struct, frozen=True, array_like=True):
    """One change, as it is journalled and goes to other nodes."""

    kind: EntryKind
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    value: dict[str, Any] | None
    """None: it was removed."""
    time: Annotated[int, msgspec.Meta(ge=0, le=TIME_MAX)]
    """Milliseconds of the clock of the node that made it, or just after the last change that node knew."""
    node: Annotated[str, msgspec.Meta(max_length=256)]

    @property
    def key(self) -> tuple[EntryKind, str]:
        return self.kind, self.name

    @property
    def order(self) -> tuple[int, str]:
        """By which the later of two is found."""
        return self.time, self.node


class Ban(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of a ban.  Its name says who is banned: `client:ID`, `user:NAME`, `address:IP` or that of a network."""

    until: float | None = None
    """Wall-clock second at which it ends; None: when it is lifted."""
    reason: Annotated[str, msgspec.Meta(max_length=200)] = ""

    def holds(self, wall: float) -> bool:
        return self.until is None or wall < self.until


class RuntimeUser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of a user."""

    credential: str
    """As behind the name in a password file; empty: this user may not come in, whatever the files say."""


class RuntimeRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of a rule.  Rules of the register are read first, in order of their names, then the configuration's."""

    filters: tuple[str, ...]
    user: tuple[str, ...] = ("*",)
    client: tuple[str, ...] = ()
    access: Literal["publish", "subscribe", "both"] = "both"
    effect: Literal["allow", "deny"] = "allow"

    def as_rule(self) -> AccessRule:
        """May raise ConfigurationError."""
        return AccessRule(self.user, self.filters, self.access, self.effect, self.client)


_VALUES: dict[str, type[Ban | RuntimeUser | RuntimeRule]] = {"ban": Ban, "user": RuntimeUser, "rule": RuntimeRule}
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(AccessEntry)
_all_decoder = msgspec.msgpack.Decoder(list[AccessEntry])


class FoundBan(NamedTuple):
    name: str
    reason: str


class BanList:
    """The bans of a register, in a form that is quick to ask."""

    def __init__(self, bans: Iterable[tuple[str, Ban]] = ()) -> None:
        self._named: dict[str, Ban] = {}
        self._networks: list[tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, str, Ban]] = []
        for name, ban in bans:
            subject, _, what = name.partition(":")
            if subject == "address":
                self._networks.append((ipaddress.ip_network(what, strict=False), name, ban))
            else:
                self._named[name] = ban

    def find(self, client_id: str, user: str | None, address: str, wall: float) -> FoundBan | None:
        """The ban that holds for this client, if any; `address` is that of its connection, with the port."""
        if not self._named and not self._networks:
            return None
        for name in (f"client:{client_id}", f"user:{user}"):
            ban = self._named.get(name) if user is not None or name[0] == "c" else None
            if ban is not None and ban.holds(wall):
                return FoundBan(name, ban.reason)
        host = _host(address) if self._networks else None
        for network, name, ban in self._networks if host is not None else ():
            if ban.holds(wall) and host in network:
                return FoundBan(name, ban.reason)
        return None


def _host(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None for a Unix socket."""
    try:
        host = ipaddress.ip_address(address.rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return mapped or host


class AccessRegister:
    def __init__(self) -> None:
        self._entries: dict[tuple[EntryKind, str], AccessEntry] = {}
        self._latest = 0
        self._bans: BanList | None = BanList()
        #: It differs from the last checkpoint.
        self.is_changed = False

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self, kind: EntryKind | None = None) -> list[AccessEntry]:
        """Marks of removed ones included, in order of their names."""
        return [entry for key, entry in sorted(self._entries.items()) if kind in (None, key[0])]

    def holds(self, kind: EntryKind, name: str) -> bool:
        """The entry is there, and no mark of a removed one."""
        known = self._entries.get((kind, name))
        return known is not None and known.value is not None

    def change(
        self, kind: EntryKind, name: str, value: dict[str, Any] | None, *, node: str, wall: float
    ) -> AccessEntry:
        """The change that an operator asks for; `merge` puts it in place.  May raise ConfigurationError."""
        entry = AccessEntry(kind, name, value, max(int(wall * 1000), self._latest + 1), node)
        check(entry)
        if entry.key not in self._entries and value is not None and self._live() >= ENTRIES_MAX:
            raise ConfigurationError(f"there are {ENTRIES_MAX:,} bans, users and rules already; remove some")
        return entry

    def merge(self, entry: AccessEntry) -> bool:
        """Take in a change that was checked; False if a later one is known."""
        known = self._entries.get(entry.key)
        if known is not None and known.order >= entry.order:
            return False
        self._entries[entry.key] = entry
        self._latest = max(self._latest, entry.time)
        self.is_changed = True
        self._make_room()
        if entry.kind == "ban":
            self._bans = None
        return True

    @property
    def bans(self) -> BanList:
        if self._bans is None:
            live = [entry for entry in self.entries("ban") if entry.value is not None]
            self._bans = BanList((entry.name, msgspec.convert(entry.value, Ban)) for entry in live)
        return self._bans

    def _live(self) -> int:
        return sum(1 for entry in self._entries.values() if entry.value is not None)

    def _make_room(self) -> None:
        """Past the bound the oldest mark goes, or the oldest ban: a table that other nodes fill stays bounded too."""
        if len(self._entries) > ENTRIES_MAX:
            oldest = min(self._entries.values(), key=lambda one: (one.value is not None, one.kind != "ban", one.order))
            del self._entries[oldest.key]

    def users(self) -> dict[str, str]:
        """Name -> credential; an empty one keeps that user out."""
        return {one.name: str(one.value["credential"]) for one in self.entries("user") if one.value is not None}

    def rules(self) -> list[AccessRule]:
        return [
            msgspec.convert(one.value, RuntimeRule).as_rule() for one in self.entries("rule") if one.value is not None
        ]

    def digest(self) -> bytes:
        """The same for the same entries."""
        stamps = [(*key, *entry.order) for key, entry in sorted(self._entries.items())]
        return hashlib.blake2b(_encode(stamps), digest_size=16).digest()

    # -- journal and checkpoint --

    def snapshot(self) -> bytes:
        return _encode(self.entries())

    def load(self, blob: bytes) -> None:
        """ValueError if it cannot be."""
        for entry in _all_decoder.decode(blob):
            self.merge(checked(entry))

    def replay(self, blob: bytes) -> None:
        """The same for one entry of the journal."""
        self.merge(checked(_decoder.decode(blob)))


def encoded(entry: AccessEntry) -> bytes:
    return _encode(entry)


def checked(entry: AccessEntry) -> AccessEntry:
    """ValueError if the entry makes no sense."""
    try:
        check(entry)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    return entry


def check(entry: AccessEntry) -> None:
    """ConfigurationError, for the operator, if the entry makes no sense."""
    if len(_encode(entry)) > ENTRY_BYTES_MAX:
        raise ConfigurationError(f"{entry.kind} {entry.name[:40]!r} is larger than {ENTRY_BYTES_MAX:,} bytes")
    if not entry.name.isprintable():
        raise ConfigurationError(f"{entry.name!a} cannot be a name: it must be printable")
    if entry.kind == "ban":
        _check_ban_name(entry.name)
    elif entry.kind == "user" and (
        not is_user_name(entry.name) or ":" in entry.name or entry.name != entry.name.strip()
    ):
        raise ConfigurationError(
            f"user name {entry.name!r} cannot be used: no `:`, no space at its ends, not `anonymous`"
        )
    if entry.value is None:
        return
    try:
        value = msgspec.convert(entry.value, _VALUES[entry.kind])
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{entry.kind} {entry.name}: {error}") from None
    if isinstance(value, RuntimeRule):
        value.as_rule()
    elif isinstance(value, RuntimeUser) and value.credential:
        from sterna.broker.access.passwords import check_credentials  # with argon2, which few nodes need

        check_credentials(entry.name, value.credential)


def _check_ban_name(name: str) -> None:
    subject, colon, what = name.partition(":")
    if subject not in BAN_SUBJECTS or not colon or not what:
        raise ConfigurationError(f"{name!r} cannot be banned: write client:ID, user:NAME or address:IP")
    if subject == "address":
        try:
            ipaddress.ip_network(what, strict=False)
        except ValueError:
            raise ConfigurationError(
                f"{what!r} is no IP address or network, such as 192.0.2.7 or 192.0.2.0/24"
            ) from None
