"""Real nodes, one of them killed under load: what they noted accounts for every message, and nothing is held against
them."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from pyspark.sql import SparkSession

from live.crowd import Crowd
from live.nodes import START_S, LiveNode, wait_until
from sterna.cli.admin_client import ask
from sterna.cli.pipeline_audit import TellsNodes, report

from .audited import AuditedNetwork, audited

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MESSAGES_PER_S = 100


def passed(until: float) -> bool:
    return time.monotonic() > until


def fleeting(node: LiveNode) -> paho.Client:
    """A client whose session dies with its node; it comes back and subscribes anew."""
    client = paho.Client(CallbackAPIVersion.VERSION2, f"fleeting-{node.directory.name}")

    def subscribe(*_: object) -> None:
        client.subscribe("data/#", 1)

    client.on_connect = subscribe
    client.connect(*node.address)
    client.loop_start()
    return client


def test_a_network_with_a_node_killed_under_load_audits_clean(spark: SparkSession, tmp_path: Path) -> None:
    with (
        AuditedNetwork(tmp_path) as network,
        Crowd(list(network.nodes.values()), random.Random(1), MESSAGES_PER_S) as crowd,
    ):
        visitors = [fleeting(network["b"]), fleeting(network["c"])]
        for victim in "bc":
            crowd.run(partial(passed, time.monotonic() + 1), 2)
            network[victim].kill()
            crowd.run(partial(passed, time.monotonic() + 0.5), 2)
            network[victim].launch()
            assert crowd.run(network[victim].is_up, START_S)
        network.wait_until_settled()
        crowd.drain()
        crowd.check()
        for visitor in visitors:
            visitor.disconnect()
            visitor.loop_stop()
            visitor._reset_sockets()  # which paho leaves to the collector
        found, rows = audited(spark, network, lambda rows: not any(row.violation for row in rows))
    assert (found.nodes, found.silent) == (["a", "b", "c"], [])
    assert [row for row in rows if row.violation] == []
    published = sum(map(len, crowd.published.values()))
    for who in (*(reader.client_id for reader in crowd.readers), ""):
        of_it = [row for row in rows if row.client == who and "data/#" in row.filter]
        assert sum(row.expected for row in of_it) == sum(row.delivered for row in of_it) >= published, of_it
    passers_by = [row for row in rows if row.client.startswith("fleeting")]
    assert sum(row.delivered for row in passers_by) > 0


def test_the_outcome_of_an_audit_is_on_the_dashboard_of_every_node(spark: SparkSession, tmp_path: Path) -> None:
    with AuditedNetwork(tmp_path) as network:
        reader = paho.Client(CallbackAPIVersion.VERSION2, "reader")
        came: list[bytes] = []
        reader.on_message = lambda _client, _data, message: came.append(bytes(message.payload))
        reader.on_connect = lambda client, *_: client.subscribe("plant/#", 1)
        reader.on_subscribe = lambda client, *_: client.publish("plant/1", b"x", 1)
        reader.connect(*network["a"].address)
        reader.loop_start()
        wait_until(lambda: came, "the message")
        source = {"nodes": network.feeds["b"]}
        found, _ = audited(spark, network, lambda rows: any(row.expected for row in rows))
        assert report(found, 10, None, as_json=True, tell=TellsNodes(source, found, "everything"))
        (row,) = ask(network["c"].admin, "/dashboard/audits", None)["rows"]
        reader.disconnect()
        reader.loop_stop()
        reader._reset_sockets()
    assert (row["node"], row["violations"], row["nodes"]) == ("b", 0, ["a", "b", "c"])
    # Nobody can see when the record of a delivery is written.
    assert (row["expected"], row["delivered"] + row["waiting"]) == (1, 1)
    assert [one["filter"] for one in row["worst"] if one["client"] == "reader"] == ["plant/#"]
