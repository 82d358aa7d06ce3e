"""What a node keeps for relayed clients is bounded; what makes way is counted, and named once."""

from __future__ import annotations

from typing import Any

from interworking.scene import Scene
from sterna.broker.kept_values import KeptValues
from sterna.node.relay_keeper import RelayKeeper
from sterna.simulation.foreign_broker import KINDS


def test_values_of_the_client_heard_of_first_make_way_and_are_counted() -> None:
    scene = Scene(KINDS["mosquitto"])
    scene.begin()
    running = scene.machines[0].running
    assert running is not None
    running.broker.state.kept_values = KeptValues(1000)
    reports: list[tuple[str, dict[str, Any]]] = []
    keeper = RelayKeeper(running.broker, lambda event, fields: reports.append((event, fields)))
    for client in (b"first", b"second"):
        keeper.begin(client)
        keeper.subscribed(client, [(b"t", (1, 0))])
    assert keeper.made_way == 0
    keeper.keep(b"second", 1, b"x" * 700)
    assert keeper.made_way == 2, "that its session began, and its subscription"
    assert keeper.subscriptions(b"first") is None, "it is not known any more, and says so"
    assert keeper.subscriptions(b"second") == {b"t": (1, 0)}
    keeper.keep(b"second", 2, b"x" * 700)
    assert keeper.made_way == 6, "of the only client that is left, all make way"
    assert keeper.kept(b"second") == {}
    [(event, fields)] = reports
    assert event == "values of relayed clients not kept"
    assert fields["client"] == "first"
