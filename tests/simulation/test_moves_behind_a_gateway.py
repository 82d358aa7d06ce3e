"""A client behind a gateway is moved, and something goes wrong at each message of the protocol, and at each word
between a node and the gateway: the gateway may be what breaks.

The client has to notice nothing but, when its gateway is gone, that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from faulty_moves import CLIENT, FAULTS, WAYS, Fault, begun, checked, crash, ordered
from test_moves_under_faults import FIRST, PLANNED, at_message
from town import Town

from sterna.mqtt import gateway_packets

WORDS = ("GatewayHello", "Prepare", "GatewayStopped")
QUICK = ("MigSync", "GatewayStopped")
WITH_GATEWAY: dict[str, Fault] = {
    **FAULTS,
    "the gateway is killed": crash("gateway", power=False),
    "the gateway loses power": crash("gateway", power=True),
}


def marked(*names: str) -> list[object]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


@contextmanager
def at_word(kind: str, town: Town, fault: Fault, *, before: bool) -> Iterator[list[str]]:
    """Something goes wrong when a word is said for the first time, so that it is lost on the way, or is heard."""
    passed: list[str] = []
    encode, decode = gateway_packets.encode, gateway_packets.decode

    def note(name: str) -> None:
        if name == kind and kind not in passed:
            town.scene.kernel.after(0.0, fault, town)
        passed.append(name)

    def encode_noting(word: Any) -> bytes:
        if before:
            note(type(word).__name__)
        return encode(word)

    def decode_noting(data: bytes, body: int, stop: int) -> Any:
        word = decode(data, body, stop)
        if not before:
            note(type(word).__name__)
        return word

    gateway_packets.encode, gateway_packets.decode = encode_noting, decode_noting  # type: ignore[assignment]
    try:
        yield passed
    finally:
        gateway_packets.encode, gateway_packets.decode = encode, decode


@pytest.mark.parametrize("before", [True, False], ids=["instead of it", "after it"])
@pytest.mark.parametrize("fault", WITH_GATEWAY)
@pytest.mark.parametrize("kind", marked(*PLANNED))
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_message_of_the_protocol(size: int, kind: str, fault: str, before: bool) -> None:
    town = begun(size, len(kind) + 3 * len(fault), gateway=True)
    with at_message(kind, town, WITH_GATEWAY[fault], before=before) as heard:
        ordered(town)
        checked(town, heard, kind)


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False], ids=["instead of it", "after it"])
@pytest.mark.parametrize("fault", WITH_GATEWAY)
@pytest.mark.parametrize("kind", [FIRST, *PLANNED])
@pytest.mark.parametrize("way", list(WAYS)[1:])
def test_a_message_of_the_protocol_where_some_way_is_long(way: str, kind: str, fault: str, before: bool) -> None:
    """The client may come to its new node before that has heard of it, and long after it is prepared."""
    if kind == FIRST and way == "nodes far from each other":
        pytest.skip("the client is there first")
    town = begun(2, len(kind) + 7 * len(fault) + len(way), gateway=True, way=way)
    with at_message(kind, town, WITH_GATEWAY[fault], before=before) as heard:
        ordered(town)
        checked(town, heard, kind)


@pytest.mark.parametrize("before", [True, False], ids=["instead of it", "after it"])
@pytest.mark.parametrize("fault", WITH_GATEWAY)
@pytest.mark.parametrize("word", marked(*WORDS))
def test_a_word_between_node_and_gateway(word: str, fault: str, before: bool) -> None:
    goes_wrong_at_a_word(word, fault, before=before)


@pytest.mark.slow
@pytest.mark.parametrize("fault", WITH_GATEWAY)
def test_the_last_word_of_a_gateway(fault: str) -> None:
    """The node has hung up by then."""
    goes_wrong_at_a_word("Drained", fault, before=True)


def goes_wrong_at_a_word(word: str, fault: str, *, before: bool) -> None:
    town = begun(2, len(word) + 5 * len(fault), gateway=True)
    with at_word(word, town, WITH_GATEWAY[fault], before=before) as passed:
        ordered(town)
        checked(town, passed, word)


def test_without_a_fault_the_client_does_not_notice() -> None:
    town = begun(2, 1, gateway=True)
    client = town.subscribers["node1"]
    before = client.conversation
    ordered(town)
    town.scene.run(3.0)
    there = town.machine("node2").running
    assert there is not None
    session = there.broker.sessions.get(CLIENT.encode())
    assert session is not None
    assert session.connection is not None
    assert client.conversation is before
    assert town.end() == []
