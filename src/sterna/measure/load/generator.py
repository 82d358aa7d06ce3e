"""The load generator, a process of its own: drives one broker with one workload and prints one line of JSON.

It connects everyone, warms up, reads the broker's CPU clock, drives the load for the measured interval, reads the clock
again and then lets everything arrive, so that what is still missing is lost.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.harness import meter
from sterna.measure.harness.measurement import Measurement, percentile
from sterna.measure.load.acknowledged import AcknowledgedLoad
from sterna.measure.load.connections import Clients
from sterna.measure.load.paced import PacedLoad
from sterna.measure.load.saturation import SaturatedLoad
from sterna.measure.load.shapes import BY_NAME, Acknowledged, Idle, InTurn, Paced, Saturation

DRAIN_S_MAX = 10.0
SETTLE_S = 0.5
"""After connecting thousands of clients, before memory is read."""


class Load(Protocol):
    """What can be driven: counters that only grow, and two ways to let time pass."""

    @property
    def published(self) -> int: ...
    @property
    def delivered(self) -> int: ...
    @property
    def owed(self) -> int: ...
    def run(self, until: float) -> None: ...
    def drain(self, until: float) -> None: ...


def measure_load(load: Load, broker_pid: int, warm_up_s: float, measure_s: float) -> Measurement:
    begin = time.perf_counter()
    load.run(begin + warm_up_s)
    if isinstance(load, PacedLoad):
        load.start_samples()
    published, delivered = load.published, load.delivered
    before = meter.waited_ns(broker_pid), meter.cpu_ns(broker_pid), time.process_time_ns(), time.perf_counter_ns()
    load.run(time.perf_counter() + measure_s)
    after = meter.waited_ns(broker_pid), meter.cpu_ns(broker_pid), time.process_time_ns(), time.perf_counter_ns()
    waited, broker, own, seconds = ((end - start) / 1e9 for start, end in zip(before, after, strict=True))
    measured = Measurement(
        seconds=seconds,
        published=load.published - published,
        delivered=load.delivered - delivered,
        broker_cpu_s=broker,
        broker_waited_s=waited,
        generator_busy=own / seconds,
    )
    if isinstance(load, PacedLoad):
        measured = with_latency(measured, load)
    load.drain(time.perf_counter() + DRAIN_S_MAX)
    return msgspec.structs.replace(measured, lost=load.owed)


def with_latency(measured: Measurement, load: PacedLoad) -> Measurement:
    ordered = sorted(load.latency_ns)
    if not ordered:
        raise MeasurementError("no message arrived in the measured interval")
    return msgspec.structs.replace(
        measured,
        generator_busy=1 - load.idle_ns / 1e9 / measured.seconds,
        late=load.late,
        latency_p50_us=percentile(ordered, 0.50) / 1e3,
        latency_p99_us=percentile(ordered, 0.99) / 1e3,
        latency_samples=len(ordered),
    )


def measure_idle(clients: Clients, load: Idle, broker_pid: int) -> Measurement:
    start = time.perf_counter()
    for number in range(load.before):
        clients.connect(f"before-{number}")
    time.sleep(SETTLE_S)
    before_kib = meter.resident_kib(broker_pid)
    for number in range(load.connections):
        clients.connect(f"idle-{number}")
    time.sleep(SETTLE_S)
    grown_kib = meter.resident_kib(broker_pid) - before_kib
    return Measurement(seconds=time.perf_counter() - start, kib_per_connection=grown_kib / load.connections)


def measure_in_turn(
    port: int, loads: Sequence[Saturation], broker_pid: int, warm_up_s: float, measure_s: float
) -> Measurement:
    parts = []
    for load in loads:
        clients = Clients(port)
        try:
            driver = SaturatedLoad(clients, load)
            hold_still()
            parts.append(measure_load(driver, broker_pid, warm_up_s, measure_s))
        finally:
            clients.close()
    costs = [part.cpu_us_per_message for part in parts]
    known = [cost for cost in costs if cost]
    return Measurement(
        seconds=sum(part.seconds for part in parts),
        published=sum(part.published for part in parts),
        delivered=sum(part.delivered for part in parts),
        lost=sum(part.lost for part in parts),
        broker_cpu_s=sum(part.broker_cpu_s for part in parts),
        broker_waited_s=sum(part.broker_waited_s for part in parts),
        generator_busy=max(part.generator_busy for part in parts),
        cost_spread=max(known) / min(known) if len(known) == len(costs) else None,
        cpu_us_of_each=known,
    )


def hold_still() -> None:
    """Connecting made all the objects there will be; none of them is garbage."""
    gc.collect()
    gc.freeze()
    gc.disable()


def measure(name: str, port: int, broker_pid: int, warm_up_s: float, measure_s: float) -> Measurement:
    load = BY_NAME[name].load
    if isinstance(load, InTurn):
        return measure_in_turn(port, load.loads, broker_pid, warm_up_s, measure_s)
    clients = Clients(port)
    try:
        match load:
            case Idle():
                return measure_idle(clients, load, broker_pid)
            case Saturation():
                driver: Load = SaturatedLoad(clients, load)
            case Paced():
                driver = PacedLoad(clients, load)
            case Acknowledged():
                driver = AcknowledgedLoad(clients, load)
        hold_still()
        return measure_load(driver, broker_pid, warm_up_s, measure_s)
    finally:
        clients.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sterna.measure.load.generator", description=__doc__)
    parser.add_argument("workload", choices=sorted(BY_NAME))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--broker-pid", type=int, required=True)
    parser.add_argument("--warm-up", type=float, required=True, help="seconds")
    parser.add_argument("--measure", type=float, required=True, help="seconds")
    given = parser.parse_args()
    try:
        measured = measure(given.workload, given.port, given.broker_pid, given.warm_up, given.measure)
    except (MeasurementError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.write(msgspec.json.encode(measured).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
