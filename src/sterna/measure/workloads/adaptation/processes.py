"""`sterna node --processes 2` beside one process: how many deliveries a second each could make with a core per process.

The generator needs a core as well, so what a second of the clock brings tells nothing on a small machine.  CPU is
what counts: a process that has a core to itself makes as many deliveries as fit into a second of it, and of several
processes the busiest one sets the pace.  All processes of the node, be it one or two, are kept on one core and the
generator on another, so that neither way gains by moving about.  Deliveries and the CPU of each process are counted
over one and the same interval; one process and two take turns, and medians are compared.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from contextlib import suppress
from statistics import median
from typing import Final, NamedTuple

from sterna.measure.errors import MeasurementError
from sterna.measure.figures import FigureRow
from sterna.measure.harness import meter
from sterna.measure.harness.brokers import started, sterna
from sterna.measure.harness.node_tables import Tables
from sterna.measure.harness.ports import free_port
from sterna.measure.load.generator import GeneratorJob, generate
from sterna.measure.load.shapes import Acknowledged, Lane, Saturation, Workload
from sterna.measure.report import verdict

SPEED_UP: Final = 1.7
PROCESSES: Final = 2
SUBSCRIBERS: Final = 100
PAIRS: Final = 50
ROUNDS: Final = 3
WARM_UP_S, MEASURE_S = 2.0, 5.0
READY_S: Final = 60.0
_TOPIC: Final = "bench/fan"
LOADS: Final = (
    Workload(
        "fan-out",
        f"1 publisher, {SUBSCRIBERS} subscribers, QoS 0, saturated",
        Saturation((Lane(((_TOPIC,),), ((_TOPIC,),) * SUBSCRIBERS, fan=SUBSCRIBERS),), block=64, window=6400),
    ),
    Workload("qos1", f"{PAIRS} pairs, QoS 1, window 20", Acknowledged(PAIRS, 1, behind_max=200)),
)


class Capacity(NamedTuple):
    deliveries_per_s: float
    cpu_us: float
    """Of all processes together, per delivery."""
    busiest: float
    """The share of it that the busiest process had."""


def measured(load: Workload) -> list[FigureRow]:
    """One process and two, in turn."""
    rounds = [(_capacity(load, PROCESSES), _capacity(load, 1)) for _ in range(ROUNDS)]
    two, one = (median(each.deliveries_per_s for each in ways) for ways in zip(*rounds, strict=True))
    cpu_us = [median(each.cpu_us for each in ways) for ways in zip(*rounds, strict=True)]
    busiest = median(each.busiest for each, _ in rounds)
    return [
        FigureRow(
            name=f"{PROCESSES} processes, {load.name}",
            summary=f"{load.summary}: deliveries per second of the busiest process' CPU, beside those of one process; "
            f"{cpu_us[0]:.3g} against {cpu_us[1]:.3g} us per delivery, {100 * busiest:.0f} % at the busiest; "
            f"medians of {ROUNDS}, {'pinned' if meter.two_cores()[0] is not None else 'not pinned'}",
            unit="deliveries/s",
            figure=two,
            beside=one,
            ratio=two / one,
            target=f">= {SPEED_UP:g}x",
            verdict=verdict(two / one >= SPEED_UP),
            rounds=[(each.deliveries_per_s, beside.deliveries_per_s) for each, beside in rounds],
        )
    ]


def _capacity(load: Workload, processes: int) -> Capacity:
    admin = free_port()
    tables: Tables = {"node": {"processes": processes}, "admin": {"bind": f"127.0.0.1:{admin}"}}
    node_core, generator_core = meter.two_cores()
    with started(sterna(tables), load, node_core) as node:
        _wait_until_ready(admin)
        job = GeneratorJob(
            load=load.load,
            near=node.port,
            pids=tuple(meter.family(node.pid)[1:]) or (node.pid,),
            warm_up_s=WARM_UP_S,
            measure_s=MEASURE_S,
            warm_up_messages=10_000,
            is_row=True,
        )
        (found,) = generate("sterna", job, generator_core)
    cost = found.cpu_us_per_message
    if not cost:
        raise MeasurementError(f"{load.name}: nothing was delivered")
    busiest = max(found.cpu_s_of_each) / found.broker_cpu_s
    return Capacity(1e6 / (cost * busiest), cost, busiest)


def _wait_until_ready(admin: int) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with (
            suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=5) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise MeasurementError("the processes did not get ready")
