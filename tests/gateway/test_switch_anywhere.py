"""One conversation with everything in it, and a change of nodes at every single byte of it."""

from __future__ import annotations

import pytest

from sterna.mqtt.gateway_packets import Prepare, Redirect

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


ALL = 1 << 30
#: Bytes that pass in a step: from the old node, and from the new one.
SPEEDS = [(1, ALL), (ALL, 1), (7, 7), (ALL, ALL)]


def stream(version: int, moment: int, speeds: tuple[int, int]) -> bool:
    """A message at each QoS in turn with every step, while the session changes its node at one of them; False if the
    conversation was over by then."""
    town = Town()
    town.network.window = 100  # else messages at QoS 0 overtake others
    client = ModelClient(town, version)
    client.connect()
    client.subscribe(b"x")
    client.talk()
    old = town.wire()
    old.node.say(Prepare("b:1"))
    town.pass_time(0.1)
    changed = False
    sent: list[tuple[bytes, int]] = []
    for step in range(80):
        changed |= step == moment and town.network.hand_over()
        if step < 40:
            sent.append((b"down%d" % step, step % 3))
            town.network.publish(b"x", *sent[-1])
            client.publish(b"up%d" % step, step % 3)
        town.tick(0.01)
        for wire in list(town.wires):
            wire.move(ALL, speeds[wire is not old])
        client.hear()
    client.talk(3)
    assert client.received == sent, "no gap, no repetition, and in order"
    assert not client.pending
    assert town.network.second is None or not changed
    accepted = [(payload, qos) for _, payload, qos in town.network.accepted if qos and payload.startswith(b"up")]
    assert list(dict.fromkeys(accepted)) == [(b"up%d" % step, step % 3) for step in range(40) if step % 3]
    assert len([one for one in accepted if one[1] == 2]) == len({one for one in accepted if one[1] == 2})
    live = [wire.server for wire in town.wires if not wire.over]
    assert live == (["b:1"] if changed else ["a:1", "b:1"])
    return changed


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("speeds", SPEEDS)
def test_a_session_that_moves_leaves_no_gap_whichever_node_is_heard_first(
    version: int, speeds: tuple[int, int]
) -> None:
    moments = 0
    while moments < LONGER_THAN_THE_CONVERSATION and stream(version, moments, speeds):
        moments += 1
    assert moments == 80
