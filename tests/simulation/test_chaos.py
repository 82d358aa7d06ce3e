"""Random clients and random faults: every promise is kept, whatever the seed, with and without neighbours.

A seed that breaks something is repeated with the command that `sterna simulate chaos` prints.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from sterna.cli.simulate import ANY, of_seed, replay_command
from sterna.journal.settings import JournalSettings
from sterna.overlay.kinds import OVERLAYS
from sterna.routing.strategies import STRATEGIES as ALL_STRATEGIES
from sterna.simulation.chaos import Chaos, Outcome, StormPlan
from sterna.simulation.faults import ALL_KINDS, KINDS, LONE_KINDS
from sterna.simulation.machine import MachineSettings

STRATEGIES = ("publication-flooding", "subscription-flooding", "advertisement")
QUICK = 3
"""Seeds of each kind in `make check`; the others are for `make test`."""


def told(outcome: Outcome) -> str:
    lines = [f"{violation.claim}: {violation.detail}" for violation in outcome.violations[:10]]
    return "\n".join((replay_command(outcome.plan), *lines))


def seeds(first: int, count: int) -> list[object]:
    """The first few, and the rest in blocks of ten."""
    quick = [pytest.param([seed], id=str(seed)) for seed in range(first, first + QUICK)]
    blocks = [list(range(start, min(start + 10, first + count))) for start in range(first + QUICK, first + count, 10)]
    slow = [pytest.param(block, id=f"{block[0]}-{block[-1]}", marks=pytest.mark.slow) for block in blocks]
    return [*quick, *slow]


@pytest.mark.parametrize("block", seeds(1000, 100))
def test_a_node_by_itself_keeps_every_promise(block: list[int]) -> None:
    for seed in block:
        outcome = Chaos(StormPlan(seed, nodes=1, seconds=12, faults=LONE_KINDS)).run()
        assert outcome.kept, told(outcome)
        assert outcome.acknowledged > 0


@pytest.mark.parametrize("overlay", ["static", "spanning-tree"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("block", seeds(2000, 30))
def test_nodes_that_are_one_network_keep_every_promise(block: list[int], strategy: str, overlay: str) -> None:
    for seed in block:
        plan = StormPlan(seed, nodes=3, seconds=8, faults=KINDS, strategy=strategy, overlay=overlay)
        outcome = Chaos(plan).run()
        assert outcome.kept, told(outcome)
        assert outcome.arrived > outcome.acknowledged, "messages cross the network"


@pytest.mark.parametrize("overlay", ["static", "spanning-tree"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("block", seeds(4000, 13))
def test_clients_that_move_keep_every_promise_too(block: list[int], strategy: str, overlay: str) -> None:
    """Some turn up at one node after the other, and any may be moved by plan, told where to go or not."""
    for seed in block:
        plan = StormPlan(seed, nodes=3, seconds=8, faults=KINDS, strategy=strategy, overlay=overlay, roamers=3)
        outcome = Chaos(replace(plan, server_references=seed % 2 == 0)).run()
        assert outcome.kept, told(outcome)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("block", seeds(5000, 13))
def test_so_do_those_that_move_between_two_nodes_which_have_nobody_else_to_ask(block: list[int], strategy: str) -> None:
    for seed in block:
        outcome = Chaos(StormPlan(seed, nodes=2, seconds=8, faults=KINDS, strategy=strategy, roamers=3)).run()
        assert outcome.kept, told(outcome)


@pytest.mark.parametrize("overlay", ["static", "spanning-tree"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("block", seeds(6000, 13))
def test_what_a_publisher_says_comes_in_order_while_it_moves(block: list[int], strategy: str, overlay: str) -> None:
    """What it said at the old node comes before what it says at the new."""
    faults = ("client-cut", "client-break")
    for seed in block:
        plan = StormPlan(
            seed, seconds=6, faults=faults, publish_pause_s=0.1, strategy=strategy, overlay=overlay, roamers=3
        )
        outcome = Chaos(plan).run()
        assert outcome.kept, told(outcome)


#: (seed, nodes, roamers, strategy, overlay): each broke something once.
MOVES_THAT_BROKE = [
    (8, 3, 3, "subscription-flooding", "spanning-tree"),
    (15, 3, 3, "subscription-flooding", "spanning-tree"),
    (19, 3, 3, "subscription-flooding", "spanning-tree"),
    (22, 3, 3, "subscription-flooding", "spanning-tree"),
    (29, 3, 3, "subscription-flooding", "spanning-tree"),
    (42, 3, 3, "subscription-flooding", "spanning-tree"),
    (49, 3, 3, "subscription-flooding", "spanning-tree"),
    (106, 4, 5, "advertisement", "static"),
    (401, 3, 2, "advertisement", "spanning-tree"),
    (113, 4, 5, "publication-flooding", "spanning-tree"),
    (116, 4, 5, "publication-flooding", "static"),
    (121, 4, 5, "publication-flooding", "spanning-tree"),
    (201, 4, 5, "subscription-flooding", "spanning-tree"),
    (204, 4, 5, "subscription-flooding", "spanning-tree"),
    (311, 4, 5, "subscription-flooding", "spanning-tree"),
    (325, 4, 5, "subscription-flooding", "spanning-tree"),
    (618, 3, 4, "subscription-flooding", "spanning-tree"),
    (716, 4, 5, "advertisement", "static"),
    (5004, 3, 2, "subscription-flooding", "spanning-tree"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "nodes", "roamers", "strategy", "overlay"), MOVES_THAT_BROKE)
def test_what_broke_once_is_kept(seed: int, nodes: int, roamers: int, strategy: str, overlay: str) -> None:
    plan = StormPlan(seed, nodes=nodes, seconds=12, faults=KINDS, strategy=strategy, overlay=overlay, roamers=roamers)
    outcome = Chaos(plan).run()
    assert outcome.kept, told(outcome)


#: (seed, seconds between messages, strategy, overlay): a publisher that moved was read out of turn.
MOVES_OUT_OF_TURN = [
    (9, 0.4, "subscription-flooding", "spanning-tree"),
    (13, 0.4, "subscription-flooding", "spanning-tree"),
    (40, 0.4, "subscription-flooding", "spanning-tree"),
    (39, 0.4, "advertisement", "static"),
    (7, 0.4, "publication-flooding", "static"),
    (126, 0.1, "publication-flooding", "static"),
    (129, 0.1, "publication-flooding", "static"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "pause_s", "strategy", "overlay"), MOVES_OUT_OF_TURN)
def test_publishers_that_move_are_read_in_order(seed: int, pause_s: float, strategy: str, overlay: str) -> None:
    plan = StormPlan(
        seed, seconds=18, faults=KINDS, publish_pause_s=pause_s, strategy=strategy, overlay=overlay, roamers=3
    )
    outcome = Chaos(plan).run()
    assert outcome.kept, told(outcome)


def away_for_long(seed: int, strategy: str, overlay: str) -> StormPlan:
    """Nodes are away for longer than their clients wait for them."""
    plan = StormPlan(seed, nodes=3, seconds=18, faults=KINDS, fault_pause_s=2.0, strategy=strategy, overlay=overlay)
    return replace(plan, roamers=3, owner_absent_s=1.5, long_outages=1.0)


#: (strategy, overlay) -> seeds: the first two are for `make check`.
NEW_SESSIONS = {
    ("subscription-flooding", "spanning-tree"): [5000, 5001, 1, 14, 16, 18],
    ("advertisement", "static"): [5000, 222, 71, 75],
    ("publication-flooding", "spanning-tree"): [9, 20, 43, 6],
}


@pytest.mark.parametrize(
    ("seed", "strategy", "overlay"),
    [
        pytest.param(seed, *how, marks=pytest.mark.slow if number > 1 else ())
        for how, found in NEW_SESSIONS.items()
        for number, seed in enumerate(found)
    ],
)
def test_clients_that_get_new_sessions_get_what_they_were_owed(seed: int, strategy: str, overlay: str) -> None:
    """Also what was published between the two sessions; but for what was in flight at QoS 2."""
    outcome = Chaos(away_for_long(seed, strategy, overlay)).run()
    assert outcome.kept, told(outcome)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "strategy", "overlay"),
    [
        (7112, "subscription-flooding", "static"),
        (7112, "advertisement", "static"),
        (9100, "publication-flooding", "spanning-tree"),
    ],
)
def test_so_do_those_who_get_new_sessions_among_four_nodes(seed: int, strategy: str, overlay: str) -> None:
    outcome = Chaos(replace(away_for_long(seed, strategy, overlay), nodes=4)).run()
    assert outcome.kept, told(outcome)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("block", seeds(6000, 4))
def test_clients_behind_gateways_that_die_keep_every_promise(block: list[int], strategy: str) -> None:
    for seed in block:
        plan = StormPlan(seed, nodes=3, seconds=8, faults=KINDS, strategy=strategy, roamers=1, gateways=2)
        outcome = Chaos(replace(plan, server_references=seed % 2 == 0)).run()
        assert outcome.kept, told(outcome)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "nodes", "strategy", "overlay"),
    [
        (4, 3, "subscription-flooding", "spanning-tree"),
        (11, 3, "subscription-flooding", "spanning-tree"),
        (204, 3, "advertisement", "static"),
        (304, 3, "advertisement", "static"),
        (9009, 3, "publication-flooding", "spanning-tree"),
        (9308, 4, "subscription-flooding", "static"),
    ],
)
def test_what_broke_once_for_new_sessions_behind_a_gateway_is_kept(
    seed: int, nodes: int, strategy: str, overlay: str
) -> None:
    plan = StormPlan(
        seed, nodes=nodes, seconds=12, faults=KINDS, strategy=strategy, overlay=overlay, roamers=2, gateways=2
    )
    outcome = Chaos(replace(plan, owner_absent_s=1.5, long_outages=1.0)).run()
    assert outcome.kept, told(outcome)


#: (seed, strategy, overlay): half a minute with the default settings; each broke something once.
DEFAULTS_THAT_BROKE = [
    (7, "mobile", "mobile"),
    (35, "advertisement", "spanning-tree"),
    (50, "advertisement", "spanning-tree"),
    (71, "advertisement", "spanning-tree"),
    (115, "subscription-flooding", "static"),
    (152, "advertisement", "static"),
    (156, "publication-flooding", "static"),
    (165, "publication-flooding", "spanning-tree"),
    (177, "publication-flooding", "spanning-tree"),
    (223, "subscription-flooding", "static"),
    (229, "subscription-flooding", "static"),
    (246, "publication-flooding", "static"),
    (252, "publication-flooding", "static"),
    (272, "advertisement", "static"),
    (285, "publication-flooding", "spanning-tree"),
    (411, "publication-flooding", "spanning-tree"),
    (463, "subscription-flooding", "static"),
    (534, "publication-flooding", "static"),
    (542, "advertisement", "static"),
    (836, "advertisement", "static"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "strategy", "overlay"), DEFAULTS_THAT_BROKE)
def test_what_broke_once_with_default_settings_is_kept(seed: int, strategy: str, overlay: str) -> None:
    plan = StormPlan(seed, seconds=30, faults=KINDS, strategy=strategy, overlay=overlay, roamers=1, gateways=1)
    outcome = Chaos(replace(plan, expressions=1)).run()
    assert outcome.kept, told(outcome)


#: (seed, strategy, overlay): a quarter of a minute in which owners stay away for longer; each broke something once.
AWAY_THAT_BROKE = [
    (1108, "subscription-flooding", "spanning-tree"),
    (1111, "subscription-flooding", "static"),
    (1118, "advertisement", "static"),
    (1126, "subscription-flooding", "spanning-tree"),
    (1149, "publication-flooding", "spanning-tree"),
    (1184, "advertisement", "static"),
    (1185, "publication-flooding", "spanning-tree"),
    (1243, "subscription-flooding", "static"),
    (1253, "advertisement", "spanning-tree"),
    (1286, "advertisement", "static"),
    (1298, "advertisement", "static"),
    (1299, "publication-flooding", "spanning-tree"),
    (2012, "advertisement", "static"),
    (2073, "publication-flooding", "spanning-tree"),
    (2216, "advertisement", "static"),
    (3268, "subscription-flooding", "spanning-tree"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "strategy", "overlay"), AWAY_THAT_BROKE)
def test_what_broke_once_while_owners_were_away_is_kept(seed: int, strategy: str, overlay: str) -> None:
    plan = StormPlan(seed, seconds=15, faults=KINDS, strategy=strategy, overlay=overlay, roamers=1, gateways=1)
    plan = replace(plan, expressions=1, fault_pause_s=2.0, owner_absent_s=1.5, long_outages=1.0)
    outcome = Chaos(plan).run()
    assert outcome.kept, told(outcome)


#: (seed, nodes, strategy, overlay): of storms with twice as many faults; each broke something once.
HARSH = [
    (111, 3, "subscription-flooding", "static"),
    (113, 3, "publication-flooding", "static"),
    (123, 3, "subscription-flooding", "static"),
    (137, 3, "publication-flooding", "static"),
    (142, 2, "advertisement", "static"),
    (183, 3, "subscription-flooding", "static"),
]


def harsh(seed: int, nodes: int, strategy: str, overlay: str) -> StormPlan:
    plan = replace(away_for_long(seed, strategy, overlay), nodes=nodes, seconds=24, fault_pause_s=1.0)
    return replace(plan, owner_absent_s=2.5, long_outages=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "nodes", "strategy", "overlay"), HARSH)
def test_what_broke_once_for_those_who_got_one_new_session_after_the_other_is_kept(
    seed: int, nodes: int, strategy: str, overlay: str
) -> None:
    """Two nodes gave a client a new session at once; a second old session came back before the first; a client went
    back to its old session; a new session moved to the node of the old one; an answer was lost, and two came back."""
    outcome = Chaos(harsh(seed, nodes, strategy, overlay)).run()
    assert outcome.kept, told(outcome)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "strategy", "overlay"),
    [(16, "advertisement", "static"), (62, "publication-flooding", "spanning-tree")],
)
def test_so_is_what_broke_once_with_the_settings_of_a_node(seed: int, strategy: str, overlay: str) -> None:
    outcome = Chaos(StormPlan(seed, seconds=30, faults=KINDS, strategy=strategy, overlay=overlay, roamers=2)).run()
    assert outcome.kept, told(outcome)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("block", seeds(7000, 6))
def test_a_network_that_refuses_clients_whose_nodes_are_away_keeps_every_promise(
    block: list[int], strategy: str
) -> None:
    for seed in block:
        plan = StormPlan(
            seed, seconds=8, faults=KINDS, strategy=strategy, roamers=2, gateways=1, owner_unreachable="refuse"
        )
        outcome = Chaos(plan).run()
        assert outcome.kept, told(outcome)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("block", seeds(7000, 13))
def test_an_expression_counts_what_was_acknowledged_once_whatever_happens(block: list[int], strategy: str) -> None:
    for seed in block:
        plan = StormPlan(seed, nodes=3, seconds=8, faults=KINDS, strategy=strategy, roamers=1, expressions=2)
        outcome = Chaos(plan).run()
        assert outcome.kept, told(outcome)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "strategy", "overlay"),
    [
        # A node that was started again took new parts for old ones: their count began again with its question.
        (28, "subscription-flooding", "spanning-tree"),
        (245, "advertisement", "spanning-tree"),
        # A part began later than its expression, by the time that the question for it was on its way.
        (2, "advertisement", "static"),
        (106, "subscription-flooding", "spanning-tree"),
        (158, "advertisement", "static"),
    ],
)
def test_what_broke_once_for_expressions_is_kept(seed: int, strategy: str, overlay: str) -> None:
    plan = StormPlan(seed, nodes=3, seconds=30, faults=KINDS, strategy=strategy, overlay=overlay)
    outcome = Chaos(replace(plan, roamers=1, gateways=1, expressions=1)).run()
    assert outcome.kept, told(outcome)


@pytest.mark.parametrize("block", seeds(8000, 13))
def test_a_node_that_leaves_syncing_to_the_system_keeps_every_promise_while_there_is_power(block: list[int]) -> None:
    settings = MachineSettings(JournalSettings(durability="os", segment_bytes=16 * 1024))
    for seed in block:
        outcome = Chaos(
            StormPlan(seed, nodes=1, seconds=12, faults=("crash", "client-break", "disk-full")), None, settings
        ).run()
        assert outcome.kept, told(outcome)
        assert outcome.acknowledged > 0


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_seven_nodes_keep_every_promise(strategy: str) -> None:
    outcome = Chaos(StormPlan(3000, nodes=7, seconds=20, faults=KINDS, strategy=strategy)).run()
    assert outcome.kept, told(outcome)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, "-m", "sterna", "simulate", "chaos", *words)
    return subprocess.run(words, capture_output=True, text=True, timeout=240)


def test_the_command_that_is_printed_repeats_the_run() -> None:
    first = json.loads(command("--nodes", "2", "--minutes", "0.05", "--seed", "4", "--json").stdout)
    again = json.loads(command(*first["command"].split()[3:], "--json").stdout)
    assert first["kept"]
    assert first["digest"] == again["digest"]


def test_without_options_there_is_everything_that_clients_do() -> None:
    """Nodes have their default settings, but for owners that cannot be reached."""
    first = json.loads(command("--minutes", "0.05", "--json").stdout)
    assert first["kept"]
    plan = first["plan"]
    assert min(plan["roamers"], plan["gateways"], plan["expressions"]) >= 1
    assert tuple(plan["faults"]) == ALL_KINDS
    assert not plan["server_references"]
    assert first["digest"] == json.loads(command("--minutes", "0.05", "--json").stdout)["digest"], "byte for byte"


def test_seeds_take_turns_with_strategies_and_overlays() -> None:
    plan = StormPlan(0, strategy=ANY, overlay=ANY)
    every = {(strategy, overlay) for strategy in ALL_STRATEGIES for overlay in OVERLAYS}
    assert {(one.strategy, one.overlay) for one in (of_seed(plan, 1 + turn) for turn in range(len(every)))} == every
    fixed = of_seed(replace(plan, strategy="advertisement", overlay="static"), 5)
    assert (fixed.seed, fixed.strategy, fixed.overlay) == (5, "advertisement", "static")


def test_many_seeds_are_summed_up() -> None:
    run = command("--nodes", "1", "--minutes", "0.05", "--seeds", "1..3", "--strategy", "none")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("3 runs, every promise kept.")
    assert "3/3 runs, 0 broken" in run.stderr


@pytest.mark.parametrize("words", [("--seeds", "3..1"), ("--strategy", "gossip"), ("--faults", "boredom")])
def test_a_slip_on_the_command_line_is_explained(words: tuple[str, str]) -> None:
    run = command(*words)
    assert run.returncode == 2
    assert words[1] in run.stderr
