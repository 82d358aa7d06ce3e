"""Leader election with heartbeats, and the tree that they leave behind (section 2.5 of the thesis).

The leader floods a heartbeat per round.  A broker relays each round once; the first from whom it hears a round is its
next hop to the leader.  A broker that hears no round for `TIMEOUT_S` leads itself.  The thesis takes its election from
another paper and gives no algorithm, period or timeout: here the smallest name wins, and a leader counts only through
rounds that are newer than all that were heard of it, so that old rounds never bring a dead one back.

A heartbeat names its sender's parent, so that a broker knows its children.  Relays wait a random moment: all who heard
a heartbeat would otherwise send at once, and CSMA cannot tell.  The order of these moments decides about the next hop.
"""

from __future__ import annotations

from collections.abc import Callable

from sterna.simulation.papers.messages import HOPS_BYTES, NAME_BYTES, Name, PaperMessage
from sterna.simulation.radio.port import RadioPort

PERIOD_S = 1.0
TIMEOUT_S = 3.2
"""Three missed heartbeats, and their way."""
JITTER_S = 0.02


class LeaderHeartbeat(PaperMessage, frozen=True):
    leader: Name
    round: int
    hops: int
    parent: Name | None

    @property
    def field_bytes(self) -> int:
        return 2 * NAME_BYTES + 4 + HOPS_BYTES


class LeaderTree:
    """A broker's place in the tree."""

    def __init__(self, port: RadioPort, migrate: Callable[[Name | None, Name], object]) -> None:
        self.leader = port.name
        self.parent: Name | None = None
        self.hops = 0
        self.children: dict[Name, float] = {}
        """When each was heard last."""
        self.changes = 0
        """How often it has got another parent than the last."""
        self._port = port
        self._migrate = migrate
        self._last_parent: Name | None = None
        self._rounds: dict[Name, int] = {}
        """The newest round of each leader."""
        self._heard_at = 0.0

    def start(self) -> None:
        self._port.after(self._port.random() * PERIOD_S, self._tick)

    def neighbours(self) -> dict[Name, None]:
        found = dict.fromkeys(self.children)
        if self.parent is not None:
            found[self.parent] = None
        return found

    def joined(self, child: Name) -> None:
        """It says that this broker is its parent."""
        self.children[child] = self._port.now

    def heard(self, heartbeat: LeaderHeartbeat, sender: Name) -> None:
        if heartbeat.parent == self._port.name:
            self.children[sender] = self._port.now
        else:
            self.children.pop(sender, None)
        leader = heartbeat.leader
        if leader > self.leader or leader == self._port.name or heartbeat.round <= self._rounds.get(leader, 0):
            return
        self._rounds[leader] = heartbeat.round
        self._heard_at = self._port.now
        self.leader, self.parent, self.hops = leader, sender, heartbeat.hops + 1
        self._port.after(self._port.random() * JITTER_S, self._relay, heartbeat.round)
        if sender != self._last_parent:
            last, self._last_parent = self._last_parent, sender
            self.changes += last is not None
            self._migrate(last, sender)

    def _tick(self) -> None:
        now, name = self._port.now, self._port.name
        self._port.after(PERIOD_S, self._tick)
        for child in [one for one, at in self.children.items() if now - at > TIMEOUT_S]:
            del self.children[child]
        if self.leader != name and now - self._heard_at > TIMEOUT_S:
            self.leader, self.parent, self.hops = name, None, 0
        if self.leader == name:
            self._rounds[name] = self._rounds.get(name, 0) + 1
            self._port.broadcast(LeaderHeartbeat(name, self._rounds[name], 0, None))

    def _relay(self, number: int) -> None:
        if self._rounds.get(self.leader) == number:
            self._port.broadcast(LeaderHeartbeat(self.leader, number, self.hops, self.parent))


class BrokerChoice:
    """A client's broker: of those it hears, one with the fewest hops to the best leader; it stays if that is equal."""

    HEARD_S = 2.2

    def __init__(self, port: RadioPort, connect: Callable[[Name], object], disconnect: Callable[[], object]) -> None:
        self.broker: Name | None = None
        self.changes = 0
        self._port = port
        self._connect = connect
        self._disconnect = disconnect
        self._heard: dict[Name, tuple[Name, int, float]] = {}

    def start(self) -> None:
        self._port.after(self._port.random() * PERIOD_S, self._tick)

    def heard(self, heartbeat: LeaderHeartbeat | None, sender: Name) -> None:
        """None: nothing that could be read."""
        if heartbeat is None:
            return
        self._heard[sender] = (heartbeat.leader, heartbeat.hops, self._port.now)

    def lost(self, broker: Name) -> None:
        """It does not answer; if it is heard again it may be chosen again."""
        self._heard.pop(broker, None)
        if broker == self.broker:
            self.broker = None
            self._disconnect()

    def _tick(self) -> None:
        self._port.after(PERIOD_S, self._tick)
        now = self._port.now
        for name in [one for one, (_, _, at) in self._heard.items() if now - at > self.HEARD_S]:
            del self._heard[name]
        if self.broker is not None and self.broker not in self._heard:
            self.lost(self.broker)
        if not self._heard:
            return
        best = min((leader, hops, name != self.broker, name) for name, (leader, hops, _) in self._heard.items())[-1]
        if best != self.broker:
            self.changes += self.broker is not None
            self.broker = best
            self._connect(best)
