"""Messages reach readers that never meet their origin: a third node carries them."""

from __future__ import annotations

import pytest

from sterna.routing.strategy import RoutingSettings
from sterna.runtime.links.network_view import NetworkView, view_of
from sterna.simulation.chaos import Chaos, StormPlan
from sterna.simulation.checkers import check_delivery
from sterna.simulation.clients import Client, Habits
from sterna.simulation.faults import KINDS
from sterna.simulation.machine import SimulatedMachine
from sterna.simulation.membership import NETWORK, members
from sterna.simulation.reach import MapPosition, Reach
from sterna.simulation.records import Violation
from sterna.simulation.world import new_world

BASE, FAR = MapPosition(0, 0), MapPosition(1000, 0)
AT_BASE, AT_FAR = MapPosition(50, 0), MapPosition(950, 0)


class Bases:
    """An origin and a reader far apart, and a carrier between them."""

    def __init__(self, carry: str, seed: int = 1, **routing: float) -> None:
        self.scene = new_world(seed)
        names = ["origin", "carrier", "reader"]
        settings = RoutingSettings(carry=carry, **routing)  # type: ignore[arg-type]
        joined = members(names, "mobile", "mobile", self.scene.kernel.dice("members"), routing=settings)
        self.machines = {name: self.scene.add_machine(name, membership=joined[name]) for name in names}
        self.reach = Reach(self.scene.network, names)
        self.reach.stand({"origin": BASE, "reader": FAR, "carrier": AT_BASE})
        self.publisher = self.client("p", self.machines["origin"])
        self.subscriber = self.client("s", self.machines["reader"])
        self.subscriber.subscribe(b"t/#", 2)
        for machine in self.machines.values():
            machine.boot()
        for client in self.scene.clients:
            client.come()
        self.scene.run(5.0)

    def client(self, name: str, machine: SimulatedMachine) -> Client:
        return self.scene.add_client(name, machine, Habits(window=5), NETWORK)

    def publish(self, count: int) -> None:
        for number in range(count):
            self.publisher.publish(b"t/%d" % (number % 3), 1 + number % 2, retain=False)
            self.scene.run(0.2)
        self.scene.run(3.0)

    def carrier_goes(self, place: MapPosition) -> None:
        self.reach.stand({"carrier": place})
        self.scene.run(15.0)

    def arrived(self) -> int:
        return len(self.scene.records.arrivals.get("s", []))

    def check(self) -> list[Violation]:
        return check_delivery(self.scene.records)


def test_a_reader_that_never_meets_the_origin_gets_everything_once() -> None:
    bases = Bases("all")
    bases.publish(30)
    assert bases.arrived() == 0
    bases.carrier_goes(AT_FAR)
    assert bases.arrived() == 30
    for _ in range(2):
        bases.carrier_goes(AT_BASE)
        bases.publish(10)
        bases.carrier_goes(AT_FAR)
    assert bases.arrived() == 50
    bases.carrier_goes(AT_BASE)
    bases.carrier_goes(AT_FAR)
    assert bases.check() == []


def test_the_origin_may_be_switched_off_before_the_reader_comes() -> None:
    bases = Bases("all")
    bases.publish(20)
    bases.machines["origin"].kill(power=True)
    bases.carrier_goes(AT_FAR)
    assert bases.arrived() == 20


def test_without_carriers_it_waits_for_the_origin() -> None:
    bases = Bases("none")
    bases.publish(10)
    bases.carrier_goes(AT_FAR)
    assert bases.arrived() == 0
    bases.reach.stand({"reader": MapPosition(20, 0), "carrier": AT_BASE})
    bases.scene.run(15.0)
    assert bases.arrived() == 10
    assert bases.check() == []


def test_a_parked_reader_is_carried_for_by_the_node_it_left() -> None:
    bases = Bases("parked")
    bases.reach.stand({"carrier": MapPosition(90, 0), "reader": MapPosition(180, 0)})
    bases.scene.run(10.0)
    bases.publish(10)
    assert bases.arrived() == 10
    bases.reach.stand({"reader": FAR})
    bases.scene.run(10.0)
    bases.publish(20)
    assert bases.arrived() == 10
    bases.machines["origin"].kill(power=True)
    bases.scene.run(5.0)
    bases.carrier_goes(AT_FAR)
    assert bases.arrived() == 30


def _left_alone(bases: Bases) -> None:
    """The reader was served through the carrier, and has gone far away from it."""
    bases.reach.stand({"carrier": MapPosition(90, 0), "reader": MapPosition(180, 0)})
    bases.scene.run(10.0)
    bases.publish(6)
    bases.reach.stand({"reader": FAR})
    bases.scene.run(10.0)


def test_a_carrier_does_not_answer_for_filters_that_it_has_not_kept() -> None:
    """The reader subscribes while it is away: what the carrier has is not all that the reader wants."""
    bases = Bases("parked")
    _left_alone(bases)
    bases.subscriber.subscribe(b"new/#", 2)
    bases.scene.run(5.0)
    for number in range(6):
        bases.publisher.publish(b"new/x", 1 + number % 2, retain=False)
        bases.publisher.publish(b"t/1", 1 + number % 2, retain=False)
    bases.scene.run(5.0)
    bases.carrier_goes(MapPosition(500, 0))
    assert _view(bases, "reader").gaps == {}  # it has not heard of any
    bases.carrier_goes(AT_FAR)
    assert bases.arrived() == 6
    gap = _view(bases, "reader").gaps["origin"]
    assert gap["messages_at_most"] == 12
    assert gap["age_s"] > 30
    bases.reach.stand({"reader": MapPosition(20, 0), "carrier": AT_BASE})
    bases.scene.run(40.0)
    assert bases.arrived() == 18
    assert _view(bases, "reader").gaps == {}
    assert bases.check() == []


def test_a_carrier_that_has_not_noticed_that_the_origin_is_gone_keeps_what_it_carries() -> None:
    bases = Bases("parked")
    _left_alone(bases)
    bases.scene.run(5.0)  # with these pauses it hears the reader before it misses the origin
    bases.publish(6)
    bases.scene.run(2.0)
    bases.carrier_goes(AT_FAR)  # from one to the other at once
    assert bases.arrived() == 12
    bases.reach.stand({"reader": MapPosition(20, 0), "carrier": AT_BASE})
    bases.scene.run(60.0)
    carrying = _view(bases, "carrier").carried
    assert (carrying["messages"], carrying["for"]) == (0, [])  # nobody is away for long
    assert bases.check() == []


def test_what_is_retained_is_carried_for_all_topics() -> None:
    """Every node gets those; a reader would take them for read otherwise."""
    bases = Bases("parked")
    _left_alone(bases)
    bases.publisher.publish(b"other/x", 1, retain=True)
    bases.publish(3)
    bases.machines["origin"].kill(power=True)
    bases.scene.run(5.0)
    bases.carrier_goes(AT_FAR)
    assert bases.arrived() == 9
    later = bases.client("later", bases.machines["reader"])
    later.subscribe(b"other/#", 1)
    later.come()
    bases.scene.run(2.0)
    assert len(bases.scene.records.arrivals["later"]) == 1


def _view(bases: Bases, name: str) -> NetworkView:
    running = bases.machines[name].running
    assert running is not None
    assert running.node.network is not None
    return view_of(running.node.network, {}, tables=False)


def test_messages_that_a_carrier_had_to_drop_are_counted_for_those_who_wanted_them() -> None:
    bases = Bases("parked", carry_age_s=8.0)
    other = bases.client("other", bases.machines["carrier"])
    other.subscribe(b"#", 1)
    other.come()
    _left_alone(bases)
    bases.publish(10)
    bases.scene.run(20.0)
    bases.publish(1)
    carried = _view(bases, "carrier").carried
    assert (carried["messages"], carried["evicted"], carried["dropped_for"]) == (1, 10, {"reader": 10})


def test_of_two_that_were_carried_for_the_one_that_came_back_and_left_again_loses_nothing() -> None:
    """The carrier keeps for the other one all the time; for this one there is a gap in what it has kept."""
    scene = new_world(1)
    names = ["origin", "carrier", "x", "y"]
    settings = RoutingSettings(carry="parked")
    joined = members(names, "mobile", "mobile", scene.kernel.dice("members"), routing=settings)
    machines = {name: scene.add_machine(name, membership=joined[name]) for name in names}
    reach = Reach(scene.network, names)
    near_x, near_y = MapPosition(180, 0), MapPosition(150, 60)
    reach.stand({"origin": BASE, "carrier": MapPosition(90, 0), "x": near_x, "y": near_y})
    publisher = scene.add_client("p", machines["origin"], Habits(window=5), NETWORK)
    for name in "xy":
        scene.add_client(f"at-{name}", machines[name], Habits(window=5), NETWORK).subscribe(b"%b/#" % name.encode(), 2)
    for machine in machines.values():
        machine.boot()
    for client in scene.clients:
        client.come()
    scene.run(15.0)

    def stand(places: dict[str, MapPosition], seconds: float, publications: int) -> int:
        reach.stand(places)
        scene.run(seconds)
        for _ in range(publications):
            for name in (b"x", b"y"):
                publisher.publish(name + b"/1", 1, retain=False)
            scene.run(0.2)
        scene.run(4.0)
        return len(scene.records.arrivals.get("at-y", []))

    stand({"x": MapPosition(0, 5000)}, 10, 2)
    stand({"y": MapPosition(5000, 0)}, 10, 2)
    assert stand({"y": near_y}, 10, 1) == 5
    assert stand({"y": MapPosition(-80, 0)}, 40, 1) == 6  # reached by another way: no longer kept for
    assert stand({"y": MapPosition(5000, 0)}, 15, 4) == 6
    assert stand({"carrier": MapPosition(4950, 0)}, 20, 0) == 6
    assert stand({"carrier": MapPosition(90, 0), "y": near_y, "x": near_x}, 40, 0) == 10
    assert check_delivery(scene.records) == []


def test_a_carrier_that_has_not_enough_does_not_keep_a_reader_from_another() -> None:
    scene = new_world(1)
    names = ["origin", "a-late", "carrier", "reader"]
    settings = RoutingSettings(carry="all")
    joined = members(names, "mobile", "mobile", scene.kernel.dice("members"), routing=settings)
    machines = {name: scene.add_machine(name, membership=joined[name]) for name in names}
    reach = Reach(scene.network, names)
    reach.stand({"origin": BASE, "a-late": MapPosition(0, 50), "carrier": AT_BASE, "reader": FAR})
    publisher = scene.add_client("p", machines["origin"], Habits(window=5), NETWORK)
    scene.add_client("s", machines["reader"], Habits(window=5), NETWORK).subscribe(b"t/#", 2)
    for name in ("origin", "carrier", "reader"):
        machines[name].boot()
    for client in scene.clients:
        client.come()
    scene.run(5.0)
    for _ in range(10):
        publisher.publish(b"t/1", 1, retain=False)
    scene.run(20.0)
    machines["a-late"].boot()  # it has not read what was before it, and the reader was there before it
    scene.run(10.0)
    publisher.publish(b"t/1", 1, retain=False)
    scene.run(5.0)
    reach.stand({"a-late": MapPosition(1000, 50)})
    scene.run(20.0)
    assert "s" not in scene.records.arrivals
    reach.stand({"carrier": AT_FAR})
    scene.run(20.0)
    assert len(scene.records.arrivals["s"]) == 11
    reach.stand({"reader": MapPosition(20, 0)})
    scene.run(20.0)
    assert check_delivery(scene.records) == []


def test_what_carriers_had_to_drop_waits_for_the_origin_and_is_counted() -> None:
    bases = Bases("all", carry_bytes=64 * 1024, carry_age_s=8.0)
    bases.publish(10)
    bases.scene.run(20.0)
    bases.publish(5)
    bases.carrier_goes(AT_FAR)
    running = bases.machines["carrier"].running
    assert running is not None
    assert running.node.network is not None
    assert running.node.network.carrying.messages.evicted >= 10
    assert bases.arrived() == 0  # nothing out of order: the gap waits
    bases.reach.stand({"reader": MapPosition(20, 0)})
    bases.scene.run(20.0)
    assert bases.arrived() == 15
    assert bases.check() == []


@pytest.mark.parametrize(("carry", "elsewhere"), [("none", 0), ("parked", 0), ("all", 20)])
def test_a_message_to_one_node_goes_to_no_other_unless_they_carry_all(carry: str, elsewhere: int) -> None:
    scene = new_world(1)
    names = ["a", "b", "c", "d"]
    settings = RoutingSettings(carry=carry)
    joined = members(names, "mobile", "mobile", scene.kernel.dice("members"), routing=settings)
    machines = {name: scene.add_machine(name, membership=joined[name]) for name in names}
    places = {"a": BASE, "b": MapPosition(80, 0), "c": MapPosition(160, 0), "d": MapPosition(80, 80)}
    Reach(scene.network, names).stand(places)
    publisher = scene.add_client("p", machines["a"], Habits(window=5), NETWORK)
    scene.add_client("q", machines["c"], Habits(window=5), NETWORK).subscribe(b"to/c", 2)
    for machine in machines.values():
        machine.boot()
    for client in scene.clients:
        client.come()
    scene.run(10.0)
    for _ in range(20):
        publisher.publish(b"to/c", 1, retain=False)
        scene.run(0.1)
    scene.run(3.0)
    taken = {}
    for name, machine in machines.items():
        assert machine.running is not None
        assert machine.running.node.network is not None
        taken[name] = machine.running.node.network.router.counters.taken
    assert taken == {"a": 0, "b": elsewhere, "c": 20, "d": elsewhere}
    assert len(scene.records.arrivals["q"]) == 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_readers_that_are_away_for_long_and_subscribe_meanwhile_lose_nothing(seed: int) -> None:
    """Outages of up to two minutes among nodes that move, with clients that roam and change their subscriptions."""
    plan = StormPlan(
        seed,
        nodes=4,
        seconds=60,
        faults=("partition", "crash", "link-break"),
        fault_pause_s=4.0,
        publish_pause_s=0.8,
        strategy="mobile",
        overlay="mobile",
        mobility="waypoint",
        carry="parked",
        roamers=2,
        owner_absent_s=20.0,
        long_outages=0.5,
    )
    outcome = Chaos(plan).run()
    assert outcome.kept, outcome.violations[:3]


@pytest.mark.parametrize("carry", ["all", "parked"])
@pytest.mark.parametrize("seed", range(2))
def test_carriers_break_no_promise_in_a_storm(carry: str, seed: int) -> None:
    plan = StormPlan(
        seed,
        nodes=5,
        seconds=15,
        faults=KINDS if seed % 2 else (),
        strategy="mobile",
        overlay="mobile",
        mobility="waypoint",
        carry=carry,
    )
    outcome = Chaos(plan).run()
    assert outcome.kept, outcome.violations[:3]


VEHICLES = ("van", "middle", "rear")
APART_M = 70.0


class Convoy:
    """A base, and vehicles in a line that drive past it and out of its reach; all publish to all."""

    def __init__(self, seed: int) -> None:
        self.scene = new_world(seed)
        self.names = ["base", *VEHICLES]
        settings = RoutingSettings(carry="all")
        joined = members(self.names, "mobile", "mobile", self.scene.kernel.dice("members"), routing=settings)
        self.machines = {name: self.scene.add_machine(name, membership=joined[name]) for name in self.names}
        self.reach = Reach(self.scene.network, self.names)
        self.reach.stand({"base": BASE})
        self.drive_to(-300)
        self.clients = [
            self.scene.add_client(name[:1], machine, Habits(window=5), NETWORK)
            for name, machine in self.machines.items()
        ]
        for machine in self.machines.values():
            machine.boot()
        for client in self.clients:
            client.subscribe(b"t/#", 2)
            client.come()
        self.scene.run(5.0)

    def drive_to(self, front: float) -> None:
        self.reach.stand({name: MapPosition(front - APART_M * at, 20) for at, name in enumerate(VEHICLES)})

    def pass_by(self, start: int, end: int) -> None:
        step = 20 if end > start else -20
        for number, front in enumerate(range(start, end, step)):
            self.drive_to(front)
            for client in self.clients:
                client.publish(b"t/%d" % (number % 3), 1 + number % 2, retain=False)
            self.scene.run(1.0)


@pytest.mark.parametrize("seed", range(2))
def test_a_convoy_that_passes_a_base_leaves_nothing_behind(seed: int) -> None:
    convoy = Convoy(seed)
    convoy.pass_by(-300, 400)
    convoy.machines["van"].kill()
    convoy.scene.run(3.0)
    convoy.machines["van"].boot()
    convoy.pass_by(400, 100)
    convoy.drive_to(APART_M)
    convoy.scene.run(30.0)
    published = 4 * (700 // 20 + 300 // 20)
    arrivals = convoy.scene.records.arrivals
    arrived = {one.name: len({arrival.identity for arrival in arrivals[one.name]}) for one in convoy.clients}
    assert arrived == dict.fromkeys(arrived, published)
    assert check_delivery(convoy.scene.records) == []
