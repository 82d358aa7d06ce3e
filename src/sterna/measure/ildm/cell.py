"""One cell of a table: the limit of one system under one scenario, its latency, its costs, and what was wrong with it.

Where hosts are confined the limit is searched for in real time.  Where they cannot be, it is given in CPU terms: what
the busiest host could take with the same share of a core.  Runs that measured the generator or a busy machine rather
than the system are marked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from math import log2
from pathlib import Path

import msgspec

from sterna.measure.harness import meter
from sterna.measure.harness.comparison import Say
from sterna.measure.ildm import small_hosts
from sterna.measure.ildm.indexes import LIMIT, Indexes, indexes
from sterna.measure.ildm.latency import LatencyJob, LatencyLog, LClients
from sterna.measure.ildm.load import TClients
from sterna.measure.ildm.scenario import Scenario
from sterna.measure.ildm.search import STEP_MAX, Method, SearchResult, find_limit
from sterna.measure.ildm.small_hosts import can_confine, confined
from sterna.measure.ildm.systems import BrokerHost, RunningSystem

BUSY_MAX = 0.95
LATE_SHARE_MAX = 0.01
OFFERED_MIN = 0.97
"""Of the load; a run with less of it says nothing about the system."""
STARVED = 0.75
"""A system that fails though its busiest host used less of its share waited for the machine."""
NEAR_MISS = 0.94
CEILING = 2_000_000
"""Deliveries a second; no more are asked for, as the log of a run would fill the memory."""
GENTLE_RATE = 200.0
GENTLE_S = 1.0
ESTIMATES_MAX = 6
ESTIMATE_STEP = 4
_NETSTAT = Path("/proc/net/netstat")
_SNMP = Path("/proc/net/snmp")


@dataclass(frozen=True, slots=True)
class Plan:
    measure_s: float = 2.0
    """Counted; `cut_s` is left out at each end."""
    cut_s: float = 0.3
    latency_s: float = 3.0
    latency_every_s: float = 0.0437
    """In no step with the periods of small hosts."""
    search: Method = "twentieths"
    share: float = 0.02
    """Of a core, for a broker."""
    node_factor: float = 7.0
    """A node has so many times the share of a broker."""

    def share_of(self, host: BrokerHost) -> float:
        return self.share if host.role == "broker" else min(1.0, self.share * self.node_factor)

    def blur_s(self, counted_s: float) -> float:
        """Whole periods of the small hosts, about a third of the time that counts."""
        period_s = small_hosts.period_s(self.share)
        return int(counted_s / 3 / period_s) * period_s if can_confine() else 0.0


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    interval_ms: float
    offered: float
    """Messages a second."""
    indexes: Indexes
    share: float
    """Of Definition 1."""
    passed: bool
    cpu_us: dict[str, float]
    """Of each host, per publication."""
    used: dict[str, float]
    """Of each host, of its share of a core."""
    generator_busy: float
    late: int
    held_back: int
    retransmitted: int
    """TCP segments, on the whole machine."""
    zero_windows: int
    marks: list[str] = []


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    system: str
    pattern: str
    algorithm: str
    is_confined: bool
    interval_ms: float
    ingress: float
    egress: float
    loss_rate: float
    duplicated: int
    cpu_limit: float
    """Egress in CPU terms: what the busiest host could do with its share, by its costs in the run at the limit."""
    busiest: str
    cpu_us: dict[str, float]
    """Of each host, per publication, at the limit."""
    gentle_cpu_us: dict[str, float]
    """The same at 200 publications a second, the same load for all systems."""
    latency_half_ms: tuple[float | None, float | None]
    """p50 and p99 at half the limit."""
    latency_limit_ms: tuple[float | None, float | None]
    transfers: int | None = None
    transfers_due: int | None = None
    published: int = 0
    latency_published: int = 0
    runs: list[RunResult] = []
    marks: list[str] = []


class CellRunner:
    """Measures one system that runs already."""

    def __init__(
        self, running: RunningSystem, scenario: Scenario, plan: Plan, say: Say, logs: Path | None = None
    ) -> None:
        self._running = running
        self._scenario = scenario
        self._plan = plan
        self._say = say
        self._logs = logs
        self._clients: TClients
        self.published = 0
        self.latency_published = 0
        self.runs: list[RunResult] = []

    def measure(self, system: str, pattern: str, algorithm: str) -> Cell:
        with ExitStack() as stack:
            self._clients = stack.enter_context(closing(TClients(self._scenario, self._running.ports)))
            self._run(self._interval(GENTLE_RATE), GENTLE_S)  # what happens for the first time only
            for host in self._running.hosts:
                stack.enter_context(self._confined(pattern, host))
            gentle = self._run(self._interval(GENTLE_RATE), GENTLE_S)
            marks: list[str] = []
            if can_confine():
                limit_ms = self._search(self._start(gentle), marks)
            else:
                limit_ms = self._interval(self._cpu_limit(gentle) / self._scenario.sp_ratio)
            half, at_half = self._with_latency(2 * limit_ms)
            limit, at_limit = self._with_latency(limit_ms) if can_confine() else (half, at_half)
        best = self._best(limit_ms) if can_confine() else limit
        busiest = max(best.used, key=lambda name: best.used[name])
        egress = best.indexes.egress if can_confine() else self._cpu_limit(half)
        return Cell(
            system=system,
            pattern=pattern,
            algorithm=algorithm,
            is_confined=can_confine(),
            interval_ms=limit_ms,
            ingress=egress / self._scenario.sp_ratio if not can_confine() else best.indexes.ingress,
            egress=egress,
            loss_rate=best.indexes.loss_rate,
            duplicated=max(run.indexes.duplicated for run in (best, half, limit)),
            cpu_limit=self._cpu_limit(best),
            busiest=busiest,
            cpu_us=best.cpu_us,
            gentle_cpu_us=gentle.cpu_us,
            latency_half_ms=(at_half.p50_ms, at_half.p99_ms),
            latency_limit_ms=(at_limit.p50_ms, at_limit.p99_ms),
            published=self.published,
            latency_published=self.latency_published,
            runs=self.runs,
            marks=marks + [mark for mark in best.marks if mark not in marks],
        )

    def measure_gently(self) -> RunResult:
        """At one small load, the same for all systems; nothing is confined."""
        with closing(TClients(self._scenario, self._running.ports)) as self._clients:
            return self._run(self._interval(GENTLE_RATE), GENTLE_S)

    def _confined(self, pattern: str, host: BrokerHost) -> AbstractContextManager[None]:
        return confined(f"{pattern}-{host.name}", meter.family(host.pid), self._plan.share_of(host))

    def _interval(self, rate: float) -> float:
        """Between two messages of a publisher, for so many publications a second of all."""
        return self._scenario.publishers.total() * 1e3 / rate

    @property
    def _shortest_ms(self) -> float:
        return self._interval(CEILING / self._scenario.sp_ratio)

    def _start(self, run: RunResult) -> float:
        """Where to begin: brokers that batch are cheaper per message under load, so ask again nearer to the limit."""
        start_ms = self._estimate(run)
        for _ in range(ESTIMATES_MAX):
            run = self._run(start_ms, GENTLE_S)
            if not run.passed:
                break
            start_ms = min(start_ms / ESTIMATE_STEP, self._estimate(run))
        return max(start_ms, self._shortest_ms)

    def _estimate(self, run: RunResult) -> float:
        """A power of two milliseconds near the limit, to begin with."""
        return float(2.0 ** round(log2(self._interval(self._cpu_limit(run) / self._scenario.sp_ratio))))

    def _cpu_limit(self, run: RunResult) -> float:
        """Deliveries a second that the busiest host has CPU time for."""
        shares = {host.name: self._plan.share_of(host) for host in self._running.hosts}
        rate = min(shares[name] * 1e6 / max(cost, 1e-3) for name, cost in run.cpu_us.items())
        return rate * self._scenario.sp_ratio

    def _search(self, start_ms: float, marks: list[str]) -> float:
        found = find_limit(self._passes, start_ms, self._plan.search)
        if found.is_noisy:
            self._say("    a longer interval failed where a shorter one passed: searched again")
            found = self._again(found)
        if found.is_noisy:
            marks.append("noisy")
        if found.interval_ms < self._shortest_ms * (1 + STEP_MAX):
            marks.append("the generator's ceiling")
        failed = [run for run in self.runs if not run.passed and run.interval_ms >= found.interval_ms / 2]
        if failed and all("the generator did not get the load out" in run.marks for run in failed):
            marks.append("the generator did not get the load out")
        elif failed and all(max(run.used.values()) < STARVED for run in failed):
            marks.append("starved: the machine was busy, the hosts did not get their share")
        return found.interval_ms

    def _again(self, found: SearchResult) -> SearchResult:
        return find_limit(self._passes, float(2.0 ** round(log2(found.interval_ms))), self._plan.search)

    def _best(self, limit_ms: float) -> RunResult:
        """The run that showed the limit: the last of the search, before those with l-clients."""
        shown = [run for run in self.runs if run.interval_ms == limit_ms]
        return next((run for run in shown if run.passed), shown[0])

    def _passes(self, interval_ms: float) -> bool:
        """A near miss is measured three times, and the mean counts: hosts run in bursts, and one may be cut off by the
        end of the interval.  A run that measured the generator is repeated once."""
        if interval_ms < self._shortest_ms:
            self._say(f"    {interval_ms:8.3f} ms: above {CEILING:,} deliveries a second, not tried")
            return False
        seconds = self._plan.measure_s + 2 * self._plan.cut_s
        run = self._run(interval_ms, seconds)
        self._say(f"    {in_one_line(run)}")
        if run.passed:
            return True
        if NEAR_MISS <= run.share < LIMIT and not run.held_back:
            shares = [run.share, *(self._run(interval_ms, seconds).share for _ in range(2))]
            self._say(f"    near miss, again: {', '.join(f'{share:.1%}' for share in shares)} of what is due")
            return sum(shares) / len(shares) >= LIMIT
        if run.marks:
            run = self._run(interval_ms, seconds)
            self._say(f"    {in_one_line(run)}")
        return run.passed

    def _with_latency(self, interval_ms: float) -> tuple[RunResult, LatencyLog]:
        """With the l-clients at work too."""
        latency, ports = self._scenario.latency, self._running.ports
        job = LatencyJob(
            topic=latency.topic,
            publisher=ports[latency.publisher - 1],
            subscribers=tuple(ports[node - 1] for node in latency.subscribers),
            every_s=self._plan.latency_every_s,
            seconds=self._plan.latency_s,
        )
        clients = LClients(job)
        try:
            run = self._run(interval_ms, self._plan.latency_s + 1.0)
            log = clients.result()
        finally:
            clients.stop()
        self.latency_published += log.sent
        return run, log

    def _run(self, interval_ms: float, seconds: float) -> RunResult:
        hosts = self._running.hosts
        before, network = {host.name: meter.cpu_ns(host.pid) for host in hosts}, _network()
        begin = time.perf_counter()
        run = self._clients.run(interval_ms, seconds)
        took = time.perf_counter() - begin
        cpu_s = {host.name: (meter.cpu_ns(host.pid) - before[host.name]) / 1e9 for host in hosts}
        cut_s = min(self._plan.cut_s, seconds / 4)
        found = indexes(run.log, self._clients.deliveries, cut_s, self._plan.blur_s(seconds - 2 * cut_s))
        share = found.share(self._scenario.sp_ratio)
        offered = self._scenario.publishers.total() * 1e3 / interval_ms
        is_offered = found.ingress >= OFFERED_MIN * offered
        self.published += found.sent
        result = RunResult(
            interval_ms=interval_ms,
            offered=offered,
            indexes=found,
            share=share,
            passed=share >= LIMIT and not run.held_back and is_offered,
            cpu_us={name: spent * 1e6 / max(1, found.sent) for name, spent in cpu_s.items()},
            used={host.name: cpu_s[host.name] / took / self._plan.share_of(host) for host in hosts},
            generator_busy=run.busy,
            late=run.late,
            held_back=run.held_back,
            retransmitted=_network()[0] - network[0],
            zero_windows=_network()[1] - network[1],
            marks=_marks(run.busy, run.late, run.offered, is_offered=is_offered or bool(run.held_back)),
        )
        if self._logs is not None:
            run.log.save(self._logs / f"run{len(self.runs):03}")
        self.runs.append(result)
        return result


def _marks(busy: float, late: int, offered: int, *, is_offered: bool) -> list[str]:
    marks = []
    if busy > BUSY_MAX or not is_offered:
        marks.append("the generator did not get the load out")
    if late > LATE_SHARE_MAX * offered:
        marks.append("messages were sent late")
    return marks


def _network() -> tuple[int, int]:
    """Segments sent again, and windows closed, on this machine since it started."""
    return _counter(_SNMP, "Tcp:", "RetransSegs"), _counter(_NETSTAT, "TcpExt:", "TCPToZeroWindowAdv")


def _counter(file: Path, group: str, name: str) -> int:
    rows = [line.split() for line in file.read_text().splitlines() if line.startswith(group)]
    values: Callable[[str], int] = dict(zip(rows[0], rows[1], strict=True)).get  # type: ignore[assignment]
    return int(values(name) or 0)


def in_one_line(run: RunResult) -> str:
    busiest = max(run.used, key=lambda name: run.used[name])
    words = [
        f"{run.interval_ms:8.3f} ms: {run.indexes.ingress:8,.0f} in, {run.indexes.egress:9,.0f} out a second",
        f"{run.share:.1%} of what is due",
        f"{busiest} used {run.used[busiest]:.0%} of its share",
        f"generator {run.generator_busy:.0%}",
        *run.marks,
        *([f"{run.held_back} held back"] if run.held_back else []),
    ]
    return ("passed " if run.passed else "failed ") + ", ".join(words)
