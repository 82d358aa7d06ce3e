"""Any conversation, cut anywhere, any number of times: the delivery contract, and order, as the client sees them."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from .model_client import ModelClient
from .town import Town

UP, DOWN, CARRY, HEAR, PAY, CUT, REDIRECT, TIMER, CRASH = range(9)

steps = st.one_of(
    st.tuples(st.just(UP), st.integers(0, 2)),
    st.tuples(st.just(DOWN), st.integers(0, 2)),
    st.tuples(st.just(CARRY), st.integers(0, 40)),
    st.tuples(st.just(HEAR), st.just(0)),
    st.tuples(st.just(PAY), st.integers(1, 4)),
    st.tuples(st.just(CUT), st.just(0)),
    st.tuples(st.just(REDIRECT), st.integers(0, 1)),
    st.tuples(st.just(TIMER), st.just(0)),
    st.tuples(st.just(CRASH), st.integers(0, 4)),
)


class Run:
    def __init__(self, version: int, first_id: int) -> None:
        self.town = Town()
        self.town.network.first_id = first_id
        self.client = ModelClient(self.town, version)
        self.client.connect()
        self.client.subscribe(b"down")
        self.client.talk()
        self.client.owed = []
        self.sent: dict[str, list[list[bytes]]] = {"up": [[], [], []], "down": [[], [], []]}
        self.losses = 0

    def step(self, kind: int, number: int) -> None:
        town, client = self.town, self.client
        live = [wire for wire in town.wires if not wire.over]
        if kind == UP:
            payload = b"u%d" % sum(map(len, self.sent["up"]))
            self.sent["up"][number].append(payload)
            client.publish(payload, number)
        elif kind == DOWN:
            payload = b"d%d" % sum(map(len, self.sent["down"]))
            self.sent["down"][number].append(payload)
            town.network.publish(b"down", payload, number)
        elif kind == CARRY:
            for wire in live:
                wire.move(number, number)
        elif kind == HEAR:
            client.hear()
        elif kind == PAY:
            client.pay(number)
        elif kind == CUT:
            self.losses += bool(live)
            for wire in live:
                wire.cut()
        elif kind == REDIRECT and live:
            self.losses += 1
            live[0].node.dismiss(0x9C, ("a:1", "b:1")[number])
        elif kind == CRASH:
            self.losses += 2
            for wire in live:
                wire.cut()
            town.network.crash(number)
        elif kind == TIMER:
            town.next_timer()

    def finish(self) -> None:
        self.client.pay()
        self.client.owed = None
        for _ in range(10):
            self.client.talk(2)


def check(run: Run) -> None:
    client, town = run.client, run.town
    assert not client.pending, f"unanswered: {client.pending}"
    assert not client.end.closing, town.reports
    directions = {
        "up": [(payload, qos) for _, payload, qos in town.network.accepted],
        "down": client.received,
    }
    for direction, arrived in directions.items():
        for qos, sent in enumerate(run.sent[direction]):
            got = [payload for payload, at in arrived if at == qos]
            once = list(dict.fromkeys(got))
            known = set(got)
            assert once == [payload for payload in sent if payload in known], f"QoS {qos} {direction}: order"
            if qos != 1:
                assert got == once, f"QoS {qos} {direction}: twice"
            if qos:
                assert once == sent, f"QoS {qos} {direction}: lost"
            if qos == 1 and direction == "down" and run.losses < 2:
                assert got == once, "the client was told again what it had acknowledged"
    session = town.network.sessions[b"c"]
    assert not session.inflight
    assert not session.queue
    assert not session.received
    assert not client.client.deliveries.orphans


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([4, 5]), st.sampled_from([1, 65530]), st.lists(steps, max_size=60))
@example(5, 1, [(DOWN, 2), (CARRY, 40), (HEAR, 0), (PAY, 1), (CUT, 0), (TIMER, 0), (TIMER, 0)])
def test_no_conversation_breaks_the_contract(version: int, first_id: int, script: list[tuple[int, int]]) -> None:
    run = Run(version, first_id)
    for kind, number in script:
        if version == 4 and kind == REDIRECT:
            kind = CUT
        run.step(kind, number)
    run.finish()
    check(run)


@pytest.mark.slow
def test_the_contract_holds_over_many_turns_of_the_identifiers() -> None:
    """The window is small and the circle is walked more than once, with cuts on the way."""
    run = Run(4, 60000)
    for turn in range(7000):
        for _ in range(10):
            run.step(DOWN, 1 + turn % 2)
        run.step(CARRY, 1 << 30)
        run.step(HEAR, 0)
        run.step(PAY, 1 << 30)
        if turn % 500 == 499:
            run.step(CARRY, 30)
            run.step(CUT, 0)
            run.town.pass_time(1)
        run.step(CARRY, 1 << 30)
        run.step(HEAR, 0)
        run.step(PAY, 1 << 30)
    run.finish()
    check(run)
    assert run.losses == 14
    assert run.town.gateway.counters.repetitions > 0
