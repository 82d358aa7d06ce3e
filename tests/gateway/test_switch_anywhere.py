"""One conversation with everything in it, and a change of nodes at every single byte of it."""

from __future__ import annotations

import pytest

from sterna.mqtt.gateway_packets import Redirect

from .model_client import ModelClient
from .town import Town

LONGER_THAN_THE_CONVERSATION = 400


def conversation(version: int, moment: int, *, planned: bool) -> bool:
    """Everything arrives as it should, though the node changes when so many bytes have been carried; False if none
    were left to carry by then."""
    town = Town()
    client = ModelClient(town, version)
    client.connect()
    client.subscribe(b"x")
    client.subscribe(b"y")
    client.unsubscribe(b"y")
    for number in range(3):
        client.publish(b"up%d" % number, number)
    first = town.wire()
    changed = False
    steps = idle = 0
    while idle < 3:
        moved = steps == moment and not changed
        if moved:
            changed = True
            if planned:
                first.node.say(Redirect("b:1"))
            else:
                first.cut()
        if steps == 150:
            for number in range(3):
                town.network.publish(b"x", b"down%d" % number, number)
        town.tick(0.01)
        for wire in list(town.wires):
            moved |= wire.move(1, 1)
        client.hear()
        steps += 1
        idle = 0 if moved or steps < 160 else idle + 1
    client.talk(3)
    assert client.repeated == 0
    assert not client.pending
    assert [one for one in client.received if one[1]] == [(b"down1", 1), (b"down2", 2)]
    accepted = [(payload, qos) for _, payload, qos in town.network.accepted if qos]
    assert list(dict.fromkeys(accepted)) == [(b"up1", 1), (b"up2", 2)]
    assert accepted.count((b"up2", 2)) == 1
    assert len([one for one in town.network.accepted if not one[2]]) <= 1
    assert town.network.sessions[b"c"].filters == {b"x": 2}
    assert not town.network.sessions[b"c"].inflight
    return changed


@pytest.mark.slow
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("planned", [True, False])
def test_a_change_of_nodes_at_any_byte_is_not_noticed(version: int, planned: bool) -> None:
    moments = 0
    while moments < LONGER_THAN_THE_CONVERSATION and conversation(version, moments, planned=planned):
        moments += 1
    assert moments > 180
