"""`sterna simulate ...`: the same nodes in a made-up world.  Results to stdout, progress to stderr; 1 means broken."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import msgspec
import typer

from sterna.overlay.kinds import OVERLAYS
from sterna.routing.carried import CARRIES
from sterna.routing.carried import NONE as NOT_CARRIED
from sterna.routing.strategies import STRATEGIES
from sterna.simulation.chaos import (
    DEFAULTS,
    EXPRESSIONS,
    FAULT_PAUSE_S,
    FOREIGN_BROKERS,
    GATEWAYS,
    LONG_OUTAGES,
    MOBILITIES,
    PUBLISH_PAUSE_S,
    ROAMERS,
    Chaos,
    Outcome,
    StormPlan,
)
from sterna.simulation.faults import ALL_KINDS, FOREIGN_KINDS, KINDS, LONE_KINDS
from sterna.simulation.kernel import Trace
from sterna.simulation.move_model import MoveBounds, MoveModel
from sterna.simulation.moving_cost import measure
from sterna.simulation.state_explorer import explore

EXPLAINED_MAX = 5
"""Violations that are told with what led to them."""
LAST_EVENTS = 12
OWNER_UNREACHABLE = ("new-session", "refuse")
ALONE = "none"
"""The strategy of nodes that have no neighbours."""
ANY = "any"
"""Each seed has its own."""

app = typer.Typer(help="Run nodes in a made-up world and check every promise.", no_args_is_help=True)


@app.callback()
def simulate() -> None:
    """Run nodes in a made-up world and check every promise."""


@app.command()
def chaos(
    nodes: Annotated[int, typer.Option(min=1, max=100, help="Nodes.")] = 3,
    minutes: Annotated[float, typer.Option(min=0.01, max=10_000, help="Virtual minutes of traffic and faults.")] = 0.5,
    seed: Annotated[int, typer.Option(help="The same seed gives the same run, byte for byte.")] = 1,
    seeds: Annotated[str, typer.Option(help="Many runs: A..B, both included.")] = "",
    strategy: Annotated[
        str, typer.Option(help=f"Routing: {', '.join(STRATEGIES)}; {ANY}; {ALONE}: nodes have no neighbours.")
    ] = ANY,
    overlay: Annotated[str, typer.Option(help=f"How neighbours are found: {', '.join(OVERLAYS)}; {ANY}.")] = ANY,
    mobility: Annotated[
        str, typer.Option(help=f"Nodes move, and hear each other while near: {', '.join(MOBILITIES)}; {ALONE}.")
    ] = ALONE,
    carry: Annotated[
        str, typer.Option(help=f"Messages that nodes keep for nodes that are away: {', '.join(CARRIES)}.")
    ] = NOT_CARRIED,
    faults: Annotated[str, typer.Option(help=f"Only these, with commas: {', '.join(ALL_KINDS)}.")] = "",
    fault_pause: Annotated[float, typer.Option(min=0.01, help="Mean seconds between two faults.")] = FAULT_PAUSE_S,
    publish_pause: Annotated[
        float, typer.Option(min=0.001, help="Mean seconds between what one publisher sends (times nodes).")
    ] = PUBLISH_PAUSE_S,
    roamers: Annotated[int, typer.Option(min=0, help="Clients that turn up at one node after the other.")] = ROAMERS,
    gateways: Annotated[int, typer.Option(min=0, help="Gateways with clients behind them, which die too.")] = GATEWAYS,
    expressions: Annotated[int, typer.Option(min=0, help="Subscriptions that compute.")] = EXPRESSIONS,
    foreign_brokers: Annotated[
        int, typer.Option(min=0, help="Brokers of other makes, each with a node beside it; at most as many as nodes.")
    ] = FOREIGN_BROKERS,
    server_references: Annotated[
        bool, typer.Option("--server-references", help="Tell clients that are moved by plan where to go.")
    ] = False,
    owner_unreachable: Annotated[
        str, typer.Option(help=f"A client whose node is away: {', '.join(OWNER_UNREACHABLE)}.")
    ] = DEFAULTS.owner_unreachable,
    owner_absent: Annotated[
        float, typer.Option(min=0, help="Seconds without its node until a client gets a new session.")
    ] = DEFAULTS.owner_absent_s,
    long_outages: Annotated[
        float, typer.Option(min=0, max=1, help="Share of crashes and partitions that last for longer than that.")
    ] = LONG_OUTAGES,
    adaptive: Annotated[bool, typer.Option("--adaptive", help="Nodes start and stop by themselves.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document per run.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write every event of the run to this file.")] = None,
) -> None:
    """Random clients, random faults, a quiet time; then every message is accounted for."""
    signal.signal(signal.SIGTERM, _leave)
    plan = StormPlan(
        seed,
        nodes=nodes,
        seconds=round(minutes * 60, 3),
        faults=_kinds(faults, strategy, foreign_brokers),
        fault_pause_s=fault_pause,
        publish_pause_s=publish_pause,
        strategy="" if strategy == ALONE else _one_of(strategy, (*STRATEGIES, ANY, ALONE), "--strategy"),
        overlay=_one_of(overlay, (*OVERLAYS, ANY), "--overlay"),
        mobility="" if mobility == ALONE else _one_of(mobility, (*MOBILITIES, ALONE), "--mobility"),
        carry=_one_of(carry, CARRIES, "--carry"),
        roamers=0 if strategy == ALONE else roamers,
        gateways=0 if strategy == ALONE else gateways,
        expressions=0 if strategy == ALONE else expressions,
        foreign_brokers=0 if strategy == ALONE else min(foreign_brokers, nodes),
        server_references=server_references,
        owner_unreachable=_one_of(owner_unreachable, OWNER_UNREACHABLE, "--owner-unreachable"),
        owner_absent_s=owner_absent,
        long_outages=long_outages,
        adaptive=adaptive and _in_one_network(strategy, nodes),
    )
    wanted = _range(seeds) if seeds else range(seed, seed + 1)
    if trace is not None and len(wanted) > 1:
        raise typer.BadParameter("a trace is of one run: give --seed instead of --seeds", param_hint="--trace")
    if _run_all(plan, wanted, trace, json=json):
        raise typer.Exit(1)


@app.command()
def moves(
    nodes: Annotated[int, typer.Option(min=2, max=5, help="Nodes.")] = 2,
    crashes: Annotated[int, typer.Option(min=0, help="Crashes, of any node at any moment.")] = 1,
    orders: Annotated[int, typer.Option(min=0, help="Orders to move the client.")] = 1,
    visits: Annotated[int, typer.Option(min=0, help="Times that the client comes to a node.")] = 0,
    losses: Annotated[int, typer.Option(min=0, help="Messages between nodes that are lost.")] = 0,
    numbers: Annotated[int, typer.Option(min=2, help="Ownership numbers: nothing begins under a higher one.")] = 2,
    every_step: Annotated[
        bool, typer.Option("--every-step", help="Steps of a node that nobody sees are steps of their own.")
    ] = False,
    impatient: Annotated[
        bool, typer.Option("--impatient", help="Nodes may say things again, and give up, while an answer is under way.")
    ] = False,
    outlive: Annotated[
        bool, typer.Option("--outlive", help="Letters under way when a node crashes come all the same, later.")
    ] = False,
    states: Annotated[int, typer.Option(min=1, help="Stop after so many states.")] = 2_000_000,
) -> None:
    """Explore every state of a move, from its tables: one node serves, one always can, nothing is dropped."""
    bounds = MoveBounds(
        nodes, crashes, orders, visits, losses, messages=1, wire=2, numbers=numbers,
        is_patient=not impatient, is_eager=not every_step, outlive=outlive,
    )  # fmt: skip
    begun = time.monotonic()
    found = explore(MoveModel(bounds), states)
    took = f"{found.states:,} states, {found.steps:,} steps, {time.monotonic() - begun:.0f} s"
    if found.problem:
        typer.echo("\n".join([f"broken: {found.problem}; {took}; it came so:", *found.trace]))
        raise typer.Exit(1)
    typer.echo(f"every promise kept in {'all' if found.is_complete else 'the first'} {took}")


@app.command("moving-cost")
def moving_cost(
    nodes: Annotated[str, typer.Option(help="Numbers of nodes, with commas.")] = "5,33,66",
    strategies: Annotated[str, typer.Option(help=f"With commas: {', '.join(STRATEGIES)}.")] = "mobile",
) -> None:
    """Measure the control traffic of nodes that move: bytes while nothing moves, frames when one node does."""
    for strategy in strategies.split(","):
        _one_of(strategy, tuple(STRATEGIES), "--strategies")
    if not all(number.isdigit() and 2 <= int(number) <= 100 for number in nodes.split(",")):
        raise typer.BadParameter("write numbers from 2 to 100, with commas", param_hint="--nodes")
    for number in nodes.split(","):
        for strategy in strategies.split(","):
            cost = measure(int(number), strategy)
            typer.echo(
                f"{cost.nodes} nodes, {strategy}: hellos {cost.hello_bytes_s:.0f} B/s and links "
                f"{cost.link_bytes_s:.0f} B/s per node; one node moves: {cost.frames} frames, "
                f"{cost.frame_bytes:.0f} bytes, {cost.parent_changes} changes of parent"
            )


def _run_all(plan: StormPlan, wanted: range, trace: Path | None, *, json: bool) -> list[int]:
    """Run the plan with each of these seeds and show what came of it; returns the seeds that broke a promise."""
    many = len(wanted) > 1
    broken: list[int] = []
    totals = dict.fromkeys(("published", "acknowledged", "arrived", "faults", "boots", "stops"), 0)
    for number in wanted:
        outcome = run(of_seed(plan, number), trace, None if many else _tell_progress(plan))
        if not outcome.kept:
            broken.append(number)
        for name in totals:
            totals[name] += getattr(outcome, name)
        show(outcome, json=json, many=many)
        if many:
            done = number - wanted.start + 1
            print(f"\r{done}/{len(wanted)} runs, {len(broken)} broken", end="", file=sys.stderr, flush=True)
    if many:
        print(file=sys.stderr)
        if not json:
            typer.echo(_summary_of_many(len(wanted), broken, totals))
    return broken


def of_seed(plan: StormPlan, seed: int) -> StormPlan:
    """This plan for one seed: what may be any is chosen by the seed."""
    strategy = tuple(STRATEGIES)[seed % len(STRATEGIES)] if plan.strategy == ANY else plan.strategy
    overlay = tuple(OVERLAYS)[seed // len(STRATEGIES) % len(OVERLAYS)] if plan.overlay == ANY else plan.overlay
    return replace(plan, seed=seed, strategy=strategy, overlay=overlay)


def _summary_of_many(runs: int, broken: list[int], totals: dict[str, int]) -> str:
    what = ", ".join(f"{number} {name}" for name, number in totals.items())
    verdict = f"broken in seeds {', '.join(map(str, broken))}" if broken else "every promise kept"
    return f"{runs} runs, {verdict}.  {what}"


def run(plan: StormPlan, trace: Path | None, progress: Callable[[float], None] | None) -> Outcome:
    with ExitStack() as stack:
        sink = None
        if trace is not None:
            file = stack.enter_context(trace.open("w"))
            sink = Trace(lambda line: file.write(line + "\n"))
        return Chaos(plan, sink, progress=progress).run()


def _tell_progress(plan: StormPlan) -> Callable[[float], None]:
    def progress(seconds: float) -> None:
        end = "\n" if seconds >= plan.seconds else ""
        print(f"\r{seconds:.0f} of {plan.seconds:.0f} virtual seconds", end=end, file=sys.stderr, flush=True)

    return progress


def replay_command(plan: StormPlan) -> str:
    """The command that does exactly this again."""
    words = ["sterna", "simulate", "chaos", "--nodes", str(plan.nodes), "--minutes", repr(plan.seconds / 60)]
    words += ["--seed", str(plan.seed), "--strategy", plan.strategy or ALONE, "--overlay", plan.overlay]
    if plan.carry != NOT_CARRIED:
        words += ["--carry", plan.carry]
    if plan.mobility:
        words += ["--mobility", plan.mobility]
    if plan.faults != _kinds("", plan.strategy or ALONE, plan.foreign_brokers):
        words += ["--faults", ",".join(plan.faults)]
    if plan.fault_pause_s != FAULT_PAUSE_S:
        words += ["--fault-pause", repr(plan.fault_pause_s)]
    if plan.publish_pause_s != PUBLISH_PAUSE_S:
        words += ["--publish-pause", repr(plan.publish_pause_s)]
    if plan.strategy:
        words += ["--roamers", str(plan.roamers), "--gateways", str(plan.gateways)]
        words += ["--expressions", str(plan.expressions), "--foreign-brokers", str(plan.foreign_brokers)]
    if plan.server_references:
        words.append("--server-references")
    if plan.owner_unreachable != DEFAULTS.owner_unreachable:
        words += ["--owner-unreachable", plan.owner_unreachable]
    if plan.owner_absent_s != DEFAULTS.owner_absent_s:
        words += ["--owner-absent", repr(plan.owner_absent_s)]
    if plan.long_outages != LONG_OUTAGES:
        words += ["--long-outages", repr(plan.long_outages)]
    if plan.adaptive:
        words.append("--adaptive")
    return shlex.join(words)


def show(outcome: Outcome, *, json: bool, many: bool) -> None:
    if json:
        typer.echo(msgspec.json.encode(_document(outcome)).decode())
        return
    if outcome.kept:
        if not many:
            typer.echo(_summary(outcome))
        return
    if many:
        print(file=sys.stderr)
    typer.echo(f"seed {outcome.plan.seed}: {len(outcome.violations)} promises broken; again with:")
    typer.echo(f"  {replay_command(outcome.plan)} --trace trace.txt")
    for violation in outcome.violations[:EXPLAINED_MAX]:
        typer.echo(f"- {violation.claim}: {violation.detail}")
    if len(outcome.violations) > EXPLAINED_MAX:
        typer.echo(f"  and {len(outcome.violations) - EXPLAINED_MAX} more")
    names = outcome.violations[0].names
    if names:
        typer.echo(f"The last events that mention {', '.join(names)}:")
        for line in last_events(outcome.plan, names):
            typer.echo(f"  {line}")


def last_events(plan: StormPlan, names: tuple[str, ...]) -> list[str]:
    """Events that led to it: the same run again, this time reading along."""
    found: list[str] = []

    def read(line: str) -> None:
        if " < " not in line and any(name in line for name in names):
            found.append(line)

    Chaos(plan, Trace(read)).run()
    # The first name is the message concerned, if there is one: everything about it, and the last of the rest.
    about = [line for line in found if f" {names[0]} " in line]
    return [*about[-LAST_EVENTS:], *(line for line in found[-LAST_EVENTS:] if line not in about)]


def _document(outcome: Outcome) -> dict[str, Any]:
    return {**asdict(outcome), "kept": outcome.kept, "command": replay_command(outcome.plan)}


def _summary(outcome: Outcome) -> str:
    o = outcome
    return (
        f"seed {o.plan.seed}: every promise kept.  {o.published} published, {o.acknowledged} acknowledged, "
        f"{o.arrived} arrived; {o.faults} faults, {o.boots} boots, {o.stops} stops, {o.torn} torn groups, "
        f"{o.checkpoints} checkpoints; "
        f"{o.virtual_s:.0f} virtual seconds, {o.events} events, trace {o.digest}"
    )


def _kinds(text: str, strategy: str, foreign_brokers: int) -> tuple[str, ...]:
    if text:
        return tuple(_one_of(kind.strip(), ALL_KINDS, "--faults") for kind in text.split(","))
    if strategy == ALONE:
        return LONE_KINDS
    return (*KINDS, *FOREIGN_KINDS) if foreign_brokers else KINDS


def _one_of(value: str, known: tuple[str, ...], option: str) -> str:
    if value not in known:
        raise typer.BadParameter(f"there is no {value!r}; known: {', '.join(known)}", param_hint=option)
    return value


def _range(text: str) -> range:
    first, dots, last = text.partition("..")
    if not dots or not first.isdecimal() or not last.isdecimal() or int(last) < int(first):
        raise typer.BadParameter(f"{text!r} is not like 1..100", param_hint="--seeds")
    return range(int(first), int(last) + 1)


def _in_one_network(strategy: str, nodes: int) -> bool:
    if strategy == ALONE or nodes < 2:
        raise typer.BadParameter("nodes that start and stop are two or more of one network", param_hint="--adaptive")
    return True


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
