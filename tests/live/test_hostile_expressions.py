"""Expressions and payloads of people who mean no good, at a real node: bounded, counted, explained, survived.

While they are at it, somebody else publishes and is answered in good time, and no result is a number that is not one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cbor2
import psutil
import pytest

from .clients import Paho, Settings
from .nodes import LiveNode, wait_until

ADMIN = '[admin]\nbind = "127.0.0.1:0"\n'
PATIENCE_S = 2.0
"""The work of a node until somebody who has nothing to do with it is answered."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    with LiveNode(tmp_path, ADMIN) as node:
        yield node


@pytest.fixture
def join(node: LiveNode) -> Iterator[Callable[..., Paho]]:
    clients: list[Paho] = []

    def joined(**how: object) -> Paho:
        clients.append(Paho("127.0.0.1", node.port, Settings(**how)))  # type: ignore[arg-type]
        return clients[-1]

    yield joined
    for client in clients:
        client.close()


def round_trip(node: LiveNode, bystander: Paho) -> float:
    """Seconds of the node's own work: a clock would count the work of others on a busy machine."""
    process = psutil.Process(node.pid)
    began = sum(process.cpu_times()[:2])
    seen = len(bystander.messages)
    bystander.publish("bystander", b"x", 1)
    bystander.receive(seen + 1)
    return float(sum(process.cpu_times()[:2]) - began)


def not_numbers(node: LiveNode) -> float:
    return node.metric("sterna_expression_values_total", reason="not-a-number")


EXPRESSIONS = [
    *(f"${name}/n/+" for name in ("AVG", "SUM", "MIN", "MAX", "COUNT", "STDDEV", "MEDIAN", "LAST", "DELTA", "RATE")),
    *("$QUANTILE;0.99/n/+", "$TMPAVG;0:00:05/n/+", "$TMPSTDDEV;0:00:05/n/+", "$TMPMEDIAN;0:00:05/n/+"),
    *("$GT;0/n/+", "$SUM$RATE$DELTA/n/+", "$MAX$TMPSUM;0:00:01$GT;-1/n/+", "$AVG;.a/n/+", "$GT;0;.a.0.b/n/+"),
    *("$CONTAINS;1/n/+", "$TMPSUM;0:00:01$CONTAINS;9/n/+", "$COUNT;.a/n/+", "$SUM;.a/n/+"),
]

PAYLOADS: list[bytes] = [
    b"",
    b"nan",
    b"-NaN",
    b"inf",
    b"-Infinity",
    b"1e309",
    b"-1e400",
    b"1e127",
    b"170141183460469231731687303715884105727",
    b"-170141183460469231731687303715884105728",
    b"9" * 64,
    b"9" * 65,
    b"9" * 500_000,
    b"0x10",
    b"1_000",
    b"1,5",
    b"21.5 C",
    b"\xff\xfe\x00",
    b"\x00" * 1000,
    "٣".encode(),
    b"5e-324",
    b"1.7976931348623157e308",
    b'{"a": 1e400}',
    b'{"a": NaN}',
    b'{"a": "Infinity"}',
    b'{"a": "7"}',
    b'{"b": 1}',
    b'{"a": [{"b": 3}]}',
    b'{"a": {"0": {"b": []}}}',
    b'{"a": ' + b"9" * 60_000 + b"}",
    b"[" * 60_000,
    b'{"a":' * 13_000,
    cbor2.dumps({"a": 2**400}),
    cbor2.dumps({"a": float("nan")}),
    cbor2.dumps({"a": float("-inf")}),
    cbor2.dumps({"a": 4.5}),
    b"\x81" * 60_000,
    b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\xbb\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\x81\x5b\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\xc5\x82\x1b\x7f\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xd8\x1c\x81\xd8\x1d\x00",
    b"a" * 1_000_000,
]


def test_whatever_is_published_results_are_finite_and_the_rest_is_counted(
    node: LiveNode, join: Callable[..., Paho]
) -> None:
    watcher, sensor, bystander = join(), join(), join()
    for text in EXPRESSIONS:
        assert watcher.subscribe(text, 1) == 1, text
    bystander.subscribe("bystander", 1)
    for number, payload in enumerate(PAYLOADS):
        sensor.publish(f"n/{number % 3}", payload, 1)
        sensor.publish(f"n/{number % 2}", b"%d" % number, 1)
    assert round_trip(node, bystander) < PATIENCE_S
    watcher.subscribe("end", 1)
    sensor.publish("end", b"", 1)
    wait_until(lambda: any(message.topic == "end" for message in watcher.messages), "the end")
    plain = ("$GT;0/", "$GT;0;", "$CONTAINS;1/", "end")
    numbers = [message for message in watcher.messages if not message.topic.startswith(plain)]
    assert len(numbers) > 10 * len(PAYLOADS)
    assert all(math.isfinite(float(message.payload)) for message in numbers)
    assert not_numbers(node) > 100
    assert not node.events("an expression has stopped")


@pytest.mark.parametrize("version", [4, 5])
def test_thousands_of_expressions_of_one_client_are_refused_and_nobody_else_notices(
    node: LiveNode, join: Callable[..., Paho], version: int
) -> None:
    greedy, bystander = join(version=version), join()
    bystander.subscribe("bystander", 1)
    filters = [[(f"$SUM/t/{number}/{place}", 1) for place in range(500)] for number in range(8)]
    granted = [greedy.client.subscribe(some) for some in filters]
    slowest = max(round_trip(node, bystander) for _ in range(10))
    mids = [mid for _, mid in granted]
    wait_until(lambda: all(mid in greedy._answers for mid in mids), "every SUBSCRIBE is answered", 60.0)
    codes = [code.value for mid in mids if mid is not None for code in greedy._answers[mid]]
    assert codes == [1] * 100 + [0x97 if version == 5 else 0x80] * 3900
    assert slowest < PATIENCE_S
    assert node.metric("sterna_expressions") == 100


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("$AVG" * 17 + "/t", "at most 16 operators"),
        ("$GT;1" * 300 + "/t", "longer than 1024 bytes"),
        ("$AVG/" + "t" * 2000, "longer than 1024 bytes"),
        ("$QUANTILE;" + "9" * 900 + "/t", "from 0 to 1"),
        ("$GT;" + "9" * 900 + "/t", "out of range"),
        ("$TMPAVG;99:99:99/t", "H:MM:SS"),
        ("$HOURLYAVG$DAILYAVG/t", "at most one periodic"),
        ("$AVG;" + "." * 500 + "/t", "empty name"),
        ("$COUNTMALE/t", '[[functions.own]] with name = "COUNTMALE"'),
    ],
)
def test_an_expression_bomb_is_refused_with_a_reason(
    node: LiveNode, join: Callable[..., Paho], text: str, why: str
) -> None:
    client = join()
    reasons: list[str] = []

    def answered(paho: Any, userdata: Any, packet_id: int, codes: Any, properties: Any) -> None:
        reasons.append(getattr(properties, "ReasonString", ""))
        client._on_answer(paho, userdata, packet_id, codes, properties)

    client.client.on_subscribe = answered
    assert client.subscribe(text, 1) == 0x8F
    assert why in reasons[0]


def test_large_structured_payloads_for_hundreds_of_expressions_do_not_stop_the_node(
    node: LiveNode, join: Callable[..., Paho]
) -> None:
    bystander, sensor = join(), join()
    bystander.subscribe("bystander", 1)
    taken = 0
    for number in range(8):
        watcher = join()
        for place in range(95):
            if watcher.subscribe(f"$SUM;.f{number}.{place}/t/+") != 0:
                break  # the others are to have a share of them
            taken += 1
    assert taken > 180
    dear = b"\x99\x40\x00" + b"\xc5\x82\x19\x7f\xff\x01" * 0x2900  # big fractions, 63 KiB of them
    for _ in range(20):
        sensor.send("t/1", dear, 1)
    assert max(round_trip(node, bystander) for _ in range(5)) < PATIENCE_S
    wait_until(lambda: not_numbers(node) == 20 * taken, "all are counted")
