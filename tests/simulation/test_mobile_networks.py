"""Whole nodes that move, and hear each other only while they are near: every promise is kept all the same."""

from __future__ import annotations

import pytest

from sterna.routing.strategies import STRATEGIES
from sterna.simulation.chaos import Chaos, StormPlan
from sterna.simulation.faults import KINDS
from sterna.simulation.kernel import Kernel
from sterna.simulation.moving_cost import measure
from sterna.simulation.network import SimulatedNetwork
from sterna.simulation.reach import REACH_M, MapPosition, Reach


def _plan(
    seed: int, strategy: str, *, nodes: int = 5, faults: tuple[str, ...] = KINDS, seconds: float = 15.0
) -> StormPlan:
    return StormPlan(
        seed,
        nodes=nodes,
        seconds=seconds,
        faults=faults,
        strategy=strategy,
        overlay="mobile",
        mobility="waypoint",
        roamers=seed % 2,
        gateways=seed % 3 == 0,
        expressions=seed % 5 == 0,
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(2))
def test_nodes_that_move_keep_every_promise(strategy: str, seed: int) -> None:
    chaos = Chaos(_plan(seed, strategy, nodes=4 + seed))
    outcome = chaos.run()
    assert outcome.kept, outcome.violations[:3]
    assert chaos.reach is not None
    assert chaos.reach.changes > 5
    assert outcome.arrived > outcome.published


# 2: a way that changed and changed back; 8: read before the origin knew the reader; 29: a node was away for one
# neighbour and there for another; 69: messages came by another way than the reader's.
@pytest.mark.parametrize("seed", [2, 8, 29, 69])
def test_seeds_that_lost_something_once(seed: int) -> None:
    plan = StormPlan(
        seed,
        nodes=3 + seed % 5,
        faults=KINDS if seed % 2 else (),
        strategy="mobile",
        overlay="mobile",
        mobility="waypoint",
        roamers=seed % 3 == 0,
        gateways=seed % 4 == 0,
        expressions=seed % 5 == 0,
    )
    outcome = Chaos(plan).run()
    assert outcome.kept, outcome.violations[:3]


def test_the_same_seed_gives_the_same_run_byte_for_byte() -> None:
    plan = _plan(3, "subscription-flooding", seconds=8.0)
    assert Chaos(plan).run().digest == Chaos(plan).run().digest


def test_hosts_out_of_reach_hear_nothing_of_each_other() -> None:
    kernel = Kernel(1)
    network = SimulatedNetwork(kernel)
    reach = Reach(network, ["a", "b"])
    reach.stand({"a": MapPosition(0, 0), "b": MapPosition(REACH_M + 1, 0)})
    heard: list[bytes] = []
    network.open_mailbox("b:1", lambda _, data: heard.append(data))
    network.open_mailbox("a:1", lambda _, data: heard.append(data))
    for _ in range(10):
        network.send_to_all("a:1", b"far")
    kernel.run_until(1.0)
    assert heard == []
    reach.stand({"b": MapPosition(REACH_M - 1, 0)})
    for _ in range(10):
        network.send_to_all("a:1", b"near")
    kernel.run_until(2.0)
    assert set(heard) == {b"near"}


def test_places_stay_inside_the_square_and_end_in_a_line() -> None:
    kernel = Kernel(2)
    names = [f"n{number}" for number in range(6)]
    reach = Reach(SimulatedNetwork(kernel), names)
    reach.start()
    for _ in range(50):
        kernel.run_until(kernel.now + 1.0)
        assert all(0 <= place.x <= 200 and 0 <= place.y <= 200 for place in reach.places.values())
    assert reach.changes > 10
    reach.stop()
    assert [reach.hears("n0", name) for name in names] == [True, True, False, False, False, False]


def test_a_network_at_rest_costs_each_node_the_same_whatever_its_size() -> None:
    small, large = measure(5, "mobile"), measure(20, "mobile")
    assert large.hello_bytes_s + large.link_bytes_s < 1.3 * (small.hello_bytes_s + small.link_bytes_s)
    assert large.parent_changes <= 2, "the node that moved takes the first neighbour that it hears, then a better one"
    assert large.frames < 4 * 20
