"""The busiest topics: rates by gateway, bounds on prefixes and publishers, sampling that does not bend the rates."""

from __future__ import annotations

import pytest

from sterna.broker.topic_flows import PREFIXES_MAX, PUBLISHERS_MAX, SAMPLED_MAX, SAMPLES_MAX, TopicFlows


def rounds(flows: TopicFlows, count: int, each: list[tuple[bytes, str, int]], round_s: float = 1.0) -> None:
    start = flows._turned_at
    for number in range(1, count + 1):
        for topic, gateway, messages in each:
            flows.saw(topic, gateway, messages)
        flows.turn_over(start + number * round_s)


def test_rates_are_those_of_the_gateways_and_fade_when_they_fall_silent() -> None:
    flows = TopicFlows(0.0)
    rounds(flows, 12, [(b"plant/line/1", "g1", 30), (b"plant/line/2", "g2", 10), (b"plant/line/2", "", 5)])
    (prefix,) = flows.flows
    assert prefix == b"plant/line"
    flow = flows.flows[prefix]
    assert flow.rates == {"g1": pytest.approx(30, rel=0.01), "g2": pytest.approx(10, rel=0.01)}
    assert flow.per_s == pytest.approx(45, rel=0.01)
    assert flow.topics == [b"plant/line/2", b"plant/line/1"]
    rounds(flows, 20, [])
    assert flows.flows == {}


def test_strangers_cannot_make_it_big() -> None:
    flows = TopicFlows(0.0)
    for number in range(2000):
        flows.saw(f"t{number}/x".encode(), f"g{number}", 1)
        flows.saw(f"same/x/{number}".encode(), f"g{number}", 10)
        flows.saw(b"long/" + bytes([97]) * 1000, "g", 1)
        flows.saw(b"$SYS/x", "g", 1)
    assert len(flows.flows) == PREFIXES_MAX
    assert not {b"$SYS/x", b"long/" + b"a" * 1000} & flows.flows.keys()
    busiest = flows.flows[b"same/x"]
    assert (len(busiest.by_gateway), len(busiest.topics)) == (PUBLISHERS_MAX, SAMPLES_MAX)
    flows.turn_over(1.0)
    assert len(flows.flows[b"same/x"].rates) <= PUBLISHERS_MAX


def test_of_many_messages_some_are_looked_at_and_the_rates_are_right() -> None:
    """Two publishers that take turns: steps of one length would see one of them only."""
    flows = TopicFlows(0.0)
    busy = 50 * SAMPLED_MAX
    rounds(flows, 8, [(b"a/b", "even", 1), (b"a/b", "odd", 1)] * (busy // 2))
    looked_at: list[int] = []
    count = flows._count

    def counted(topic: bytes, gateway: str, messages: int) -> None:
        looked_at.append(messages)
        count(topic, gateway, messages)

    flows._count = counted  # type: ignore[method-assign]
    rounds(flows, 1, [(b"a/b", "even", 1), (b"a/b", "odd", 1)] * (busy // 2))
    assert len(looked_at) < 2 * SAMPLED_MAX
    rates = flows.flows[b"a/b"].rates
    assert rates["even"] + rates["odd"] == pytest.approx(busy, rel=0.1)
    assert rates["even"] == pytest.approx(busy / 2, rel=0.25)
