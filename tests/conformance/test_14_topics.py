"""Topic names and filters: what matches what."""

from __future__ import annotations

import pytest

from .packets import Publish
from .peer import Broker

# `@` stands for a level that only this test uses.
MATCHES = """
    @            @
    @/a          @/a
    @/#          @
    @/#          @/
    @/#          @/a
    @/#          @/a/b/c
    @/a/#        @/a
    @/+          @/a
    @/+          @/
    @/+/c        @/b/c
    @/+/c        @//c
    @/+/+        @//
    @/+/#        @/a
    @/+/#        @/a/b
    +/@          a/@
    +/@          /@
    +/+/@        a//@
    +/@/#        a/@
    /@           /@
    /+/@         //@
    @/           @/
    @//a         @//a
    @/a b        @/a b
    @/$sys       @/$sys
    @/+          @/$sys
    $@/#         $@/a
    $@/+         $@/a
    @/Ärger/ß    @/Ärger/ß
    @/+          @/\N{BIRD}
    @/a.*        @/a.*
"""
DIFFERS = """
    @            @/
    @            @/a
    @/a          @/A
    @/a          @/a/
    @/a          /@/a
    @/           @
    @/+          @
    @/+          @/a/b
    @/+/c        @/c
    @/+/#        @
    @/a/#        @/ab
    @/#          @a
    +/@          $a/@
    +/+/@        $a/b/@
    #            $@
    #            $@/a
    +/a          $@/a
    @/a.*        @/abc
    @/e\u0301    @/\u00e9
"""


def pairs(table: str) -> list[tuple[str, str]]:
    """Two columns, at least two blanks apart."""
    rows = [line.strip().split("  ", 1) for line in table.strip().splitlines()]
    return [(topic_filter, name.strip()) for topic_filter, name in rows]


@pytest.mark.parametrize(("topic_filter", "name"), pairs(MATCHES))
def test_a_filter_matches(broker: Broker, version: int, client_id: str, topic_filter: str, name: str) -> None:
    """Section 4.7"""
    client = broker.join(version)
    assert client.subscribe(topic_filter.replace("@", client_id)) == 0
    client.publish(name.replace("@", client_id), b"x")
    client.expect(Publish(name.replace("@", client_id), b"x"))
    client.expect_nothing()


@pytest.mark.parametrize(("topic_filter", "name"), pairs(DIFFERS))
def test_a_filter_does_not_match(broker: Broker, client_id: str, topic_filter: str, name: str) -> None:
    """[MQTT-4.7.2-1] keeps leading wildcards off `$` topics, [MQTT-4.7.3-4] forbids any normalising."""
    client = broker.join()
    name = name.replace("@", client_id)
    assert client.subscribe(topic_filter.replace("@", client_id)) == 0
    client.publish(name, b"x")
    assert name not in [message.topic for message in client.waiting_messages()]


def test_a_topic_may_be_very_long(broker: Broker, version: int, topic: str) -> None:
    name = f"{topic}/" + "x" * 3900
    client = broker.join(version)
    client.subscribe(name)
    client.publish(name, b"x")
    client.expect(Publish(name, b"x"))


def test_a_topic_may_be_very_deep(broker: Broker, version: int, topic: str) -> None:
    name = topic + "/d" * 100
    client = broker.join(version)
    for topic_filter in name, f"{topic}/#", topic + "/+" * 100:
        client.subscribe(topic_filter)
        client.publish(name, b"x")
        client.expect(Publish(name, b"x"))
        client.unsubscribe(topic_filter)


def test_the_byte_order_mark_is_a_character_like_any_other(broker: Broker, version: int, topic: str) -> None:
    """[MQTT-1.5.4-3]: U+FEFF is not stripped."""
    name = f"{topic}/\ufeffa"
    client = broker.join(version)
    client.subscribe(name)
    client.publish(f"{topic}/a", b"plain")
    client.publish(name, b"marked")
    client.expect(Publish(name, b"marked"))
    client.expect_nothing()


def test_many_filters_are_matched_together(broker: Broker, version: int, topic: str) -> None:
    """A tree of subscriptions answers as each one alone would."""
    client = broker.join(version)
    filters = [f"{topic}/{first}/{second}" for first in ("a", "b", "+") for second in ("a", "b", "+", "#")]
    for topic_filter in filters:
        client.subscribe(topic_filter)
    for topic_filter in filters:
        client.unsubscribe(topic_filter)
        if topic_filter != f"{topic}/+/#":
            client.publish(f"{topic}/b/b", b"x")
            assert client.waiting_messages()
    client.publish(f"{topic}/b/b", b"x")
    client.expect_nothing()
