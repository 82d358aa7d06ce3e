"""Access rules: the topics that a user may publish to, subscribe to and receive.

Rules are read from the top and the first one that fits decides; if none fits, the list's default does.  Patterns are
compared level by level, and a client id or user name enters a pattern as literal text only: a name that could mean
anything else earns no permission and escapes no prohibition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from sterna.broker.access.identity import FOREIGN_PREFIX, own_name
from sterna.mqtt.topics import CONTROL, SHARE, covers, is_control, matches, overlap, split_share
from sterna.operators.expression import source_of
from sterna.operators.grammar import is_expression
from sterna.vocabulary.errors import ConfigurationError

Access = Literal["publish", "subscribe", "both"]
Effect = Literal["allow", "deny"]
_Levels = tuple[bytes, ...]

EVERYBODY = "*"
ANONYMOUS = "anonymous"


@dataclass(frozen=True, slots=True)
class AccessRule:
    """One line of an access list: these clients, these topics, this access, yes or no."""

    subjects: tuple[str, ...]
    """User names; `*` is everybody, anonymous clients included; `anonymous` is who gave no name."""

    filters: tuple[str, ...]
    """Topic filters; `%c` stands for the client id and `%u` for the user name, anywhere within a level."""

    access: Access = "both"
    effect: Effect = "allow"

    client_ids: tuple[str, ...] = ()
    """The rule holds for these client ids only; empty means any."""

    def __post_init__(self) -> None:
        if not self.subjects:
            raise ConfigurationError('access rule names nobody: list user names, "*" or "anonymous"')
        if not self.filters:
            raise ConfigurationError('access rule names no topic: list topic filters, "#" for all but $ topics')
        if self.access not in ("publish", "subscribe", "both"):
            raise ConfigurationError(f'access {self.access!r}: write "publish", "subscribe" or "both"')
        _check_effect(self.effect, "effect")
        for pattern in self.filters:
            _check_pattern(pattern)

    def concerns(self, user: str | None, client_id: str) -> bool:
        if self.client_ids and client_id not in self.client_ids:
            return False
        if EVERYBODY in self.subjects:
            return True
        # A user who is called "anonymous" must not pass for one without a name.
        return ANONYMOUS in self.subjects if user is None else user != ANONYMOUS and user in self.subjects


class AccessList:
    """The rules of a node, and their default.  Shared by all clients; `for_identity` is asked once per connection."""

    def __init__(
        self,
        rules: Sequence[AccessRule],
        default: Effect,
        client_ids: Sequence[str] = (),
        *,
        partial_subscriptions: bool = False,
        control: Sequence[AccessRule] = (),
    ) -> None:
        """`client_ids`: which identifiers clients may choose; `%u` stands for the user name, `*` at the end for
        anything.  Empty: any.  `partial_subscriptions`: a filter is granted if any part of it may be read.
        `control`: the rules of control topics, about which the others say nothing; their default is to deny."""
        _check_effect(default, "default")
        for pattern in client_ids:
            check_client_pattern(pattern)
        self._rules = tuple(rules)
        self._spelled = [(rule, _Spelled(rule)) for rule in rules]
        self._default = default
        self._client_ids = tuple(client_ids)
        self._partial_subscriptions = partial_subscriptions
        self._control = AccessList(control, "deny") if control else None

    def preceded_by(self, rules: Sequence[AccessRule]) -> AccessList:
        """This list with other rules before its own."""
        if not rules:
            return self
        preceded = AccessList(
            (*rules, *self._rules),
            self._default,
            self._client_ids,
            partial_subscriptions=self._partial_subscriptions,
        )
        preceded._control = self._control
        return preceded

    @property
    def rules(self) -> tuple[AccessRule, ...]:
        return self._rules

    @property
    def default(self) -> Effect:
        return self._default

    def may_be_called(self, user: str | None, client_id: str) -> bool:
        """May this user's client have this identifier?"""
        return not self._client_ids or any(_is_called(pattern, user, client_id) for pattern in self._client_ids)

    def is_like(self, other: AccessList) -> bool:
        """Whether the other one says the same of everybody."""
        return self._said == other._said

    @property
    def _said(self) -> tuple[object, ...]:
        control = None if self._control is None else self._control._said
        return self._rules, self._default, self._client_ids, self._partial_subscriptions, control

    def __len__(self) -> int:
        return len(self._rules)

    def for_identity(self, user: str | None, client_id: str) -> Permissions:
        if client_id.startswith(FOREIGN_PREFIX):
            return UNRESTRICTED  # the filters of [interworking] say what a foreign broker may have
        client_id = own_name(client_id)
        rules = [(rule, spelled) for rule, spelled in self._spelled if rule.concerns(user, client_id)]
        default = self._default == "allow"
        publish = [spelled for rule, spelled in rules if rule.access != "subscribe"]
        subscribe = [spelled for rule, spelled in rules if rule.access != "publish"]
        return Permissions(
            _spell_out(publish, default, user, client_id),
            _spell_out(subscribe, default, user, client_id),
            partial_subscriptions=self._partial_subscriptions,
            control=None if self._control is None else self._control.for_identity(user, client_id),
        )

    def explain(self, user: str | None, client_id: str, topic: bytes, access: Literal["publish", "subscribe"]) -> str:
        """Why this may not be published to, or this filter not be subscribed to, for people."""
        if access == "subscribe" and (shared := split_share(topic) if topic.startswith(SHARE) else None):
            topic = shared[1]
        is_computed = access == "subscribe" and is_expression(topic)
        if is_control(source_of(topic) if is_computed else topic):
            return f"{CONTROL.decode()} is for those that [adaptation] of the node names, at QoS 0 and not retained"
        levels = (source_of(topic) if is_computed else topic).split(b"/")
        for number, rule in enumerate(self._rules, start=1):
            if rule.access not in (access, "both") or not rule.concerns(user, client_id):
                continue
            for pattern in rule.filters:
                if user is None and "%u" in pattern:
                    continue
                allows = rule.effect == "allow"
                if _is_unspeakable(pattern, user, client_id):
                    if allows:
                        continue
                    return f"rule {number} denies {pattern}, which may be anything for such a name"
                spelled = _substitute(pattern, user or "", client_id)
                fits = matches(spelled, levels) if access == "publish" else covers(spelled, levels)
                if fits or (is_computed and not allows and overlap(spelled, levels)):
                    return f"rule {number} {'allows' if allows else 'denies'} {pattern}"
        return f"no rule allows it, and the default is to {self._default}"


class Permissions:
    """The rights of one identity.  Immutable: answers may be kept for as long as the access list is."""

    __slots__ = ("_control", "_partial_subscriptions", "_publish", "_subscribe", "unrestricted")

    def __init__(
        self,
        publish: _Verdicts,
        subscribe: _Verdicts,
        *,
        partial_subscriptions: bool = False,
        control: Permissions | None = None,
    ) -> None:
        self._publish = publish
        self._subscribe = subscribe
        #: Rights on control topics, whatever the rest allows; None: none.
        self._control = control
        self._partial_subscriptions = partial_subscriptions
        #: Nothing to check at all: the data path asks this once and then no more.
        self.unrestricted = publish.allow_all and subscribe.allow_all

    def may_publish(self, topic: bytes) -> bool:
        if is_control(topic):
            return self._control is not None and self._control._publish.on_topic(topic)
        return self._publish.on_topic(topic)

    def may_receive(self, topic: bytes) -> bool:
        if is_expression(topic):
            return self._subscribe.on_all_of(source_of(topic))
        if is_control(topic):
            return self._control is not None and self._control._subscribe.on_topic(topic)
        return self._subscribe.on_topic(topic)

    @property
    def controls(self) -> bool:
        """May it touch any control topic?"""
        return self._control is not None and bool(self._control._publish or self._control._subscribe)

    @property
    def reading(self) -> tuple[list[tuple[str, bool]], bool] | None:
        """Patterns in order, each with whether topics that match it may be read, and what holds of all others; None if
        everything may be."""
        return None if self._subscribe.allow_all else self._subscribe.spelled_out()

    def may_subscribe(self, topic_filter: bytes) -> bool:
        """Whether the subscription may stand (`$share/group/` already taken off).

        It is granted or refused by the first rule that covers the whole filter.  A prohibition that covers a part of
        it does not refuse it: those topics are held back one by one with `may_receive`.  A result cannot be held back
        in part, so an expression is granted only if nothing it is made of is forbidden.  With partial subscriptions
        a filter is granted as soon as some topic of it may be read.
        """
        if is_expression(topic_filter):
            source = source_of(topic_filter)
            return not is_control(source) and self._subscribe.on_all_of(source)
        if is_control(topic_filter):
            return self._control is not None and self._control._subscribe.on_filter(topic_filter)
        if self._partial_subscriptions:
            return self._subscribe.on_some_of(topic_filter)
        return self._subscribe.on_filter(topic_filter)


class _Verdicts:
    """Patterns in order, each with its verdict, for one identity and one kind of access."""

    __slots__ = ("_default", "_patterns", "allow_all")

    def __init__(self, patterns: Sequence[tuple[_Levels, bool]], default: bool) -> None:
        # Patterns that all say what the default says decide nothing.
        self._patterns = tuple(patterns) if any(verdict != default for _, verdict in patterns) else ()
        self._default = default
        self.allow_all = default and not self._patterns

    def __bool__(self) -> bool:
        """Is anything allowed?"""
        return self._default or bool(self._patterns)

    def spelled_out(self) -> tuple[list[tuple[str, bool]], bool]:
        return [(b"/".join(pattern).decode(), verdict) for pattern, verdict in self._patterns], self._default

    def on_topic(self, topic: bytes) -> bool:
        if not self._patterns:
            return self._default
        levels = topic.split(b"/")
        for pattern, verdict in self._patterns:
            if matches(pattern, levels):
                return verdict
        return self._default

    def on_all_of(self, topic_filter: bytes) -> bool:
        """Whether every topic the filter can match is allowed."""
        levels = topic_filter.split(b"/")
        for pattern, verdict in self._patterns:
            if covers(pattern, levels):
                return verdict
            if not verdict and overlap(pattern, levels):
                return False
        return self._default

    def on_some_of(self, topic_filter: bytes) -> bool:
        """Whether some topic the filter can match is allowed, as far as single patterns tell."""
        levels = topic_filter.split(b"/")
        for pattern, verdict in self._patterns:
            if verdict and overlap(pattern, levels):
                return True
            if not verdict and covers(pattern, levels):
                return False
        return self._default

    def on_filter(self, topic_filter: bytes) -> bool:
        levels = topic_filter.split(b"/")
        for pattern, verdict in self._patterns:
            if covers(pattern, levels):
                return verdict
        return self._default


class _Spelled:
    """A rule's filters with its verdict; those in which no name stands are taken apart once for all clients."""

    __slots__ = ("allows", "patterns")

    def __init__(self, rule: AccessRule) -> None:
        self.allows = rule.effect == "allow"
        self.patterns = [
            (pattern, None if "%c" in pattern or "%u" in pattern else (_substitute(pattern, "", ""), self.allows))
            for pattern in rule.filters
        ]


def _spell_out(rules: Iterable[_Spelled], default: bool, user: str | None, client_id: str) -> _Verdicts:
    """Put the identity into the rules' patterns."""
    patterns: list[tuple[_Levels, bool]] = []
    for rule in rules:
        allow = rule.allows
        for pattern, verdict in rule.patterns:
            if verdict is not None:
                patterns.append(verdict)
                continue
            if user is None and "%u" in pattern:
                continue  # it speaks of users, and there is none
            if _is_unspeakable(pattern, user, client_id):
                if allow:
                    continue
                # Forbidden topics cannot be told from the rest, so all that was not allowed before is forbidden.
                return _Verdicts(patterns, default=False)
            patterns.append((_substitute(pattern, user or "", client_id), allow))
    return _Verdicts(patterns, default)


def _is_unspeakable(pattern: str, user: str | None, client_id: str) -> bool:
    """Whether a name the pattern asks for cannot stand in it as part of one ordinary level."""
    names = [name for mark, name in (("%c", client_id), ("%u", user)) if mark in pattern]
    # A leading `$` would turn the pattern `%c/#` of a client called "$SYS" into the node's own topics.
    return any(not name or name.startswith("$") or not set("/+#\0").isdisjoint(name) for name in names)


def _substitute(pattern: str, user: str, client_id: str) -> _Levels:
    # Split at `%c` first, so that `%u` or `%c` inside a name is never taken for a mark.
    text = client_id.join(part.replace("%u", user) for part in pattern.split("%c"))
    return tuple(text.encode().split(b"/"))


def _is_called(pattern: str, user: str | None, client_id: str) -> bool:
    if user is None and "%u" in pattern:
        return False  # it speaks of users, and there is none
    is_open = pattern.endswith("*")
    name = pattern.removesuffix("*").replace("%u", user or "")
    return client_id.startswith(name) if is_open else client_id == name


def check_client_pattern(pattern: str) -> None:
    if not pattern or "*" in pattern[:-1]:
        text = f"client identifier {pattern!r} in client_ids"
        raise ConfigurationError(f"{text}: it must not be empty, and `*` stands at its end only")


def _check_effect(effect: str, what: str) -> None:
    if effect not in ("allow", "deny"):
        raise ConfigurationError(f'{what} {effect!r}: write "allow" or "deny"')


def _check_pattern(pattern: str) -> None:
    levels = pattern.split("/")
    if not pattern or "\0" in pattern:
        raise ConfigurationError(f"topic filter {pattern!r} in an access rule: it must not be empty or contain U+0000")
    if levels[0] == "$share":
        raise ConfigurationError(f"topic filter {pattern!r} in an access rule: leave out `$share/group/`")
    if "#" in "/".join(levels[:-1]) or any(len(level) > 1 and ("+" in level or "#" in level) for level in levels):
        raise ConfigurationError(
            f"topic filter {pattern!r} in an access rule: `+` and `#` stand for whole levels, `#` only for the last"
        )


#: Of sessions that the node itself opens.
UNRESTRICTED = Permissions(_Verdicts((), default=True), _Verdicts((), default=True))
