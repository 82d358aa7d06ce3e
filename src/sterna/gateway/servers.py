"""The nodes a gateway knows, what it has learned about each, and which one to try next."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from sterna.gateway.settings import Patience
from sterna.mqtt.reasons import Reason
from sterna.overlay.neighbours import checked_address
from sterna.vocabulary.errors import ConfigurationError, ProtocolError

#: A node that could not be reached is not tried for so long, if there are others.
AVOIDED_S = 1.0
#: A node that hung up on HELLO is spoken to as any broker for so long.
PLAIN_S = 60.0
#: Nodes about which something is remembered; a redirection may name any.
KNOWN_MAX = 1024
#: How often the pause before the next try is doubled.
DOUBLINGS_MAX = 16


class Servers:
    def __init__(
        self,
        nodes: list[str],
        patience: Patience,
        rng: Random,
        *,
        control: bool = True,
        references: Sequence[str] = (),
    ) -> None:
        """`references`: hosts that nodes may send clients to, besides those of the nodes; `*.` stands for any name
        below the rest, `*` for every host."""
        assert nodes, "a gateway without nodes"
        self.nodes = nodes
        self._configured = tuple(nodes)
        self._hosts = frozenset(host_of(node) for node in nodes)
        self._references = tuple(pattern.lower() for pattern in references)
        self._patience = patience
        self._rng = rng
        self._control = control
        self._avoided: dict[str, float] = {}
        self._plain: dict[str, float] = {}

    def may_follow(self, server: str) -> bool:
        """May clients be taken there, with their passwords, because a node says so?"""
        host = host_of(server)
        return host in self._hosts or any(_is_meant(pattern, host) for pattern in self._references)

    def prefer(self, nearest: Sequence[str]) -> None:
        """These are near, the nearest first; those of them that clients may be taken to come before the others."""
        near = [server for server in nearest if self.may_follow(server)]
        self.nodes = [*dict.fromkeys([*near, *self._configured])]

    def order(self, current: str | None) -> list[str]:
        """The nodes in the order in which they are tried: the present one, those after it in the list, those before."""
        if current is None:
            return self.nodes
        if current not in self.nodes:
            return [current, *self.nodes]
        place = self.nodes.index(current)
        return self.nodes[place:] + self.nodes[:place]

    def choose(self, current: str | None, attempt: int, now: float) -> str:
        """Whom to try at the n-th attempt in a row, counted from 0."""
        order = self.order(current)
        turned = order[attempt % len(order) :] + order[: attempt % len(order)]
        return next((server for server in turned if self._avoided.get(server, 0.0) <= now), turned[0])

    def pause(self, current: str | None, attempt: int) -> float:
        """How long to wait before the n-th attempt in a row: all nodes once, then all again after a longer pause."""
        rounds = attempt // len(self.order(current))
        patience = self._patience
        longest = min(patience.retry_s * 2.0 ** min(rounds, DOUBLINGS_MAX), patience.retry_max_s)
        is_first_of_round = attempt % len(self.order(current)) == 0
        return longest * self._rng.uniform(0.5, 1.0) if is_first_of_round else 0.0

    def failed(self, server: str, now: float) -> None:
        if len(self._avoided) >= KNOWN_MAX:
            self._avoided.clear()
        self._avoided[server] = now + AVOIDED_S

    def reached(self, server: str) -> None:
        self._avoided.pop(server, None)

    def knows_gateways(self, server: str, now: float) -> bool:
        return self._control and self._plain.get(server, 0.0) <= now

    def is_plain(self, server: str, now: float) -> None:
        """It hung up on HELLO: presumably it is a broker that knows no gateways."""
        if len(self._plain) >= KNOWN_MAX:
            self._plain.clear()
        self._plain[server] = now + PLAIN_S


def host_of(address: str) -> str:
    return address.rpartition(":")[0].lower().rstrip(".")


def _is_meant(pattern: str, host: str) -> bool:
    if pattern == "*":
        return True
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def checked_pattern(pattern: str) -> str:
    """A host, or `*.` and a domain; else a ConfigurationError that says what to change."""
    rest = pattern.removeprefix("*.") if pattern != "*" else "any"
    is_host = rest and "*" not in rest and not any(character.isspace() for character in rest)
    if not is_host or (":" in rest and not rest.startswith("[")):
        raise ConfigurationError(f'{pattern!r} names no hosts: write "node.example.org", "*.example.org" or "*"')
    return pattern


def reference(text: str) -> str:
    """The first server of a Server Reference (they are separated by spaces), or a ProtocolError."""
    first = text.split(" ", 1)[0]
    try:
        return checked_address(first)
    except ConfigurationError as problem:
        raise ProtocolError(Reason.PROTOCOL_ERROR, f"sent to no usable server: {problem}") from None
