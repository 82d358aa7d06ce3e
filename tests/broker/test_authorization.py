"""Access lists: first rule decides, names stay literal, and covering is exactly what brute force says it is."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sterna.broker.access.authorization import Access, AccessList, AccessRule, Effect, Permissions
from sterna.mqtt.topics import covers, matches
from sterna.vocabulary.errors import ConfigurationError

Levels = tuple[bytes, ...]


def permissions(
    *rules: AccessRule, default: Effect = "deny", user: str | None = "ann", client_id: str = "c1"
) -> Permissions:
    return AccessList(rules, default).for_identity(user, client_id)


def everybody(*filters: str, effect: Effect = "allow") -> AccessRule:
    return AccessRule(("*",), filters, effect=effect)


# --- matching and covering ---------------------------------------------------------------------------------------


def spelled(letters: list[bytes], depth: int) -> list[Levels]:
    return [levels for length in range(1, depth + 1) for levels in product(letters, repeat=length)]


#: One letter (`z`) that no filter names and one level more than the longest filter: enough to tell any two apart.
TOPICS = spelled([b"a", b"", b"$s", b"z"], 4)
FILTERS = spelled([b"a", b"", b"$s", b"+"], 3)
FILTERS += [(b"#",), *((*levels, b"#") for levels in spelled([b"a", b"", b"$s", b"+"], 2))]


def matches_by_definition(pattern: Levels, topic: Levels, first: bool = True) -> bool:
    if not pattern or not topic:
        return pattern in ((), (b"#",)) and not topic
    head, *rest = pattern
    if head in (b"+", b"#") and first and topic[0].startswith(b"$"):
        return False
    if head == b"#":
        return True
    return head in (b"+", topic[0]) and matches_by_definition(tuple(rest), topic[1:], first=False)


def test_matching_agrees_with_its_definition_on_every_small_filter_and_topic() -> None:
    wrong = [(f, t) for f in FILTERS for t in TOPICS if matches(f, t) != matches_by_definition(f, t)]
    assert wrong == []


def test_a_pattern_covers_a_filter_exactly_if_it_matches_all_topics_the_filter_matches() -> None:
    matched = {f: frozenset(t for t in TOPICS if matches_by_definition(f, t)) for f in FILTERS}
    wrong = [(p, f) for p in FILTERS for f in FILTERS if covers(p, f) != (matched[p] >= matched[f])]
    assert wrong == []


# --- which rule decides ------------------------------------------------------------------------------------------


def test_the_first_rule_that_fits_decides() -> None:
    secret_first = permissions(everybody("a/secret", effect="deny"), everybody("a/#"))
    secret_last = permissions(everybody("a/#"), everybody("a/secret", effect="deny"))
    assert not secret_first.may_publish(b"a/secret")
    assert secret_last.may_publish(b"a/secret")


@pytest.mark.parametrize("default", ["allow", "deny"])
def test_without_a_rule_that_fits_the_default_decides(default: Effect) -> None:
    some = permissions(everybody("x", effect="deny"), everybody("y"), default=default)
    allowed = default == "allow"
    assert [some.may_publish(b"z"), some.may_receive(b"z"), some.may_subscribe(b"z")] == [allowed] * 3


def test_publish_and_subscribe_are_separate_permissions() -> None:
    some = permissions(AccessRule(("ann",), ("up",), "publish"), AccessRule(("ann",), ("down",), "subscribe"))
    assert some.may_publish(b"up")
    assert not some.may_publish(b"down")
    assert some.may_subscribe(b"down")
    assert some.may_receive(b"down")
    assert not some.may_subscribe(b"up")
    assert not some.may_receive(b"up")


@pytest.mark.parametrize(
    ("subject", "user", "concerned"),
    [
        ("ann", "ann", True),
        ("ann", "bob", False),
        ("ann", None, False),
        ("*", "ann", True),
        ("*", None, True),
        ("anonymous", None, True),
        ("anonymous", "ann", False),
        ("anonymous", "anonymous", False),
    ],
)
def test_a_rule_concerns_its_subjects_only(subject: str, user: str | None, concerned: bool) -> None:
    assert permissions(AccessRule((subject,), ("t",)), user=user).may_publish(b"t") is concerned


def test_a_rule_with_client_ids_concerns_no_other_client() -> None:
    rule = AccessRule(("ann",), ("t",), client_ids=("c1", "c2"))
    assert permissions(rule, client_id="c2").may_publish(b"t")
    assert not permissions(rule, client_id="c3").may_publish(b"t")


# --- subscriptions -----------------------------------------------------------------------------------------------


def test_a_subscription_wider_than_what_is_allowed_is_refused() -> None:
    some = permissions(everybody("a/+"))
    assert some.may_subscribe(b"a/+")
    assert some.may_subscribe(b"a/b")
    assert not some.may_subscribe(b"a/#")
    assert not some.may_subscribe(b"+/b")


def test_a_prohibition_inside_a_subscription_holds_back_topics_but_not_the_subscription() -> None:
    some = permissions(everybody("a/secret/#", effect="deny"), everybody("a/#"))
    assert some.may_subscribe(b"a/#")
    assert some.may_receive(b"a/open")
    assert not some.may_receive(b"a/secret")
    assert not some.may_receive(b"a/secret/deep")
    assert not some.may_subscribe(b"a/secret/+")


def test_everything_allowed_does_not_include_dollar_topics() -> None:
    some = permissions(everybody("#"))
    assert some.may_subscribe(b"#")
    assert some.may_publish(b"any/thing")
    assert not some.may_subscribe(b"$SYS/#")
    assert not some.may_receive(b"$SYS/broker/uptime")
    assert not some.unrestricted


small_filters = st.sampled_from([b"/".join(levels).decode() for levels in FILTERS if levels != (b"",)])


@given(
    st.lists(st.tuples(small_filters, st.sampled_from(["allow", "deny"])), max_size=4),
    small_filters,
    st.sampled_from(["allow", "deny"]),
)
def test_a_granted_subscription_holds_back_only_what_a_rule_forbids(
    rules: list[tuple[str, Effect]], topic_filter: str, default: Effect
) -> None:
    some = permissions(*(everybody(pattern, effect=effect) for pattern, effect in rules), default=default)
    if not some.may_subscribe(topic_filter.encode()):
        return
    forbidden = [tuple(pattern.encode().split(b"/")) for pattern, effect in rules if effect == "deny"]
    for topic in TOPICS:
        if matches_by_definition(tuple(topic_filter.encode().split(b"/")), topic):
            held_back = not some.may_receive(b"/".join(topic))
            assert not held_back or any(matches_by_definition(pattern, topic) for pattern in forbidden)


# --- nothing to check --------------------------------------------------------------------------------------------


def test_an_identity_without_any_prohibition_is_unrestricted() -> None:
    assert permissions(default="allow").unrestricted
    assert permissions(everybody("a/#"), default="allow").unrestricted
    assert permissions(AccessRule(("bob",), ("a",), effect="deny"), default="allow").unrestricted


def test_one_prohibition_of_either_kind_ends_being_unrestricted() -> None:
    either: tuple[Access, ...] = ("publish", "subscribe")
    for access in either:
        rule = AccessRule(("*",), ("a",), access, "deny")
        assert not permissions(rule, default="allow").unrestricted
    assert not permissions().unrestricted


# --- names in patterns -------------------------------------------------------------------------------------------


def test_client_id_and_user_name_stand_for_themselves_also_within_a_level() -> None:
    some = permissions(everybody("u-%u/c-%c/%c%u/#"), user="ann", client_id="c1")
    assert some.may_publish(b"u-ann/c-c1/c1ann/x")
    assert not some.may_publish(b"u-ann/c-c2/c2ann/x")


def test_a_name_that_reads_like_a_mark_is_not_substituted_again() -> None:
    some = permissions(everybody("%u/%c"), user="%c", client_id="%u")
    assert some.may_publish(b"%c/%u")
    assert not some.may_publish(b"%u/%u")
    assert not some.may_publish(b"%c/%c")


HOSTILE = ["+", "#", "a/b", "/", "../x", "a+", "#b", "x\0", "", "$SYS", "$share"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("mark", ["%c", "%u"])
def test_a_name_with_topic_syntax_earns_nothing(name: str, mark: str) -> None:
    some = permissions(everybody(f"{mark}/#", f"d/{mark}"), user=name, client_id=name)
    topics = [b"a", b"a/b", b"d/a", b"d/+", b"d/#", b"$SYS/x", f"d/{name}".encode(), f"{name}/x".encode()]
    assert not any(some.may_publish(topic) or some.may_receive(topic) for topic in topics)
    assert not any(some.may_subscribe(topic) for topic in [*topics, b"#", b"+/#", b"$SYS/#"])


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_with_topic_syntax_escapes_no_prohibition(name: str) -> None:
    some = permissions(
        everybody("open"), everybody("locked/%c/#", effect="deny"), default="allow", user=name, client_id=name
    )
    assert not some.unrestricted
    assert not some.may_publish(f"locked/{name}/x".encode())
    assert not some.may_receive(f"locked/{name}".encode())
    assert not some.may_subscribe(b"locked/#")
    assert some.may_publish(b"open")


def test_a_rule_about_user_names_leaves_anonymous_clients_alone() -> None:
    assert not permissions(everybody("%u/#"), user=None).may_publish(b"/x")
    assert permissions(everybody("%u/#", effect="deny"), default="allow", user=None).unrestricted


@given(st.text(st.sampled_from("ab/+#$\0%cu"), max_size=4), st.sampled_from(TOPICS))
@example("a", (b"a", b"a"))
def test_whatever_the_client_id_only_its_own_branch_opens(client_id: str, topic: Levels) -> None:
    some = permissions(everybody("%c/#"), client_id=client_id)
    opened = [some.may_publish(b"/".join(topic)), some.may_receive(b"/".join(topic))]
    assert opened == [topic[0] == client_id.encode() and not client_id.startswith("$") and client_id != ""] * 2


# --- rules that cannot be --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["", "a/#/b", "a+", "+b/c", "a#", "##", "x\0", "+%c", "$share/g/a"])
def test_a_filter_that_is_none_is_refused_with_its_text(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="topic filter"):
        everybody(pattern)


def test_an_incomplete_or_misspelt_rule_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="nobody"):
        AccessRule((), ("a",))
    with pytest.raises(ConfigurationError, match="no topic"):
        AccessRule(("*",), ())
    misspelt: Any = ({"access": "write"}, {"effect": "permit"})  # as a configuration file may
    for written in misspelt:
        with pytest.raises(ConfigurationError, match='write "'):
            AccessRule(("*",), ("a",), **written)


@pytest.mark.parametrize(
    ("user", "client_id", "allowed"),
    [
        ("alice", "alice", True),
        ("alice", "alice:1", True),
        ("alice", "alice:", True),
        ("alice", "alicea", False),
        ("alice", "bob", False),
        ("alice", "bob:1", False),
        ("bob", "alice", False),
        (None, "alice", False),
        (None, "", False),
        (None, ":1", False),
        (None, "guest-7", True),
        ("%u", "alice", False),
        ("*", "alice", False),
        ("*", "*:1", True),
    ],
)
def test_client_identifiers_are_bound_to_users(user: str | None, client_id: str, allowed: bool) -> None:
    access = AccessList([], "allow", ["%u", "%u:*", "guest-*"])
    assert access.may_be_called(user, client_id) is allowed
    assert AccessList([], "allow").may_be_called(user, client_id), "without such a list any will do"


@pytest.mark.parametrize("pattern", ["", "*-%u", "a*b"])
def test_a_pattern_for_client_identifiers_that_means_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="client_ids"):
        AccessList([], "allow", [pattern])


def test_partial_subscriptions_are_granted_and_what_may_not_be_read_is_held_back() -> None:
    rules = [everybody("a/secret", effect="deny"), everybody("a/+"), everybody("b/#", effect="deny"), everybody("b/c")]
    strict = AccessList(rules, "deny").for_identity("ann", "c")
    partial = AccessList(rules, "deny", partial_subscriptions=True).for_identity("ann", "c")
    for topic_filter, is_granted in (
        (b"#", True),
        (b"+/x", True),
        (b"a/secret", False),
        (b"b/#", False),
        (b"c/#", False),
    ):
        assert partial.may_subscribe(topic_filter) is is_granted, topic_filter
        assert not strict.may_subscribe(topic_filter)
    assert partial.may_receive(b"a/x")
    assert not partial.may_receive(b"a/secret")
    assert not AccessList(rules, "deny").is_like(AccessList(rules, "deny", partial_subscriptions=True))
