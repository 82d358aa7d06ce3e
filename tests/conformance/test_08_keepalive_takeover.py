"""Keep-alive, and one client identifier used twice."""

from __future__ import annotations

import time

import pytest

from .packets import Connack, Publish, Will
from .peer import Broker


def test_a_silent_client_is_dropped_and_a_talking_one_kept(broker: Broker, topic: str) -> None:
    """[MQTT-3.1.2-22]: dropped after one and a half times the keep-alive, in 5.0 with 0x8D; 0 is for ever."""
    watcher = broker.join()
    watcher.subscribe(f"{topic}/+")
    silent = {v: broker.join(v, keep_alive=1, will=Will(f"{topic}/{v}", b"silent")) for v in (4, 5)}
    talking, carefree = broker.join(keep_alive=2), broker.join(keep_alive=0)
    started, missed = time.monotonic(), set[str]()
    # The talking one is to be kept for longer than its own keep-alive and a half.
    while missed != {f"{topic}/4", f"{topic}/5"} or time.monotonic() < started + 3.5:
        assert time.monotonic() < started + 60
        talking.expect_nothing()
        missed |= {message.topic for message in watcher.waiting_messages()}
        time.sleep(0.1)  # the talking client's rhythm, well inside its keep-alive
    assert time.monotonic() > started + 1
    silent[4].expect_close()
    silent[5].expect_close(0x8D)
    talking.expect_nothing()
    carefree.expect_nothing()


def test_a_keep_alive_longer_than_allowed_is_lowered(broker: Broker) -> None:
    """[MQTT-3.2.2-21]: the client is told the server's value."""
    assert broker.join(keep_alive=1000).connack.properties["server_keep_alive"] == 600
    assert "server_keep_alive" not in broker.join(keep_alive=60).connack.properties


@pytest.mark.parametrize("newcomer", [4, 5], ids=["by v3.1.1", "by v5.0"])
def test_the_same_client_id_closes_the_older_connection(
    broker: Broker, version: int, newcomer: int, client_id: str
) -> None:
    """[MQTT-3.1.4-3]: DISCONNECT with 0x8E in 5.0."""
    older = broker.join(version, client_id)
    newer = broker.join(newcomer, client_id)
    older.expect_close(0x8E)
    newer.expect_nothing()


def test_taking_over_continues_the_session(broker: Broker, version: int, client_id: str, topic: str) -> None:
    """[MQTT-3.1.4-3]: subscriptions stay, and unacknowledged messages are sent to the new connection."""
    older = broker.resume(version, client_id)
    older.subscribe(topic, 1)
    publisher = broker.join(version)
    publisher.publish(topic, b"unanswered", qos=1)
    older.expect(Publish(topic, b"unanswered", qos=1))
    newer = broker.resume(version, client_id)
    assert newer.connack == Connack(0, session_present=True)
    newer.acknowledge(newer.expect(Publish(topic, b"unanswered", qos=1, dup=True)))
    publisher.publish(topic, b"fresh", qos=1)
    newer.expect(Publish(topic, b"fresh", qos=1))
    newer.expect_nothing()


def test_a_clean_start_takes_over_and_begins_anew(broker: Broker, version: int, client_id: str, topic: str) -> None:
    """[MQTT-3.1.2-4]"""
    broker.resume(version, client_id).subscribe(topic)
    newer = broker.join(version, client_id, clean=True)
    assert newer.connack == Connack(0, session_present=False)
    newer.publish(topic, b"unheard")
    newer.expect_nothing()


def test_the_last_of_many_with_one_client_id_stays(broker: Broker, version: int, client_id: str, topic: str) -> None:
    for _ in range(20):
        last = broker.resume(version, client_id)
    last.subscribe(topic)
    last.publish(topic, b"alone")
    last.expect(Publish(topic, b"alone"))
    last.expect_nothing()


def test_client_ids_differ_by_case(broker: Broker, version: int, client_id: str) -> None:
    lower, upper = broker.join(version, client_id.lower()), broker.join(version, client_id.upper())
    lower.expect_nothing()
    upper.expect_nothing()
