"""Messages reach readers that never meet their origin: a third node carries them."""

from __future__ import annotations

import pytest

from sterna.routing.strategy import RoutingSettings
from sterna.simulation.chaos import Chaos, Plan
from sterna.simulation.checkers import check_delivery
from sterna.simulation.clients import Client, Habits
from sterna.simulation.faults import KINDS
from sterna.simulation.machine import Machine
from sterna.simulation.membership import NETWORK, members
from sterna.simulation.reach import Place, Reach
from sterna.simulation.records import Violation
from sterna.simulation.world import new_world

BASE, FAR = Place(0, 0), Place(1000, 0)
AT_BASE, AT_FAR = Place(50, 0), Place(950, 0)


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

    def client(self, name: str, machine: Machine) -> Client:
        return self.scene.add_client(name, machine, Habits(window=5), NETWORK)

    def publish(self, count: int) -> None:
        for number in range(count):
            self.publisher.publish(b"t/%d" % (number % 3), 1 + number % 2, retain=False)
            self.scene.run(0.2)
        self.scene.run(3.0)

    def carrier_goes(self, place: Place) -> None:
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
    bases.reach.stand({"reader": Place(20, 0), "carrier": AT_BASE})
    bases.scene.run(15.0)
    assert bases.arrived() == 10
    assert bases.check() == []


def test_a_parked_reader_is_carried_for_by_the_node_it_left() -> None:
    bases = Bases("parked")
    bases.reach.stand({"carrier": Place(90, 0), "reader": Place(180, 0)})
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
    bases.reach.stand({"reader": Place(20, 0)})
    bases.scene.run(20.0)
    assert bases.arrived() == 15
    assert bases.check() == []


@pytest.mark.parametrize("carry", ["all", "parked"])
@pytest.mark.parametrize("seed", range(2))
def test_carriers_break_no_promise_in_a_storm(carry: str, seed: int) -> None:
    plan = Plan(
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
