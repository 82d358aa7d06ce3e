"""The load generator for a row of brokers, a process of its own: publishers at one end, subscribers at the other.

It drives the same loads as the generator for one broker and adds up the CPU time of all brokers of the row.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from pathlib import Path

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.harness import meter
from sterna.measure.harness.measurement import Measurement
from sterna.measure.harness.rows import Row
from sterna.measure.load.acknowledged import TURN_S_MAX, AcknowledgedLoad
from sterna.measure.load.connections import Client, Clients
from sterna.measure.load.generator import DRAIN_S_MAX, Load, with_latency
from sterna.measure.load.paced import PacedLoad
from sterna.measure.load.saturation import SaturatedLoad
from sterna.measure.load.shapes import Acknowledged, Paced, Saturation, Workload
from sterna.measure.workloads.network.shapes import BEHIND_MAX, BY_NAME

WARM_UP_MESSAGES = 10_000
"""More than one journal frame of messages: a node loads what it writes frames with when the first one is full."""
WARM_UP_S_MAX = 20.0
WARM_UP_STEP_S = 0.1
SUBSCRIBER = "sub-"
"""How the names of subscribers begin in every load."""


class RowClients(Clients):
    """Subscribers are connected to the far end, everybody else to the near one."""

    def __init__(self, near: int, far: int) -> None:
        super().__init__(near)
        self._near = near
        self._far = far

    def connect(self, name: str, *, clean: bool = True) -> Client:
        self._port = self._far if name.startswith(SUBSCRIBER) else self._near
        return super().connect(name, clean=clean)


class BoundedLoad(AcknowledgedLoad):
    """A publisher waits for its subscriber too: what is measured is what arrives, not what piles up on the way."""

    def run(self, until: float) -> None:
        if not self._started:
            self._started = True
            for publisher in self._publishers:
                publisher.start()
        while time.perf_counter() < until:
            self._clients.turn(TURN_S_MAX)
            for publisher, subscriber in zip(self._publishers, self._subscribers, strict=True):
                waits = publisher.sent - subscriber.delivered > BEHIND_MAX
                if waits != publisher.stopped:
                    publisher.stopped = waits
                    if not waits:
                        publisher.start()


def driver_of(workload: Workload, clients: Clients) -> Load:
    match workload.load:
        case Saturation() as load:
            return SaturatedLoad(clients, load)
        case Paced() as load:
            return PacedLoad(clients, load)
        case Acknowledged() as load:
            return BoundedLoad(clients, load)
    raise MeasurementError(f"{workload.name} is no load for a row of brokers")


def measure_row(load: Load, pids: tuple[int, ...], warm_up_s: float, measure_s: float) -> Measurement:
    warm_up(load, warm_up_s)
    if isinstance(load, PacedLoad):
        load.start_samples()
    published, delivered = load.published, load.delivered
    core = core_of(pids[0])
    before = used_ns(core), sum(map(meter.cpu_ns, pids)), time.process_time_ns(), time.perf_counter_ns()
    load.run(time.perf_counter() + measure_s)
    after = used_ns(core), sum(map(meter.cpu_ns, pids)), time.process_time_ns(), time.perf_counter_ns()
    used, brokers, own, seconds = ((end - start) / 1e9 for start, end in zip(before, after, strict=True))
    measured = Measurement(
        seconds=seconds,
        published=load.published - published,
        delivered=load.delivered - delivered,
        broker_cpu_s=brokers,
        # The brokers wait for each other, which is theirs; only what strangers had of their core is held against it.
        broker_waited_s=max(0.0, used - brokers) if core is not None else 0.0,
        generator_busy=own / seconds,
    )
    if isinstance(load, PacedLoad):
        measured = with_latency(measured, load)
    load.drain(time.perf_counter() + DRAIN_S_MAX)
    return msgspec.structs.replace(measured, lost=load.owed)


def warm_up(load: Load, seconds: float) -> None:
    """At least so long, and until what a broker does for the first time only (loading a library, say) is behind it."""
    begin = time.perf_counter()
    load.run(begin + seconds)
    while (
        not isinstance(load, PacedLoad)
        and load.delivered < WARM_UP_MESSAGES
        and time.perf_counter() < begin + WARM_UP_S_MAX
    ):
        load.run(time.perf_counter() + WARM_UP_STEP_S)


def core_of(pid: int) -> int | None:
    """The one core a broker is kept on, None if it is free to move."""
    cores = os.sched_getaffinity(pid)
    return next(iter(cores)) if len(cores) == 1 else None


def used_ns(core: int | None) -> int:
    """Time this core has spent on processes, and time the machine beneath took away from it."""
    if core is None:
        return 0
    counted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{core} "))
    user, nice, system, _, _, _, _, stolen = map(int, counted.split()[1:9])
    return (user + nice + system + stolen) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def measure(name: str, row: Row, warm_up_s: float, measure_s: float) -> Measurement:
    clients = RowClients(row.near, row.far)
    try:
        driver = driver_of(BY_NAME[name], clients)
        # Connecting made all the objects there will be; none of them is garbage.
        gc.collect()
        gc.freeze()
        gc.disable()
        return measure_row(driver, row.pids, warm_up_s, measure_s)
    finally:
        clients.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sterna.measure.workloads.network.generator", description=__doc__)
    parser.add_argument("load", choices=sorted(BY_NAME))
    parser.add_argument("--near", type=int, required=True, help="port publishers connect to")
    parser.add_argument("--far", type=int, required=True, help="port subscribers connect to")
    parser.add_argument("--pid", type=int, required=True, action="append", help="of each broker")
    parser.add_argument("--warm-up", type=float, required=True, help="seconds")
    parser.add_argument("--measure", type=float, required=True, help="seconds")
    given = parser.parse_args()
    row = Row(given.near, given.far, tuple(given.pid))
    try:
        measured = measure(given.load, row, given.warm_up, given.measure)
    except (MeasurementError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.write(msgspec.json.encode(measured).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
