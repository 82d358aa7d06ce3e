"""The moves of which `wire` counts the bytes: one client at a time, of every kind, at every QoS."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from sterna.measure.harness.comparison import Say
from sterna.measure.papers.migration.experiment import run_in
from sterna.measure.papers.migration.network import network
from sterna.measure.papers.migration.plan import KINDS, ClientKind, MigrationPlan, MovedTopic, MoveExperiment
from sterna.measure.papers.migration.records import MOVES
from sterna.measure.papers.migration.wire import (
    PAPER_MOVE,
    PAPER_MQTT,
    MoveWire,
    WireLog,
    WireMove,
    account,
    is_mqtt_packet,
    is_word_of_a_move,
    sizes,
)

NODES = 2
LINKS_PORT, CLIENTS_PORT = 7883, 1883
PLAIN: ClientKind = "mqtt311"


def measure(plan: MigrationPlan, say: Say) -> MoveWire:
    """Only at a distance: there the switch sees every packet."""
    moves: list[WireMove] = []
    log = WireLog(NODES, LINKS_PORT, CLIENTS_PORT)
    plain = WireLog(NODES, LINKS_PORT, CLIENTS_PORT)
    for kind in (one for one in KINDS if one in plan.kinds):
        tap = plain if kind == PLAIN else log
        only = replace(plan, kinds=(kind,), runs=1)
        spans: list[tuple[int, float, float]] = []
        with network(only, _experiment(kind, 0), tap) as nodes:
            for qos in range(3):
                records = asyncio.run(run_in(only, _experiment(kind, qos), 1, nodes))
                (move,) = (dict(zip(MOVES.names, row, strict=True)) for row in records.moves)
                ends = [end for end in (move["finished"], move["arrived"]) if end is not None]
                spans.append((qos, move["ordered"], max(ends, default=move["ordered"])))
                say(f"on the wire, {kind}, QoS {qos}: {move['problem'] or 'moved'}")
        seen = tap.read()
        moves += [account(seen, kind, qos, *span) for qos, *span in spans]
    every = log.read() + plain.read()
    return MoveWire(
        moves=moves,
        sizes=sizes(every, PAPER_MOVE, is_word_of_a_move),
        mqtt=sizes(plain.read(), PAPER_MQTT, is_mqtt_packet),
    )


def _experiment(kind: ClientKind, qos: int) -> MoveExperiment:
    return MoveExperiment(f"wire-{kind}-A{qos}", (MovedTopic("topicA", qos, "synced"),), "wire", NODES)
