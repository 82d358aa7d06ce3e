"""The bytes a minute of a gateway that has settled: those of measuring and of its control line."""

from __future__ import annotations

from statistics import median
from typing import Final

from sterna.adaptation.settings import AdaptationTuning
from sterna.adaptation.words import OrderState, Task, WorkerReport
from sterna.measure.figures import FigureRow
from sterna.measure.papers.emma.control_plane import ControlPlane, MeasuringHost, Traffic
from sterna.measure.report import verdict
from sterna.runtime.adaptation.control_line import GATEWAY_KEEP_ALIVE_S
from sterna.simulation.geography import BUSINESS_ISP, behind, in_cloud, regions
from sterna.simulation.kernel import Kernel

KIB_A_MINUTE: Final = 1.0
WORKERS, GATEWAYS = 20, 10
SETTLED_MIN, MEASURED_MIN = 60, 10
REPORT_S: Final = 2.0
PING_BYTES: Final = 2 * (2 + 40)
"""PINGREQ and PINGRESP, with headers of TCP."""


def measured(minutes: int = MEASURED_MIN, settled_min: int = SETTLED_MIN) -> list[FigureRow]:
    """Ten gateways in as many regions, twenty workers; the product's measuring with its defaults."""
    kernel = Kernel(1)
    plane = ControlPlane(kernel, AdaptationTuning(scaling="off"), Traffic(), _nobody_moves)
    gateways = _settle_in(plane)
    kernel.run_until(60.0 * settled_min)
    before = [one.wire for one in gateways]
    kernel.run_until(60.0 * (settled_min + minutes))
    alive = PING_BYTES * 60 / (GATEWAY_KEEP_ALIVE_S / 2)
    each = [((one.wire - start) / minutes + alive) / 1024 for one, start in zip(gateways, before, strict=True)]
    many = sum(one > KIB_A_MINUTE for one in each)
    said = f"all that a gateway says and hears, {minutes} minutes after {settled_min};"
    return [
        _row(
            "settled gateway",
            f"{said} median of {GATEWAYS}; {alive / 1024:.2f} keep its control line alive",
            median(each),
            each,
        ),
        _row(
            "settled gateway, the busiest",
            f"{said} the most of {GATEWAYS}; {many} need more than {KIB_A_MINUTE:g}",
            max(each),
            each,
        ),
    ]


def _row(name: str, summary: str, figure: float, each: list[float]) -> FigureRow:
    return FigureRow(
        name=name,
        summary=summary,
        unit="KiB/minute",
        figure=figure,
        target=f"<= {KIB_A_MINUTE:g}",
        verdict=verdict(figure <= KIB_A_MINUTE),
        rounds=[(one, None) for one in each],
    )


def _settle_in(plane: ControlPlane) -> list[MeasuringHost]:
    places = regions()
    for number in range(WORKERS):
        name = f"worker{number}"
        host = plane.add(name, in_cloud(name, places[number % len(places)]), is_worker=True, measures=True)
        _reports(plane, host)
    found = []
    for number in range(GATEWAYS):
        name, region = f"gateway{number}", places[2 * number % len(places)]
        found.append(plane.add(name, behind(name, region, name, BUSINESS_ISP), is_worker=False, measures=True))
    return found


def _reports(plane: ControlPlane, host: MeasuringHost) -> None:
    host.report(WorkerReport(site="", state="off", in_state_s=0.0, echo=host.name, clients=""))
    plane.kernel.after(REPORT_S, _reports, plane, host)


def _nobody_moves(worker: str, task: Task) -> OrderState:
    raise AssertionError(f"{worker} is to do {task}, but nothing is to change")
