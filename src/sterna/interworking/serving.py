"""The subscriptions of the foreign broker's session at our own broker: what goes there.

That is `to_broker`, or, with `only_wanted`, what clients behind the proxy have subscribed to there.  New filters are
subscribed to at once, and SUBACK of our own broker means that all nodes know of them.  Those that nobody wants any more
go with a later fence, so that clients that come and go cost the network little.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sterna.interworking.crossing import CrossingTopics
from sterna.interworking.own_side import OwnSide
from sterna.interworking.ports import ForeignWorld, OwnBroker
from sterna.interworking.proxy.interest import Interest
from sterna.mqtt import client_packets as encode
from sterna.mqtt.topics import covers, levels_of


class Serving:
    def __init__(
        self,
        world: ForeignWorld,
        own: OwnBroker,
        topics: CrossingTopics,
        always: list[bytes],
        interest: Interest | None,
        is_shared: Callable[[], bool],
        new_wanted: Callable[[list[bytes]], None],
    ) -> None:
        """`always`: filters besides those of topics.  `interest`: what clients of the broker want, if only that is to
        go there.  `is_shared`: other nodes relay clients to the same broker, and nobody knows what they want.
        `new_wanted`: clients want these, too, from now on."""
        self._world = world
        self._own = own
        self._topics = topics
        self._always = always
        self._interest = interest
        self._is_shared = is_shared
        self._new_wanted = new_wanted
        self._side: OwnSide | None = None
        self._qos = 0
        self._is_due = False
        if interest is not None:
            interest.changed = self._changed

    def begin(self, side: OwnSide, qos: int) -> bool:
        """Messages flow from here on; False if our own broker knew all filters from before."""
        self._side, self._qos = side, qos
        missing = self._serve(prune=True)
        if self._interest is not None and not missing:
            self._interest.known()
        return bool(missing)

    def end(self) -> None:
        self._side = None

    def nobody_waits(self) -> None:
        """Another node serves the broker."""
        if self._interest is not None:
            self._interest.known()

    def fence_sent(self) -> None:
        """Some time has passed."""
        if self._interest is not None and self._side is not None:
            self._serve(prune=True)

    def subscribed(self) -> None:
        """Our own broker has answered everything."""
        if self._interest is not None and not self._is_due:
            self._interest.known()

    def view(self) -> dict[str, Any]:
        """For the admin port."""
        if self._interest is None:
            return {}
        return {"wanted": [one.decode(errors="replace") for one in sorted(self._wanted())]}

    def _changed(self) -> None:
        assert self._interest is not None
        self._interest.is_being_told = True
        if not self._is_due:
            self._is_due = True
            self._world.later(0.0, self._follow)

    def _follow(self) -> None:
        self._is_due = False
        if self._side is None or self._interest is None:
            return  # `begin` will
        if missing := self._serve(prune=False):
            self._new_wanted(missing)
        elif not self._side.is_asking:
            self._interest.known()

    def _wanted(self) -> list[bytes]:
        if self._interest is None or self._is_shared():
            return self._topics.to_broker
        return self._interest.filters()

    def _serve(self, *, prune: bool) -> list[bytes]:
        """The filters that our own broker is asked for."""
        side = self._side
        assert side is not None
        wanted = dict.fromkeys((*self._always, *self._wanted()))
        own = self._own.filters()
        options = self._qos | encode.NO_LOCAL | encode.RETAIN_AS_PUBLISHED | encode.RETAINED_NEVER
        kept = [levels_of(one) for one in own if one in wanted and own[one] == options & 3]
        missing: list[bytes] = []
        for one in sorted(wanted, key=_breadth):
            levels = levels_of(one)
            if one in self._always:
                is_there = own.get(one) == options & 3
            else:
                is_there = own.get(one) == options & 3 or any(covers(other, levels) for other in kept)
            if not is_there:
                missing.append(one)
                kept.append(levels)
        if missing:
            side.subscribe([(one, options) for one in missing])
        if prune and (superfluous := [one for one in own if one not in wanted]):
            side.unsubscribe(superfluous)
        return missing


def _breadth(topic_filter: bytes) -> tuple[bool, int]:
    """Those first that may cover others."""
    return not topic_filter.endswith(b"#"), topic_filter.count(b"/")
