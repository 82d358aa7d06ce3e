"""The register of bans, users and access rules: which change counts, what is refused, and how it stays bounded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sterna.broker.access import access_register
from sterna.broker.access.access_register import AccessEntry, AccessRegister, Ban, BanList, EntryKind, checked, encoded
from sterna.vocabulary.errors import ConfigurationError

BAN: dict[str, Any] = {"reason": "noise"}


def entry(name: str, time: int, node: str = "a", *, is_set: bool = True) -> AccessEntry:
    return AccessEntry("ban", name, BAN if is_set else None, time, node)


def test_the_later_of_two_changes_counts_in_whichever_order_they_come() -> None:
    changes = [entry("client:x", 5), entry("client:x", 7, is_set=False), entry("client:x", 7, "b"), entry("user:y", 1)]
    digests = set()
    for order in (changes, changes[::-1], [changes[2], changes[0], changes[3], changes[1]]):
        register = AccessRegister()
        for change in order:
            register.merge(change)
        digests.add(register.digest())
        assert [(one.name, one.node) for one in register.entries()] == [("client:x", "b"), ("user:y", "a")]
    assert len(digests) == 1
    assert AccessRegister().digest() not in digests


def test_a_change_counts_over_every_one_that_its_node_knew_though_its_clock_is_behind() -> None:
    register = AccessRegister()
    register.merge(entry("client:x", 1_000_000, "other"))
    assert register.merge(register.change("ban", "client:x", None, node="a", wall=3.0))
    assert register.bans.find("x", None, "192.0.2.1:5", 0.0) is None
    assert not register.merge(entry("client:x", 1_000_000, "other"))


@pytest.mark.parametrize(
    ("name", "client", "user", "address"),
    [
        ("client:x", "x", None, "unix"),
        ("user:ann", "c", "ann", "192.0.2.1:5"),
        ("address:192.0.2.0/24", "c", None, "192.0.2.77:5"),
        ("address:192.0.2.77", "c", None, "::ffff:192.0.2.77:5"),
        ("address:2001:db8::/32", "c", "ann", "2001:db8::5:1883"),
    ],
)
def test_a_ban_finds_whom_it_means_and_nobody_else(name: str, client: str, user: str | None, address: str) -> None:
    bans = BanList([(name, Ban(until=50.0, reason="noise"))])
    found = bans.find(client, user, address, 49.0)
    assert found is not None
    assert (found.name, found.reason) == (name, "noise")
    assert bans.find(client, user, address, 50.0) is None, "it has ended"
    assert bans.find("other", "None", "198.51.100.1:5", 49.0) is None
    assert bans.find("user:ann", "client:x", "unix", 49.0) is None


@pytest.mark.parametrize(
    ("kind", "name", "value", "part"),
    [
        ("ban", "x", BAN, "client:ID"),
        ("ban", "address:nowhere", BAN, "no IP address"),
        ("ban", "client:", BAN, "client:ID"),
        ("ban", "client:x", {"till": 5}, "unknown field"),
        ("ban", "client:x", {"reason": "x" * 201}, "length"),
        ("ban", "client:\n", BAN, "printable"),
        ("user", "a:b", {"credential": ""}, "cannot be used"),
        ("user", "ann", {"credential": "secret"}, "must start with"),
        ("rule", "r", {"filters": []}, "no topic"),
        ("rule", "r", {"filters": ["a/#/b"]}, "a/#/b"),
        ("rule", "r", {"filters": ["x" * 5000]}, "larger"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused_with_the_remedy(
    kind: EntryKind, name: str, value: dict[str, Any], part: str
) -> None:
    with pytest.raises(ConfigurationError, match=part):
        AccessRegister().change(kind, name, value, node="a", wall=1.0)
    with pytest.raises(ValueError, match=part):
        checked(AccessEntry(kind, name, value, 1, "a"))


def test_the_register_is_bounded_and_marks_make_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_register, "ENTRIES_MAX", 3)
    register = AccessRegister()
    for number in range(3):
        register.merge(entry(f"client:{number}", number, is_set=number != 1))
    register.merge(entry("client:new", 9))
    assert [one.name for one in register.entries()] == ["client:0", "client:2", "client:new"]
    with pytest.raises(ConfigurationError, match="remove some"):
        register.change("ban", "client:more", BAN, node="a", wall=1.0)
    register.change("ban", "client:2", None, node="a", wall=1.0)
    register.merge(entry("client:of-others", 10))
    assert len(register) == 3


def test_a_register_is_read_back_as_it_was() -> None:
    register, other = AccessRegister(), AccessRegister()
    for number in range(5):
        register.merge(entry(f"client:{number}", number, is_set=bool(number % 2)))
    other.load(register.snapshot())
    other.replay(encoded(entry("user:late", 9)))
    register.merge(entry("user:late", 9))
    assert other.digest() == register.digest()
    with pytest.raises(ValueError, match="Expected"):
        other.load(msgspec.msgpack.encode([["ban", 5]]))
