"""`sterna bench ildm`: limits of single brokers (Fig. 11) and of cooperating ones (Fig. 12), by the paper's method."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from msgspec.structs import replace

from sterna.measure.command import Means, known
from sterna.measure.errors import MeasurementError
from sterna.measure.harness.brokers import BrokerKind, describe_sterna
from sterna.measure.harness.foreign_brokers import installed
from sterna.measure.ildm import model
from sterna.measure.ildm.cell import Cell, CellRunner, Plan
from sterna.measure.ildm.report import IldmDocument, report
from sterna.measure.ildm.scenario import Scenario, built_in, read_scenario
from sterna.measure.ildm.search import Method
from sterna.measure.ildm.small_hosts import can_confine, preferred
from sterna.measure.ildm.systems import (
    ALGORITHMS,
    KINDS,
    PATTERNS,
    SINGLES,
    SYSTEMS,
    Algorithm,
    CooperatingSystem,
    RunningSystem,
    cooperating,
    missing_kinds,
    single,
)
from sterna.measure.report import MeasurementReport, machine

SEARCHES: dict[str, Method] = {"twentieths": "twentieths", "bisect": "bisect"}
QUICK_PATTERNS = ("C",)
QUICK_SYSTEMS = ("proxy", "reference")
_Choice = TypeVar("_Choice")


def bench(
    means: Means,
    *,
    brokers: Annotated[
        str | None, typer.Option(help="Single brokers, by commas; 'none'.  [default: sterna and all installed]")
    ] = None,
    systems: Annotated[str | None, typer.Option(help="Cooperating systems, by commas; 'none'.  [default: all]")] = None,
    patterns: Annotated[str | None, typer.Option(help="Of A, B, C, D, mixed, by commas.  [default: all]")] = None,
    scenario: Annotated[Path | None, typer.Option(help="A scenario of your own instead of A to D.")] = None,
    search: Annotated[
        str, typer.Option(help="twentieths (the paper's) or bisect (among the same steps).")
    ] = "twentieths",
    share: Annotated[float, typer.Option(min=0.01, max=1.0, help="Of a core, for each broker.")] = 0.02,
    node_factor: Annotated[
        float, typer.Option(min=0.5, max=20, help="A node before a broker has so many times the broker's share.")
    ] = 7.0,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cells (C with SF), shorter runs, bisect.")] = False,
    logs: Annotated[Path | None, typer.Option(help="Keep the raw logs of all runs in this directory.")] = None,
) -> MeasurementReport:
    """Find the limits of brokers, alone and in a row, as the interworking layer's paper (ILDM) does.

    Each broker and node is confined to a small share of a core; without the right to that (control groups) limits are
    given in CPU terms.
    """
    method = known(search, SEARCHES, "search", "--search")
    plan = Plan(search=method, share=share, node_factor=node_factor)
    if quick:
        plan = Plan(search="bisect", share=share, node_factor=node_factor, measure_s=1.0, cut_s=0.4, latency_s=1.2)
    means.cleanup.enter_context(preferred("generator", [os.getpid()]))
    bench_run = IldmBench(means, plan, logs)
    singles = _singles(brokers, quick=quick)
    rows = _chosen(systems, SYSTEMS, "system", "--systems")
    wanted = _chosen(patterns, {name: name for name in PATTERNS}, "pattern", "--patterns")
    if quick and patterns is None:
        wanted = {name: name for name in QUICK_PATTERNS}
    if quick and systems is None:
        rows = {name: system for name, system in rows.items() if name in QUICK_SYSTEMS}
    if scenario is not None:
        scenarios = {scenario.stem: read_scenario(scenario)}
    else:
        scenarios = {name: built_in(name) for name in wanted}
    bench_run.measure_singles(singles, with_costs=not quick)
    for system in rows.values():
        bench_run.measure_system(system, scenarios, algorithms=ALGORITHMS[-1:] if quick else ALGORITHMS)
    return report(bench_run.document(quick=quick))


def _singles(asked: str | None, *, quick: bool) -> dict[str, BrokerKind]:
    if asked is None:
        return dict(SINGLES) if quick else {**SINGLES, **installed()}
    if asked == "none":
        return {}
    chosen = _chosen(asked, KINDS, "broker", "--brokers")
    for name in missing_kinds(chosen):
        raise MeasurementError(f"{name} is not installed; install it, or leave it out of --brokers")
    return chosen


def _chosen(asked: str | None, names: Mapping[str, _Choice], what: str, option: str) -> dict[str, _Choice]:
    if asked is None:
        return dict(names)
    if asked == "none":
        return {}
    return {name: known(name, names, what, option) for name in asked.split(",")}


class IldmBench:
    """Cells in order; one that fails is told, and the rest goes on."""

    def __init__(self, means: Means, plan: Plan, logs: Path | None) -> None:
        self._say = means.say
        self._plan = plan
        self._logs = logs
        self._costs: dict[str, model.Costs] = {}
        self.cells: list[Cell] = []
        self.versions: dict[str, str] = {"sterna": describe_sterna()}
        self.failures: list[str] = []
        self.left_out: list[str] = []
        if not can_confine():
            means.say("no right to make control groups: limits are given in CPU terms")

    def measure_singles(self, kinds: dict[str, BrokerKind], *, with_costs: bool) -> None:
        for name, kind in kinds.items():
            self.versions[name] = kind.describe()
            cell = self._cell(single(kind), built_in("single"), name, "single", "-")
            if cell is not None and with_costs and name in SINGLES:
                self._measure_fan1(name, kind, cell)

    def _measure_fan1(self, name: str, kind: BrokerKind, ten: Cell) -> None:
        """With one delivery instead of ten: the difference is what deliveries cost, the rest what taking one costs."""
        one = self._cell(single(kind), built_in("fan1"), name, "fan1", "-")
        if one is not None:
            wide, narrow = (sum(cell.cpu_us.values()) for cell in (ten, one))
            given = max(0.0, (wide - narrow) / 9)
            self._costs[name] = model.Costs(taken=max(0.0, narrow - given), given=given)

    def measure_system(
        self, system: CooperatingSystem, scenarios: dict[str, Scenario], *, algorithms: Sequence[Algorithm]
    ) -> None:
        for name, scenario in scenarios.items():
            if name in PATTERNS and name not in system.patterns:
                continue
            if missing := missing_kinds(scenario.brokers):
                self._leave_out(f"{system.name}, {name}: {', '.join(missing)} not installed")
                continue
            for algorithm in self._algorithms(system, scenario, algorithms):
                running = cooperating(system, scenario, algorithm)
                self._cell(running, scenario, system.name, name, algorithm)

    def _algorithms(
        self, system: CooperatingSystem, scenario: Scenario, algorithms: Sequence[Algorithm]
    ) -> Sequence[Algorithm]:
        """Those that differ: the paper's node is alone with its broker in A, and kinds are mixed to see them work."""
        differs = scenario.nodes > 1 or system.hears_all_with_pf
        return algorithms if differs and not scenario.brokers else algorithms[-1:]

    def _leave_out(self, what: str) -> None:
        self._say(f"left out: {what}")
        self.left_out.append(what)

    def _cell(
        self,
        starting: AbstractContextManager[RunningSystem],
        scenario: Scenario,
        system: str,
        pattern: str,
        algorithm: Algorithm | str,
    ) -> Cell | None:
        name = f"{system}, {pattern}" + (f" with {algorithm}" if algorithm != "-" else "")
        self._say(f"[{len(self.cells) + 1}] {name}: {scenario.about}")
        logs = self._logs / name.replace(", ", "-").replace(" ", "-") if self._logs else None
        try:
            with starting as running:
                runner = CellRunner(running, scenario, self._plan, self._say, logs)
                cell = runner.measure(system, pattern, algorithm)
                cell = _with_transfers(cell, running.stop_and_count(), scenario, algorithm)
        except MeasurementError as error:
            self._say(f"    failed: {error}")
            self.failures.append(f"{name}: {error}")
            return None
        self._say(f"    limit {cell.egress:,.0f} deliveries a second; {', '.join(cell.marks) or 'nothing in the way'}")
        self.cells.append(cell)
        return cell

    def document(self, *, quick: bool) -> IldmDocument:
        return IldmDocument(
            benchmark="ildm",
            versions=self.versions,
            machine=machine(),
            quick=quick,
            is_confined=can_confine(),
            share=self._plan.share,
            node_factor=self._plan.node_factor,
            search=self._plan.search,
            measure_s=self._plan.measure_s,
            cells=self.cells,
            costs=self._costs,
            failures=self.failures,
            left_out=self.left_out,
        )


def _with_transfers(cell: Cell, counted: int | None, scenario: Scenario, algorithm: str) -> Cell:
    """The count beside what the placement says; the message that showed that the row is joined is not in it."""
    if counted is None or scenario.nodes == 1:
        return cell
    due = cell.published * model.transfers(scenario, algorithm)
    due += cell.latency_published * model.latency_transfers(scenario, algorithm)
    return replace(cell, transfers=counted, transfers_due=round(due))
