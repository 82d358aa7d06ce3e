"""Data processing functions on machines that are killed: every message counts once, and every result comes once."""

from __future__ import annotations

from functools import partial

import pytest

from sterna.operators.functions import Functions
from sterna.simulation.clients import Habits
from sterna.simulation.machine import MOMENTS, MachineSettings
from sterna.simulation.world import new_world

MESSAGES = 150
EXPRESSION = b"$TMPSUM;23:59:59$ONE/t/#"


def one(payload: bytes) -> float:
    return 1.0


@pytest.mark.parametrize("seed", range(12))
def test_every_message_counts_once_whenever_the_node_is_killed(seed: int) -> None:
    functions = Functions()
    functions.register("ONE", one, "one")
    scene = new_world(seed)
    machine = scene.add_machine("node", MachineSettings(functions=functions, function_s=0.3))
    publisher = scene.add_client("publisher", machine, Habits(window=8), "")
    subscriber = scene.add_client("subscriber", machine, Habits(version=4), "")
    dice = scene.kernel.dice("deaths")
    machine.boot()
    subscriber.subscribe(EXPRESSION, 2)
    subscriber.come()
    publisher.come()
    scene.run(1.0)
    for number in range(MESSAGES):
        scene.kernel.after(number * 0.1, partial(publisher.publish, b"t/%d" % (number % 3), 2, size=600))
    for _ in range(6):
        machine.doom = dice.choice(MOMENTS)
        scene.run(2.5)
        if machine.running is not None and dice.random() < 0.5:
            machine.kill(power=dice.random() < 0.5)
            scene.run(dice.random())
            machine.boot()
    machine.doom = ""
    scene.run(60.0)
    assert machine.troubles, "nobody was killed"
    assert [arrival.identity for arrival in scene.records.arrivals["subscriber"]] == [
        f"{number}.0" for number in range(1, MESSAGES + 1)
    ]
