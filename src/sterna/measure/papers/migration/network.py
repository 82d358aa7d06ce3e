"""The network of one migration experiment: its nodes, the place of its clients, the gateway, the ways between them."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

from sterna.measure.harness.admin import change_neighbours, comes, look_at, order
from sterna.measure.harness.nodes import TOKEN, start_gateway, start_nodes
from sterna.measure.harness.processes import Process
from sterna.measure.harness.sites import AtADistance, Loopback, NodePlace, Site
from sterna.measure.harness.switch import Distances, Tap
from sterna.measure.load.movers import Address
from sterna.measure.papers.migration.plan import JITTER_MS, NEAR_MS, MigrationPlan, MoveExperiment

SOURCE, TARGET, THIRD = range(3)
NAMES = ("source", "target", "third", "fourth", "fifth")
LINKED_S = 60.0
ORDER_S = 10.0


class MovingNetwork:
    def __init__(self, places: list[NodePlace], nodes: int, processes: list[Process], gateway: Address | None) -> None:
        self.places = places
        self.names = NAMES[:nodes]
        self.client_place = places[nodes]
        self._processes = processes
        self.gateway = gateway

    def address(self, number: int) -> Address:
        return self.places[number].host, self.places[number].clients

    def check(self) -> None:
        for process in self._processes:
            process.check()

    async def order(self, client: str) -> str:
        """At the source; empty, or why the client will not be moved.  A link that was just laid is told of first."""
        deadline = time.monotonic() + ORDER_S
        while problem := await order(self.places[SOURCE], TOKEN, client, NAMES[TARGET]):
            if "cannot be reached" not in problem or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.01)
        return problem

    async def cut_and_link(self) -> None:
        """End the link between source and target, and lay it again: returns when it stands."""
        source = self.places[SOURCE]
        await change_neighbours(self.places[TARGET], TOKEN, remove=[source.links_address])
        await comes(source, TOKEN, "/network", lambda told: not _is_linked(told), LINKED_S)
        await change_neighbours(self.places[TARGET], TOKEN, add=[source.links_address])
        await comes(source, TOKEN, "/network", _is_linked, LINKED_S)

    async def reads_third(self) -> str:
        """How messages of the third node come in at the target: "synced", or it waits for some."""
        told = await look_at(self.places[TARGET], TOKEN, "/network")
        return str(told["streams"].get(NAMES[THIRD], "unknown"))

    async def is_whole_again(self) -> None:
        """The target hears everything."""
        await comes(
            self.places[TARGET],
            TOKEN,
            "/network",
            lambda told: all(told["streams"].get(name) == "synced" for name in self.names if name != NAMES[TARGET]),
            LINKED_S,
        )


def _is_linked(told: dict[str, object]) -> bool:
    links = told["links"]
    assert isinstance(links, list)
    return any(link["peer"] == NAMES[TARGET] and link["connected"] for link in links)


@contextmanager
def network(plan: MigrationPlan, experiment: MoveExperiment, tap: Tap | None = None) -> Iterator[MovingNetwork]:
    """Links are made at the near distance, and lengthened when they stand."""
    distances = Distances(JITTER_MS / 1000, Random(f"{plan.seed} {experiment.name}"))
    nodes = experiment.nodes
    client = nodes
    for one in range(nodes):
        for other in range(one):
            distances.put(one, other, NEAR_MS / 1000)
    site: Site = AtADistance(nodes + 1, distances, tap=tap) if plan.at_a_distance else Loopback(nodes + 1)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sterna-migration-")))
        places = stack.enter_context(site).places
        # The third node reaches the target through the source where the link between the two is to be cut.
        linked_to = [0, SOURCE, SOURCE] if experiment.is_cut else None
        processes = start_nodes(stack, NAMES[:nodes], places, directory, linked_to)
        gateway = None
        if "gateway" in plan.kinds:
            process, gateway = start_gateway(stack, places[client], places[: TARGET + 1], directory)
            processes.append(process)
        latencies = plan.latencies(experiment)
        distances.put(SOURCE, TARGET, latencies.source_to_target / 1000, latencies.target_to_source / 1000)
        distances.put(SOURCE, client, latencies.source_client / 1000)
        distances.put(TARGET, client, latencies.target_client / 1000)
        if experiment.is_cut:
            distances.put(SOURCE, THIRD, plan.lag_ms / 2000)
        yield MovingNetwork(places, nodes, processes, gateway)
