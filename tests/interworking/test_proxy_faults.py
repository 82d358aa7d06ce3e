"""Clients that reach model brokers through nodes, and faults at random: what they were told of is everywhere, once.

A seed repeats a run.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest

from interworking.scene import SETTINGS, Scene
from sterna.simulation.clients import Client, Habits
from sterna.simulation.foreign_broker import KINDS, Quirks
from sterna.simulation.membership import NETWORK
from sterna.simulation.relays import RELAY_PORT

SECONDS = 12.0
SEEDS = int(os.environ.get("STERNA_INTERWORKING_SEEDS", "3"))
#: Brokers that take QoS 2 as such, so that "once" can be asked for.
EXACT = sorted(kind for kind, quirks in KINDS.items() if quirks.qos == 2)


class ProxyScene(Scene):
    """One publisher and one subscriber behind each node, both relayed to its broker."""

    def __init__(self, *quirks: Quirks, seed: int, in_doubt: str = "repeat", only_wanted: bool = False) -> None:
        settings = replace(SETTINGS, mode="proxy", in_doubt=in_doubt, only_wanted=only_wanted)
        super().__init__(*quirks, settings=settings, seed=seed)
        self.relayed: list[Client] = []
        self.readers: list[Client] = []
        for place, one in enumerate(quirks):
            version = 5 if 5 in one.levels and (seed + place) % 2 else 4
            address = f"node{place}:{RELAY_PORT}"
            make = self.world.network, self.world.records
            self.relayed.append(Client(make[0], f"relayed{place}", address, make[1], Habits(version=version), NETWORK))
            reader = Client(make[0], f"reader{place}", address, make[1], Habits(version=4), NETWORK)
            reader.subscribe(b"t/#", 2)
            self.readers.append(reader)

    def begin(self, *, attached: bool = True) -> None:
        super().begin(attached=attached)
        for client in (*self.relayed, *self.readers):
            client.come()
        self.wait(lambda: all(client.is_welcome and not client.is_asking for client in self.readers))

    def rest(self) -> None:
        for machine, broker in zip(self.machines, self.brokers, strict=True):
            machine.boot()
            broker.boot()
        self.settle()
        self.wait(lambda: all(not client.unfinished for client in self.relayed))
        self.run(10.0)
        self.settle()

    def counts(self, name: str) -> Counter[str]:
        return Counter(arrival.identity for arrival in self.world.records.arrivals.get(name, []))


class Weather:
    """Relayed clients publish, and something breaks now and then; nodes and clients only if asked for."""

    def __init__(self, scene: ProxyScene, *, kills_nodes: bool) -> None:
        self._scene = scene
        self._dice = scene.kernel.dice("weather")
        self._until = scene.kernel.now + SECONDS
        self._kills_nodes = kills_nodes

    def begin(self) -> None:
        self._publish()
        self._scene.kernel.after(self._dice.expovariate(1.0), self._break)

    def _publish(self) -> None:
        scene, dice = self._scene, self._dice
        if scene.kernel.now >= self._until:
            return
        place = dice.randrange(len(scene.relayed))
        scene.relayed[place].publish(b"t/r%d" % place, dice.choice((1, 2)))
        scene.publishers[place].publish(b"t/n%d" % place, dice.choice((1, 2)))
        scene.kernel.after(dice.expovariate(20.0), self._publish)

    def _break(self) -> None:
        scene, dice, kernel = self._scene, self._dice, self._scene.kernel
        if kernel.now >= self._until:
            return
        place, what = dice.randrange(len(scene.brokers)), dice.random()
        broker, machine = scene.brokers[place], scene.machines[place]
        if what < 0.3:
            cut = [session.wire for session in broker.sessions.values() if session.wire is not None]
            for wire in cut if dice.random() < 0.5 else cut[: dice.randrange(len(cut) + 1)]:
                wire.cut()
        elif what < 0.4 and self._kills_nodes:
            client = dice.choice((*scene.relayed, *scene.readers))
            client.hang_up()
        elif what < 0.7 and self._kills_nodes:
            machine.kill(power=dice.random() < 0.5)
            kernel.after(dice.random(), machine.boot)
        else:
            broker.kill()
            kernel.after(dice.random(), broker.boot)
        kernel.after(dice.expovariate(1.0), self._break)


def _check(scene: ProxyScene, sides: list[str], *, exact: bool) -> None:
    known = [one for one in scene.world.records.publications.values() if not one.abandoned]
    assert sum(one.publisher.startswith("relayed") for one in known) > 50
    for side in sides:
        counts = scene.counts(side)
        missing = [one.identity for one in known if not counts[one.identity]]
        assert not missing, f"{side}: {len(missing)} of {len(known)} lost: {missing[:5]}"
        twice = [one.identity for one in known if one.qos == 2 and counts[one.identity] > 1]
        assert not exact or not twice, f"{side}: {len(twice)} twice: {twice[:5]}"
    broken = [one for one in scene.world.records.broken if exact or one.claim != "session lost"]
    assert not broken, broken


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_while_brokers_keep_their_sessions_nothing_is_lost_and_nothing_comes_twice_at_qos_2(seed: int) -> None:
    kinds = [replace(KINDS[EXACT[(seed + place) % len(EXACT)]], forgets=False) for place in range(2)]
    scene = ProxyScene(*kinds, seed=seed, only_wanted=seed % 3 > 0)
    scene.begin()
    Weather(scene, kills_nodes=True).begin()
    scene.run(SECONDS + 2.0)
    scene.rest()
    _check(scene, ["node0s", "node1s", "reader0", "reader1"], exact=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_broker_that_forgets_everything_when_it_is_killed_loses_nothing_that_others_were_to_hear(seed: int) -> None:
    """Clients of the node hear what relayed clients were told of.  Readers of the broker that died may miss what it had
    acknowledged; that is its own."""
    kinds = [replace(KINDS[EXACT[(seed + place) % len(EXACT)]], forgets=True) for place in range(2)]
    scene = ProxyScene(*kinds, seed=seed, only_wanted=seed % 3 > 0)
    scene.begin()
    Weather(scene, kills_nodes=bool(seed % 2)).begin()
    scene.run(SECONDS + 2.0)
    scene.rest()
    _check(scene, ["node0s", "node1s"], exact=False)


# -- a fault at each packet of an exchange, in turn --

FAULTS = ("cut", "broker killed", "node killed")


def _exchange(scene: ProxyScene, qos: int) -> None:
    """One message of a relayed client, and one for its reader."""
    scene.relayed[0].publish(b"t/r", qos)
    scene.publishers[0].publish(b"t/n", qos)


def _finish(scene: ProxyScene) -> None:
    scene.run(0.5)
    scene.wait(lambda: scene.brokers[0].up and scene.machines[0].running is not None)
    scene.settle()
    scene.wait(lambda: all(not client.unfinished for client in (*scene.relayed, *scene.readers)))
    scene.settle()


def _quiet_scene(kind: str) -> ProxyScene:
    scene = ProxyScene(replace(KINDS[kind], forgets=False), seed=0)
    scene.begin()
    return scene


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kind", ["mosquitto", "nats"])
def test_nothing_is_lost_or_doubled_whichever_packet_a_fault_hits(kind: str, qos: int, fault: str) -> None:
    """Packets of the relayed clients and of the attachment, both ways, are counted at the broker."""
    scene = _quiet_scene(kind)
    scene.at_packet(-1, lambda: False)
    _exchange(scene, qos)
    scene.run(0.3)
    assert scene.packets >= 10 * qos, "the sessions do not last"
    for number in range(1, scene.packets + 1):
        scene = _quiet_scene(kind)
        _hit(scene, fault, number)
        _exchange(scene, qos)
        _finish(scene)
        for side in ("node0s", "reader0"):
            counts = scene.counts(side)
            where = f"{kind}, QoS {qos}, {fault} at packet {number}, {side}: {counts}"
            assert set(counts) == {"relayed0/1", "node0p/1"}, where
            assert qos < 2 or set(counts.values()) == {1}, where


def _hit(scene: ProxyScene, fault: str, number: int) -> None:
    broker, machine, kernel = scene.brokers[0], scene.machines[0], scene.kernel

    def strike() -> bool:
        if fault == "broker killed":
            kernel.after(0.0, broker.kill)
            kernel.after(1.0, broker.boot)
        elif fault == "node killed":
            kernel.after(0.0, machine.kill)
            kernel.after(1.0, machine.boot)
        return True

    scene.at_packet(number, strike)


@pytest.mark.slow
@pytest.mark.parametrize("comes_back_after", [0.5, 3.0])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kind", ["mosquitto", "nats"])
def test_a_broker_that_forgets_and_its_node_die_together_at_any_packet_and_nothing_is_lost_that_the_client_was_told_of(
    kind: str, qos: int, comes_back_after: float
) -> None:
    """A message in doubt may come twice, and is counted then."""
    number, is_over = 0, False
    while not is_over:
        number += 1
        scene = ProxyScene(replace(KINDS[kind], forgets=True), seed=0)
        scene.begin()
        struck: list[int] = []
        _kill_both(scene, number, comes_back_after, struck)
        _exchange(scene, qos)
        scene.run(0.3)
        is_over = not struck
        _finish(scene)
        known = [one for one in scene.world.records.publications.values() if not one.abandoned]
        counts = scene.counts("node0s")
        where = f"{kind}, QoS {qos}, packet {number}: {counts}"
        assert all(counts[one.identity] for one in known), where
        again = [one.identity for one in known if one.qos == 2 and counts[one.identity] > 1]
        proxy = scene.world_of().proxy
        assert proxy is not None
        assert not again or proxy.counters.in_doubt["repeated"], where
    assert number > 5 * qos, "the exchange has more packets"


def _kill_both(scene: ProxyScene, number: int, comes_back_after: float, struck: list[int]) -> None:
    broker, machine, kernel = scene.brokers[0], scene.machines[0], scene.kernel

    def strike() -> bool:
        struck.append(number)
        for kill, boot in ((broker.kill, broker.boot), (machine.kill, machine.boot)):
            kernel.after(0.0, kill)
            kernel.after(comes_back_after, boot)
        return True

    scene.at_packet(number, strike)


AFTERWARDS = 16
"""Packets after the broker is back: attachment, clients that come back, subscriptions and publications made again."""


@pytest.mark.slow
@pytest.mark.parametrize("qos", [1, 2])
def test_a_broker_forgets_and_then_its_node_dies_at_any_packet_and_clients_have_their_messages_and_subscriptions(
    qos: int,
) -> None:
    """A session that the broker began anew looks like one that it has kept, to a node that died meanwhile."""
    first = 0
    while _exchange_among_two_deaths(first := first + 1, 0, qos):
        for second in range(1, AFTERWARDS + 1):
            _exchange_among_two_deaths(first, second, qos)
    assert first > 5 * qos, "the exchange has more packets"


def _exchange_among_two_deaths(first: int, second: int, qos: int) -> bool:
    """The broker dies at packet `first`, and at packet `second` after its return the node (0: it lives)."""
    scene = ProxyScene(replace(KINDS["mosquitto"], forgets=True), seed=0)
    scene.begin()
    broker, machine, kernel = scene.brokers[0], scene.machines[0], scene.kernel
    struck: list[int] = []

    def node_dies() -> bool:
        kernel.after(0.0, machine.kill)
        kernel.after(0.5, machine.boot)
        return True

    def broker_dies() -> bool:
        struck.append(first)
        kernel.after(0.0, broker.kill)
        kernel.after(0.5, broker.boot)
        if second:
            kernel.after(0.5, lambda: scene.at_packet(second, node_dies))
        return True

    scene.at_packet(first, broker_dies)
    _exchange(scene, qos)
    scene.run(0.3)
    if not struck:
        return False
    scene.run(4.0)
    scene.settle()
    scene.wait(lambda: all(not client.unfinished for client in scene.relayed))
    scene.publishers[0].publish(b"t/later", 1)
    scene.run(1.0)
    scene.settle()
    where = f"QoS {qos}, broker at packet {first}, node at {second}"
    known = {one.identity for one in scene.world.records.publications.values() if not one.abandoned}
    assert known >= {"node0p/1", "node0p/2"}, where
    assert set(scene.counts("node0s")) >= known, where
    assert "node0p/2" in scene.counts("reader0"), f"{where}: the reader is subscribed no longer"
    return True
