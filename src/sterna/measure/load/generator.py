"""The load generator, a process of its own: drives one broker, or a row of them, with one load.

It connects everyone, warms up, reads the brokers' CPU clocks, drives the load for the measured interval, reads the
clocks again and then lets everything arrive, so that what is still missing is lost.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Protocol

import msgspec

from sterna.measure.errors import MeasurementError
from sterna.measure.harness import meter
from sterna.measure.harness.measurement import Measurement, percentile
from sterna.measure.harness.processes import WorkerProcess, serve
from sterna.measure.load import shapes
from sterna.measure.load.acknowledged import AcknowledgedLoad
from sterna.measure.load.connections import LoadClient, LoadClients
from sterna.measure.load.numbers import NumbersLoad
from sterna.measure.load.paced import PacedLoad
from sterna.measure.load.saturation import SaturatedLoad

DRAIN_S_MAX = 10.0
GRACE_S = 60.0
"""Beyond warm-up and measured interval: connecting, draining, ending."""
SETTLE_S = 0.5
"""After connecting thousands of clients, before memory is read."""
WARM_UP_S_MAX = 20.0
WARM_UP_STEP_S = 0.1
FILTERS_PER_CLIENT = 100
"""As many expressions as a client may have."""


class GeneratorJob(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one generator."""

    load: shapes.Load
    near: int
    """Port of the broker everyone connects to,"""
    far: int = 0
    """but subscribers to this one, if it is not 0."""
    pids: tuple[int, ...]
    """Of all brokers on the way."""
    warm_up_s: float
    measure_s: float
    rounds: int = 1
    warm_up_messages: int = 0
    """Deliveries before anything is measured: a node loads what it writes frames with when the first one is full."""
    is_row: bool = False
    """The brokers share a core and wait for each other, which is theirs: only what strangers had of that core counts
    as a disturbance."""
    looking_on: tuple[str, ...] = ()
    """Filters that are subscribed to in every other round, by clients that none of the messages is for."""


def generate(name: str, job: GeneratorJob, core: int | None) -> list[Measurement]:
    """A generator at work for the broker of this name; what it measured, round by round."""
    loads = len(job.load.loads) if isinstance(job.load, shapes.InTurn) else 1
    worker = WorkerProcess("sterna.measure.load.generator", job, core)
    try:
        within_s = loads * job.rounds * (job.warm_up_s + job.measure_s) + GRACE_S
        return worker.result(list[Measurement], f"{name}: the generator", within_s)
    finally:
        worker.stop()


class LoadDriver(Protocol):
    """A load that can be driven: counters that only grow, and two ways to let time pass."""

    @property
    def published(self) -> int: ...
    @property
    def delivered(self) -> int: ...
    @property
    def owed(self) -> int: ...
    def run(self, until: float) -> None: ...
    def drain(self, until: float) -> None: ...


DRIVERS: dict[type, Callable[[LoadClients, Any], LoadDriver]] = {
    shapes.Saturation: SaturatedLoad,
    shapes.Paced: PacedLoad,
    shapes.Acknowledged: AcknowledgedLoad,
    shapes.SensorNumbers: NumbersLoad,
}


def measure(job: GeneratorJob) -> list[Measurement]:
    if isinstance(job.load, shapes.InTurn):
        return [measure_in_turn(job, job.load.loads)]
    with closing(LoadClients(job.near, job.far)) as clients:
        if isinstance(job.load, shapes.Idle):
            return [measure_idle(clients, job.load, job.pids[0])]
        driver = DRIVERS[type(job.load)](clients, job.load)
        hold_still()
        return [_measure_round(driver, job, number) for number in range(job.rounds)]


def _measure_round(driver: LoadDriver, job: GeneratorJob, number: int) -> Measurement:
    with _looking_on(job.near, job.looking_on if number % 2 else ()):
        return measure_load(driver, job)


@contextmanager
def _looking_on(port: int, filters: Sequence[str]) -> Iterator[None]:
    clients = []
    for start in range(0, len(filters), FILTERS_PER_CLIENT):
        client = LoadClient(port, f"bystander-{start}", [])
        client.introduce(clean=True)
        client.subscribe(filters[start : start + FILTERS_PER_CLIENT], 0)
        clients.append(client)
    yield
    for client in clients:
        client.socket.close()


def measure_load(load: LoadDriver, job: GeneratorJob) -> Measurement:
    warm_up(load, job)
    if isinstance(load, PacedLoad):
        load.start_samples()
    published, delivered = load.published, load.delivered
    before = _clocks_ns(job)
    load.run(time.perf_counter() + job.measure_s)
    after = _clocks_ns(job)
    busy, own, seconds, *each = ((end - start) / 1e9 for start, end in zip(before, after, strict=True))
    brokers = sum(each)
    measured = Measurement(
        seconds=seconds,
        published=load.published - published,
        delivered=load.delivered - delivered,
        broker_cpu_s=brokers,
        cpu_s_of_each=each,
        broker_waited_s=max(0.0, busy - brokers) if job.is_row else busy,
        generator_busy=own / seconds,
    )
    if isinstance(load, PacedLoad):
        measured = with_latency(measured, load)
    load.drain(time.perf_counter() + DRAIN_S_MAX)
    return msgspec.structs.replace(measured, lost=load.owed)


def _clocks_ns(job: GeneratorJob) -> tuple[int, ...]:
    """How long the brokers' core was busy (of a row) or they waited for it, our own CPU time, the time, and the CPU
    time of each broker."""
    busy = meter.core_busy_ns(job.pids[0]) if job.is_row else meter.waited_ns(job.pids[0])
    return busy, time.process_time_ns(), time.perf_counter_ns(), *map(meter.cpu_ns, job.pids)


def warm_up(load: LoadDriver, job: GeneratorJob) -> None:
    """At least so long, and until what a broker does for the first time only (loading a library, say) is behind it."""
    begin = time.perf_counter()
    load.run(begin + job.warm_up_s)
    while (
        not isinstance(load, PacedLoad)
        and load.delivered < job.warm_up_messages
        and time.perf_counter() < begin + WARM_UP_S_MAX
    ):
        load.run(time.perf_counter() + WARM_UP_STEP_S)


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


def measure_idle(clients: LoadClients, load: shapes.Idle, broker_pid: int) -> Measurement:
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


def measure_in_turn(job: GeneratorJob, loads: Sequence[shapes.Saturation]) -> Measurement:
    parts = [part for load in loads for part in measure(msgspec.structs.replace(job, load=load))]
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


if __name__ == "__main__":
    sys.exit(serve(GeneratorJob, measure))
