"""Which publications of clients has the foreign broker passed on?  The witness knows, and tells them in time."""

from __future__ import annotations

import random

import pytest

from sterna.interworking.proxy.counters import ProxyCounters
from sterna.interworking.proxy.witness import Sight, Witness


class Publisher:
    def __init__(self) -> None:
        self.times = 0
        self.rooms = 0

    def settled(self) -> None:
        self.times += 1

    def has_room(self) -> None:
        self.rooms += 1


class Scene:
    def __init__(self, window: int = 100) -> None:
        self.counters = ProxyCounters()
        self.witness = Witness(lambda topic: not topic.startswith(b"not/"), self.counters, window)
        self.publisher = Publisher()
        self.fences = 0
        self.witness.want_fence = self._fence_wanted

    def _fence_wanted(self) -> None:
        self.fences += 1

    def publish(self, payload: bytes, topic: bytes = b"t", qos: int = 1, *, retain: bool = False) -> Sight:
        sight = self.witness.published(topic, payload, qos, retain, self.publisher)
        assert sight is not None
        return sight


def test_a_publication_is_settled_when_it_came_in_and_is_in_the_journal() -> None:
    scene = Scene()
    sight = scene.publish(b"x")
    sight.answered()
    assert scene.fences == 1
    assert scene.witness.seen(b"t", b"x", 1, 7) is sight
    assert not sight.is_settled
    scene.witness.safe(7)
    assert sight.was_seen
    assert (scene.publisher.times, scene.counters.witnessed) == (1, 1)
    assert len(scene.witness) == 0


def test_one_that_came_in_before_the_broker_acknowledged_it_needs_no_fence() -> None:
    scene = Scene()
    sight = scene.publish(b"x")
    scene.witness.seen(b"t", b"x", 1, 7)
    sight.answered()
    assert not scene.fences
    assert not scene.witness.needs_fence


def test_one_that_did_not_come_before_a_later_fence_was_refused() -> None:
    scene = Scene()
    forbidden, allowed = scene.publish(b"no"), scene.publish(b"yes")
    forbidden.answered()
    scene.witness.fence_sent(b"1")
    allowed.answered()
    scene.witness.seen(b"t", b"yes", 1, 7)
    scene.witness.fence_back(b"1")
    assert not forbidden.is_settled, "what came before the fence is not in the journal yet, and may be the same message"
    scene.witness.safe(7)
    assert forbidden.is_settled
    assert not forbidden.was_seen
    assert allowed.was_seen
    assert (scene.counters.witnessed, scene.counters.not_witnessed) == (1, 1)


def test_a_fence_that_was_sent_before_the_acknowledgement_says_nothing() -> None:
    scene = Scene()
    sight = scene.publish(b"x")
    scene.witness.fence_sent(b"1")
    sight.answered()
    scene.witness.fence_back(b"1")
    assert not sight.is_settled
    scene.witness.fence_sent(b"2")
    scene.witness.fence_back(b"2")
    assert sight.is_settled


def test_nobody_waits_for_topics_that_are_not_heard() -> None:
    scene = Scene()
    assert scene.witness.published(b"not/heard", b"x", 1, False, scene.publisher) is None


def test_equal_publications_are_counted() -> None:
    scene = Scene()
    sights = [scene.publish(b"x") for _ in range(3)]
    for packet_id in (1, 2, 3):
        assert scene.witness.seen(b"t", b"x", 1, packet_id) is sights[packet_id - 1]
    assert scene.witness.seen(b"t", b"x", 1, 4) is None, "of somebody who does not come through the proxy"
    for packet_id in (1, 2, 3, 4):
        scene.witness.safe(packet_id)
    assert all(sight.was_seen for sight in sights)


def test_the_message_of_a_lost_connection_comes_again() -> None:
    scene = Scene()
    sight = scene.publish(b"x")
    sight.answered()
    scene.witness.seen(b"t", b"x", 1, 7)
    scene.witness.fence_sent(b"1")
    scene.witness.lost()
    scene.witness.fence_back(b"1")
    scene.witness.safe(7)
    assert not sight.is_settled, "neither is of this connection"
    scene.witness.seen(b"t", b"x", 1, 7)
    scene.witness.safe(7)
    assert sight.was_seen


def test_what_is_sent_again_is_asked_after_again() -> None:
    scene = Scene()
    sight = scene.publish(b"x")
    sight.answered()
    scene.witness.fence_sent(b"1")
    sight.interrupted()
    scene.witness.fence_back(b"1")
    assert not sight.is_settled
    sight.answered()
    scene.witness.fence_sent(b"2")
    scene.witness.fence_back(b"2")
    assert sight.is_settled


def test_publishers_wait_while_too_much_is_under_way() -> None:
    scene = Scene(window=2)
    first = scene.publish(b"1")
    exactly = scene.publish(b"2", qos=2)
    assert not scene.witness.is_full, "the broker passes it on when it is released"
    exactly.released()
    assert scene.witness.is_full
    scene.witness.wait_for_room(scene.publisher)
    first.withdraw()
    assert not scene.witness.is_full
    assert scene.publisher.rooms == 1


@pytest.mark.parametrize("seed", range(50))
def test_at_random_every_publication_is_settled_once_and_rightly(seed: int) -> None:
    """A broker that refuses some, passes others on in order, and loses connections now and then."""
    dice = random.Random(seed)
    scene = Scene(window=10_000)
    witness = scene.witness
    sent: list[tuple[Sight, bool]] = []
    queue: list[bytes] = []  # what the broker has yet to pass on; fences begin with #
    inflight: dict[int, bytes] = {}
    number = 0
    for step in range(400):
        act = dice.random()
        if act < 0.4:
            number += 1
            allowed = dice.random() < 0.7
            payload = b"%s%d" % (b"y" if allowed else b"n", number % 5)
            sight = scene.publish(payload)
            sent.append((sight, allowed))
            if allowed:
                queue.append(payload)
            if dice.random() < 0.9:
                sight.answered()
        elif act < 0.5:
            queue.append(b"#%d" % step)
            witness.fence_sent(queue[-1])
        elif act < 0.8 and queue:
            payload = queue.pop(0)
            if payload.startswith(b"#"):
                witness.fence_back(payload)
            else:
                packet_id = 1 + step
                inflight[packet_id] = payload
                witness.seen(b"t", payload, 1, packet_id)
        elif act < 0.95 and inflight:
            witness.safe(packet_id := next(iter(inflight)))
            del inflight[packet_id]
        elif act > 0.98:
            queue = [*inflight.values(), *(payload for payload in queue if not payload.startswith(b"#"))]
            inflight.clear()
            witness.lost()
    for sight, _ in sent:
        if not sight.serial:
            sight.answered()
    queue.append(b"#end")
    witness.fence_sent(b"#end")
    for packet_id, payload in enumerate(queue, 1000):
        if payload.startswith(b"#"):
            witness.fence_back(payload)
        else:
            witness.seen(b"t", payload, 1, packet_id)
            inflight[packet_id] = payload
    for packet_id in list(inflight):
        witness.safe(packet_id)
    assert all(sight.is_settled for sight, _ in sent)
    assert [sight.was_seen for sight, _ in sent] == [allowed for _, allowed in sent]
    assert scene.counters.witnessed == sum(allowed for _, allowed in sent)
    assert len(witness) == 0
