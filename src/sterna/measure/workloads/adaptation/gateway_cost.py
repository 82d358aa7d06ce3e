"""The CPU that measuring costs a gateway: two gateways with the same load in turn, one of which measures."""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from sterna.measure.errors import MeasurementError
from sterna.measure.figures import FigureRow
from sterna.measure.harness.adaptive_files import CLOUD, MEASURING, PLACES, AdaptiveFiles
from sterna.measure.harness.admin import page
from sterna.measure.harness.brokers import sterna_command
from sterna.measure.harness.ports import free_port
from sterna.measure.harness.processes import Process
from sterna.measure.harness.sites import NodePlace
from sterna.measure.load.generator import GeneratorJob, generate
from sterna.measure.load.shapes import Lane, Paced
from sterna.measure.report import verdict

SHARE: Final = 1.0
"""Percent of a processor."""
RATE: Final = 1000
ROUNDS: Final = 5
WARM_UP_S, MEASURE_S = 2.0, 6.0
READY_S: Final = 90.0
_LANES: Final = (Lane((("bench/cost",),), (("bench/cost",),), fan=1),)


def measured(rounds: int = ROUNDS, measure_s: float = MEASURE_S) -> list[FigureRow]:
    with tempfile.TemporaryDirectory(prefix="sterna-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        # Addresses of its own, on loopback: the files name fixed ports.
        net = 64 + os.getpid() % 128
        places = [
            NodePlace(f"127.{net}.{os.getpid() // 128 % 250}.{number + 1}", 1883, 7883, 0) for number in range(PLACES)
        ]
        files = AdaptiveFiles(directory, places)
        _start(
            stack, directory / "cloud", "worker", files.worker("cloud", CLOUD, fixed=True, more="leave_node = false")
        )
        _start(stack, directory / "one", "coordinator", files.coordinator("one"))
        ports, pids, admin = [], [], free_port()
        for gateway in ("g1", "g2"):
            text = files.gateway(gateway).replace(MEASURING, "")
            plain = text.partition("[adaptation]")[0]
            ports.append(free_port())
            toml = text if gateway == "g1" else plain
            toml = toml.replace(f"unix:{directory}/{gateway}/gateway.sock", f"127.0.0.1:{admin if toml is text else 0}")
            toml += f'\n[[listener]]\nbind = "127.0.0.1:{ports[-1]}"\n'
            pids.append(_start(stack, directory / gateway, "gateway", toml))
        _wait_until_it_measures(admin)
        shares = [_round(ports, pids, measure_s) for _ in range(rounds)]
    more = [100 * (measuring - plain) for measuring, plain in shares]
    return [
        FigureRow(
            name="measuring",
            summary=f"CPU that measuring costs a gateway with {RATE:,} messages a second, in percent of a processor: "
            f"median of {rounds} rounds of {measure_s:g} s beside a gateway that does not measure, which uses "
            f"{100 * median(plain for _, plain in shares):.1f} %",
            unit="% CPU",
            figure=median(more),
            target=f"< {SHARE:g}",
            verdict=verdict(median(more) < SHARE),
            rounds=[(one, None) for one in more],
        )
    ]


def _round(ports: list[int], pids: list[int], measure_s: float) -> tuple[float, float]:
    """The share of a processor that each gateway uses, one after the other: clients of a generator have fixed names."""
    first, second = (_share(port, pid, measure_s) for port, pid in zip(ports, pids, strict=True))
    return first, second


def _share(port: int, pid: int, measure_s: float) -> float:
    job = GeneratorJob(
        load=Paced(_LANES, RATE), near=port, pids=(pid,), warm_up_s=WARM_UP_S, measure_s=measure_s, is_row=True
    )
    (found,) = generate("gateway", job, None)
    if not found.cpu_us_per_message:
        raise MeasurementError("nothing was delivered")
    return found.cpu_us_per_message * RATE / 1e6


def _start(stack: ExitStack, directory: Path, command: str, toml: str) -> int:
    directory.mkdir(exist_ok=True)
    file = directory / "sterna.toml"
    file.write_text(toml)
    process = Process(command, sterna_command(command, "--config", str(file)), directory)
    process.start()
    stack.callback(process.stop)
    return process.pid


def _wait_until_it_measures(admin: int) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        told = page("127.0.0.1", admin, "/measuring")
        if told is not None and json.loads(told)["cycles"]:
            return
        time.sleep(0.1)
    raise MeasurementError("the gateway did not measure")
