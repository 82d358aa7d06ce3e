"""A hundred thousand damaged packets at a real node: it goes on serving clients that behave, and stays small.

STERNA_MUTATED_PACKETS=1000000 sends more of them, STERNA_MUTATED_SEED=8 others.  A damaged packet ends its connection,
so the number counts those that the node has parsed, not those that were sent.
"""

from __future__ import annotations

import os
import socket
from itertools import count, islice
from pathlib import Path
from random import Random

import pytest

from conformance.client import Client
from conformance.packets import Connect, Puback, Publish
from mutations import conversations

from .nodes import LiveNode

SEED = int(os.environ.get("STERNA_MUTATED_SEED", "7"))
#: To be parsed; of the default number about two in five are.
PARSED = int(os.environ.get("STERNA_MUTATED_PACKETS", "40000"))
EACH, AT_ONCE, BATCH = 5, 64, 10_000
#: From when the node has met every kind of packet; most of it is the newest messages of the journal, in memory.
GROWTH_BYTES_MAX = 32 * 1024 * 1024
#: Of it in the second half: however many packets come, it has an end.
LATE_GROWTH_BYTES_MAX = 16 * 1024 * 1024
PATIENCE_S = 60.0

NODE = """
[journal]
durability = "os"
segment_bytes = 4194304
retention_bytes = 16777216
[limits]
sessions = 500
session_expiry_s = 5
retained = 100
connect_s = 5.0
[admin]
bind = "127.0.0.1:0"
"""


def joined(node: LiveNode, client_id: str, version: int) -> Client:
    client = Client(node.address, version, client_id, says_why=True)
    client.connect(Connect(client_id, keep_alive=0))
    return client


def talk_at_once(node: LiveNode, number: int, talks: list[tuple[int, list[bytes]]]) -> None:
    """All these conversations side by side, each to its end: the node closes, or we do and it follows."""
    lines = []
    for _, talk in talks:
        # Another address of this machine for each group, so that ports do not run out.
        line = socket.create_connection(node.address, PATIENCE_S, (f"127.0.1.{number % 200 + 1}", 0))
        lines.append(line)
        try:
            line.sendall(b"".join(talk))
            line.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has closed already
    for line in lines:
        try:
            while line.recv(65536):
                pass
        except ConnectionError:
            pass
        line.close()


def parsed(node: LiveNode) -> float:
    return node.metric("sterna_packets_received_total")


@pytest.mark.slow
@pytest.mark.timeout(300 + PARSED // 50)
def test_thousands_of_damaged_packets_harm_nobody_else(tmp_path: Path) -> None:
    with LiveNode(tmp_path, NODE) as node:
        bystander, writer = joined(node, "bystander", 5), joined(node, "writer", 4)
        bystander.subscribe("quiet/street", 1)
        rng = Random(SEED)
        talks = (talk for _ in count() for talk in conversations(rng, BATCH, EACH))
        number, before, halfway, own = 0, 0, 0, 0.0
        while (done := parsed(node) - own) < PARSED:
            group = list(islice(talks, AT_ONCE))
            talk_at_once(node, number, group)
            payload = b"%d" % number
            assert writer.publish("quiet/street", payload, 1) == 0
            message = bystander.wait_for(Publish)
            assert message.payload == payload, f"seed {SEED}, group {number}"
            bystander.send(Puback(message.packet_id))
            number += 1
            own += 2  # PUBLISH and PUBACK of the two that behave
            if number == 20:
                before = node.resident_bytes
            if not halfway and done >= PARSED / 2:
                halfway = node.resident_bytes
        bystander.expect_nothing()
        print(f"{parsed(node) - own:.0f} damaged packets parsed, {number * AT_ONCE * EACH} sent, seed {SEED}")
        after = node.resident_bytes
        grown = f"the node grew by {(after - before) >> 20} MiB, {(after - halfway) >> 20} MiB in the second half"
        print(grown)
        assert after - before < GROWTH_BYTES_MAX, grown
        assert after - halfway < LATE_GROWTH_BYTES_MAX, grown
        log = node.log()
        assert "Traceback" not in log
        assert "Exception" not in log
        assert node.stop() == 0
        for client in (bystander, writer):
            client.drop()
