"""Another node of this network reaches the same foreign broker: the one with the greater name stands by.

It only watches then.  When no fence of a node with a smaller name has come for three intervals, it is alone.
"""

from __future__ import annotations

from collections.abc import Callable

from sterna.interworking import fences
from sterna.interworking.abilities import Abilities
from sterna.interworking.ports import ForeignWorld
from sterna.interworking.probe import Caller
from sterna.interworking.settings import InterworkingSettings
from sterna.interworking.timers import NamedTimers
from sterna.interworking.watch import DoubleWatch
from sterna.mqtt import client_packets as encode
from sterna.mqtt.packets import MQTT_5


class StandBy:
    def __init__(
        self,
        settings: InterworkingSettings,
        broker: str,
        node: str,
        world: ForeignWorld,
        known: fences.Fences,
        caller: Caller,
        alone: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        """`caller`: under which name the broker is watched.  `alone`: nobody else is there any more.  `failed`: the
        broker cannot be watched."""
        self._settings = settings
        self._broker, self._node = broker, node
        self._world = world
        self._fences = known
        self._caller = caller
        self._alone = alone
        self._failed = failed
        self._timers = NamedTimers(world)
        self._watch: DoubleWatch | None = None
        #: Nodes that were named already.
        self._said: set[str] = set()

    @property
    def absent_s(self) -> float:
        """A node whose fence has not come for so long is gone."""
        return fences.MISSING_MAX * self._settings.fence_s

    def others(self) -> list[str]:
        """Other nodes that reach the same broker."""
        return self._fences.recent_others(self._world.now - self.absent_s)

    def is_first(self, other: str) -> bool:
        """Does this node stay when it has met that one?"""
        stands_by = other < self._node
        if other not in self._said:
            self._said.add(other)
            who = "this node stands by" if stands_by else f"node {other} stands by"
            reason = f"node {other} is attached to the same broker, or to one that is bridged to it: {who}"
            self._world.report("broker attached twice", {"broker": self._broker, "other": other, "reason": reason})
        return not stands_by

    def begin(self, abilities: Abilities, *, relays: bool) -> None:
        """`relays`: it lets clients through to the broker all the same, and the other node is to know."""
        self._watch = DoubleWatch(
            self._world,
            self._caller,
            abilities.level if abilities.version == MQTT_5 else abilities.version,
            self._heard,
            self._failed,
            self._fences.apart if relays else None,
            self._settings.fence_s,
        )
        self._world.dial(self._watch)
        self._timers.after("alone", self.absent_s, self._look)

    def end(self, farewell: bytes) -> None:
        self._timers.cancel_all()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close(farewell)

    def _heard(self, fence: fences.Fence) -> None:
        self._fences.heard_other(fence, self._world.now)

    def _look(self) -> None:
        if any(other < self._node for other in self.others()):
            self._timers.after("alone", self._settings.fence_s, self._look)
            return
        self._said.clear()
        self._world.report("no longer standing by", {"broker": self._broker})
        self.end(encode.DISCONNECT_BYTES)
        self._alone()
