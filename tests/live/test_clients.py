"""The clients people use, in both protocol versions, against a real node: what they were promised, they get."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import aiomqtt
import pytest

from .clients import Will, mosquitto, output, properties, told
from .conftest import Join
from .nodes import LiveNode, wait_until

QOS = pytest.mark.parametrize("qos", [0, 1, 2])
LARGE = bytes(range(256)) * 3600  # 900 KB
AIOMQTT = {4: aiomqtt.ProtocolVersion.V311, 5: aiomqtt.ProtocolVersion.V5}


# -- paho-mqtt --


@pytest.mark.parametrize("subscriber_version", [4, 5])
def test_a_message_arrives_at_the_lower_of_both_qos(
    node: LiveNode, join: Join, version: int, subscriber_version: int, topic: str
) -> None:
    publisher = join(node, version=version)
    for granted in range(3):
        subscriber = join(node, version=subscriber_version)
        assert subscriber.subscribe(f"{topic}/{granted}", granted) == granted
        for sent in range(3):
            publisher.publish(f"{topic}/{granted}", b"%d" % sent, sent)
        assert [(m.payload, m.qos) for m in subscriber.receive(3)] == [
            (b"%d" % sent, min(sent, granted)) for sent in range(3)
        ]


@QOS
def test_a_retained_message_waits_for_subscribers_until_it_is_cleared(
    node: LiveNode, join: Join, version: int, qos: int, topic: str
) -> None:
    publisher = join(node, version=version)
    publisher.publish(topic, b"old", qos, retain=True)
    publisher.publish(topic, b"kept", qos, retain=True)
    early = join(node, version=version)
    early.subscribe(topic, 2)
    assert [(m.payload, m.qos, m.retain) for m in early.receive()] == [(b"kept", qos, True)]
    publisher.publish(topic, b"", qos, retain=True)
    assert [(m.payload, m.retain) for m in early.receive(2)][1:] == [(b"", False)]
    late = join(node, version=version)
    late.subscribe(topic, 2)
    publisher.publish(topic, b"live", qos)
    assert late.payloads() == [b"live"]


@QOS
def test_a_killed_client_leaves_its_will(
    node: LiveNode, join: Join, version: int, qos: int, topic: str, client_id: str
) -> None:
    watcher = join(node, version=version)
    watcher.subscribe(topic, 2)
    will = ("--will-topic", topic, "--will-payload", "gone", "--will-qos", str(qos))
    with mosquitto("mosquitto_sub", node.port, version, "-i", client_id, "-t", "other", *will) as mortal:
        wait_until(lambda: is_connected(node, client_id), "the client is connected")
        mortal.send_signal(signal.SIGKILL)
    assert [(m.payload, m.qos) for m in watcher.receive()] == [(b"gone", qos)]


def is_connected(node: LiveNode, client_id: str) -> bool:
    return any(event["client"] == client_id for event in node.events("client connected"))


def test_a_client_that_says_goodbye_takes_its_will_along(node: LiveNode, join: Join, version: int, topic: str) -> None:
    watcher = join(node, version=version)
    watcher.subscribe(topic, 1)
    join(node, version=version, will=Will(topic, b"gone")).close()
    watcher.publish(topic, b"nothing before this", 1)
    assert watcher.payloads() == [b"nothing before this"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_keeps_what_came_while_its_client_was_away(
    node: LiveNode, join: Join, version: int, qos: int, topic: str, client_id: str
) -> None:
    sleeper = join(node, version=version, client_id=client_id, persistent=True)
    assert not sleeper.session_present
    sleeper.subscribe(topic, qos)
    sleeper.close()
    sent = [b"%d" % number for number in range(300)]
    join(node, version=version).publish_all(topic, sent, qos)
    awake = join(node, version=version, client_id=client_id, persistent=True)
    assert awake.session_present
    assert awake.payloads(len(sent)) == sent
    join(node, version=version, client_id=client_id).close()  # a clean start ends it


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_thousand_messages_arrive_in_order(node: LiveNode, join: Join, version: int, qos: int, topic: str) -> None:
    subscriber = join(node, version=version)
    subscriber.subscribe(topic, qos)
    sent = [b"%d" % number for number in range(1000)]
    join(node, version=version).publish_all(topic, sent, qos)
    assert subscriber.payloads(len(sent)) == sent


@QOS
def test_a_large_payload_arrives_whole(node: LiveNode, join: Join, version: int, qos: int, topic: str) -> None:
    subscriber = join(node, version=version)
    subscriber.subscribe(topic, 2)
    join(node, version=version).publish(topic, LARGE, qos)
    assert subscriber.payloads() == [LARGE]


def test_unicode_topics_and_binary_payloads_arrive_as_they_were_sent(
    node: LiveNode, join: Join, version: int, topic: str
) -> None:
    spoken = f"{topic}/Größe/температура/温度/🌡"
    subscriber = join(node, version=version)
    subscriber.subscribe(f"{topic}/+/температура/#", 1)
    join(node, version=version).publish(spoken, bytes(range(256)), 1)
    assert [(m.topic, m.payload) for m in subscriber.receive()] == [(spoken, bytes(range(256)))]


def test_a_second_connection_takes_the_session_over(
    node: LiveNode, join: Join, version: int, topic: str, client_id: str
) -> None:
    first = join(node, version=version, client_id=client_id, persistent=True)
    first.subscribe(topic, 1)
    second = join(node, version=version, client_id=client_id, persistent=True)
    assert first.wait_for_end() == (0x8E if version == 5 else None)
    assert second.session_present
    second.publish(topic, b"to the second", 1)
    assert second.payloads() == [b"to the second"]
    assert not first.messages


def test_members_of_a_share_lose_nothing_when_one_of_them_is_killed(
    node: LiveNode, join: Join, version: int, topic: str
) -> None:
    doomed = join(node, version=version, manual_ack=True)
    crew = [join(node, version=version) for _ in range(2)]
    for member in (doomed, *crew):
        member.subscribe(f"$share/crew/{topic}", 1)
    sent = [b"%d" % number for number in range(400)]
    join(node, version=version).publish_all(topic, sent, 1)
    assert doomed.receive(), "it had its share"
    doomed.vanish()
    wait_until(lambda: sum(len(member.messages) for member in crew) >= len(sent), "every message at a living member")
    assert sorted((m.payload for member in crew for m in member.messages), key=int) == sent
    assert all(len(member.messages) > 100 for member in crew), "the living took turns"


def test_members_of_a_share_get_a_qos_2_message_once_even_if_one_of_them_is_killed(
    node: LiveNode, join: Join, version: int, topic: str
) -> None:
    doomed = join(node, version=version, manual_ack=True)
    crew = [join(node, version=version) for _ in range(2)]
    for member in (doomed, *crew):
        member.subscribe(f"$share/crew/{topic}", 2)
    publisher = join(node, version=version)
    sent = [b"%d" % number for number in range(200)]
    publisher.publish_all(topic, sent, 2)
    wait_until(lambda: sum(len(m.messages) for m in (doomed, *crew)) >= len(sent), "every message at some member")
    assert doomed.messages
    doomed.vanish()  # what it never completed may go to nobody else [MQTT-4.8.2-5]
    publisher.publish_all(topic, [b"200", b"201"], 2)
    last = [b"200", b"201"]
    wait_until(lambda: all(any(p in m.payloads(1) for m in crew) for p in last), "the last messages at the living")
    got = [m.payload for member in (doomed, *crew) for m in member.messages]
    assert sorted(got, key=int) == sent + last


def test_a_request_is_answered_to_whom_it_asks_with_what_it_carried(node: LiveNode, join: Join, topic: str) -> None:
    server, asker = join(node), join(node)
    server.subscribe(f"{topic}/question", 1)
    asker.subscribe(f"{topic}/answer", 1)
    asker.publish(
        *(f"{topic}/question", b"6 x 7", 1),
        ResponseTopic=f"{topic}/answer",
        CorrelationData=b"\x00number 1\xff",
        UserProperty=[("unit", "none"), ("unit", "still none")],
        ContentType="text/plain",
    )
    question = told(server.receive()[0])
    assert question.UserProperty == [("unit", "none"), ("unit", "still none")]
    assert question.ContentType == "text/plain"
    server.publish(question.ResponseTopic, b"42", 1, CorrelationData=question.CorrelationData)
    answer = asker.receive()[0]
    assert answer.payload == b"42"
    assert told(answer).CorrelationData == b"\x00number 1\xff"


def test_a_publisher_may_say_a_topic_once_and_then_its_alias(node: LiveNode, join: Join, topic: str) -> None:
    subscriber, publisher = join(node), join(node)
    subscriber.subscribe(topic, 2)
    publisher.publish(topic, b"0", 0, TopicAlias=3)
    for qos in (0, 1, 2):
        publisher.publish("", b"%d" % (qos + 1), qos, TopicAlias=3)
    assert [(m.topic, m.payload) for m in subscriber.receive(4)] == [(topic, b"%d" % number) for number in range(4)]


def test_a_subscriber_that_takes_aliases_is_sent_them_and_never_one_it_was_not_told(
    node: LiveNode, join: Join, topic: str, client_id: str
) -> None:
    # A persistent session at mixed QoS: QoS 2 packets leave only when the journal has them, QoS 0 at once.
    subscriber = join(node, client_id=client_id, persistent=True, connect={"TopicAliasMaximum": 2})
    subscriber.subscribe(topic, 2)
    publisher = join(node)
    for number in range(30):
        publisher.send(topic, b"%d" % number, (2, 0, 1)[number % 3])
    known: dict[int, str] = {}
    for message in subscriber.receive(30):
        alias = getattr(message.properties, "TopicAlias", 0)
        if alias and message.topic:
            known[alias] = message.topic
        assert (message.topic or known[alias]) == topic
    assert known == {1: topic}


@pytest.mark.slow
def test_a_session_ends_when_its_time_is_up(node: LiveNode, join: Join, topic: str, client_id: str) -> None:
    expired = node.metric("sterna_sessions_expired_total")
    brief = join(node, client_id=client_id, persistent=True, connect={"SessionExpiryInterval": 1})
    brief.subscribe(topic, 1)
    brief.close()
    assert join(node, client_id=client_id, persistent=True, connect={"SessionExpiryInterval": 1}).session_present
    again = join(node, client_id=client_id, persistent=True, connect={"SessionExpiryInterval": 1})
    again.vanish()
    wait_until(lambda: node.metric("sterna_sessions_expired_total") > expired, "the session expires")
    assert not join(node, client_id=client_id, persistent=True, connect={"SessionExpiryInterval": 1}).session_present


@pytest.mark.slow
def test_a_message_past_its_expiry_is_not_delivered_and_one_before_it_says_what_is_left(
    node: LiveNode, join: Join, topic: str, client_id: str
) -> None:
    sleeper = join(node, client_id=client_id, persistent=True)
    sleeper.subscribe(topic, 1)
    sleeper.close()
    publisher = join(node)
    publisher.publish(topic, b"stale", 1, MessageExpiryInterval=1)
    publisher.publish(topic, b"fresh", 1, MessageExpiryInterval=1000)
    published = time.monotonic()
    wait_until(lambda: time.monotonic() > published + 1.1, "a second passes")
    (fresh,) = join(node, client_id=client_id, persistent=True).receive()
    assert fresh.payload == b"fresh"
    assert 900 <= told(fresh).MessageExpiryInterval <= 999


# -- aiomqtt --


@QOS
def test_aiomqtt_publishes_and_receives(node: LiveNode, version: int, qos: int, topic: str) -> None:
    async def converse() -> list[object]:
        protocol = AIOMQTT[version]
        async with (
            aiomqtt.Client("127.0.0.1", node.port, protocol=protocol) as subscriber,
            aiomqtt.Client("127.0.0.1", node.port, protocol=protocol) as publisher,
        ):
            await subscriber.subscribe(f"{topic}/#", qos)
            for number in range(50):
                await publisher.publish(f"{topic}/{number}", number, qos)
            messages = aiter(subscriber.messages)
            return [(m.topic.value, m.payload, m.qos) for m in [await anext(messages) for _ in range(50)]]

    received = asyncio.run(asyncio.wait_for(converse(), 60))
    assert received == [(f"{topic}/{number}", b"%d" % number, qos) for number in range(50)]


def test_aiomqtt_asks_and_is_answered(node: LiveNode, topic: str) -> None:
    async def converse() -> tuple[object, bytes]:
        v5 = AIOMQTT[5]
        async with (
            aiomqtt.Client("127.0.0.1", node.port, protocol=v5) as server,
            aiomqtt.Client("127.0.0.1", node.port, protocol=v5) as asker,
        ):
            await server.subscribe(topic, 1)
            await asker.subscribe(f"{topic}/reply", 1)
            asked = properties("PUBLISH", ResponseTopic=f"{topic}/reply", CorrelationData=b"7")
            await asker.publish(topic, b"ping", 1, properties=asked)
            question = told(await anext(aiter(server.messages)))
            answer = properties("PUBLISH", CorrelationData=question.CorrelationData)
            await server.publish(question.ResponseTopic, b"pong", 1, properties=answer)
            reply = await anext(aiter(asker.messages))
            return reply.payload, told(reply).CorrelationData

    assert asyncio.run(asyncio.wait_for(converse(), 60)) == (b"pong", b"7")


# -- mosquitto_pub, mosquitto_sub, mosquitto_rr --


@QOS
def test_mosquitto_pub_reaches_mosquitto_sub(node: LiveNode, version: int, qos: int, topic: str) -> None:
    held = node.metric("sterna_subscriptions")
    flags = ("-q", str(qos), "-t", f"{topic}/+", "-F", "%t %q %p", "-C", "20")
    with mosquitto("mosquitto_sub", node.port, version, *flags) as subscriber:
        wait_until(lambda: node.metric("sterna_subscriptions") > held, "mosquitto_sub has subscribed")
        lines = b"".join(b"%d\n" % number for number in range(20))
        with mosquitto("mosquitto_pub", node.port, version, "-q", str(qos), "-t", f"{topic}/a", "-l") as publisher:
            output(publisher, lines)
        printed = output(subscriber).decode().splitlines()
    assert printed == [f"{topic}/a {qos} {number}" for number in range(20)]


def test_mosquitto_sub_gets_what_came_while_it_was_away(
    node: LiveNode, version: int, topic: str, client_id: str
) -> None:
    session = ["-c", "-i", client_id, "-q", "2", "-t", topic, *(["-x", "300"] if version == 5 else [])]
    with mosquitto("mosquitto_sub", node.port, version, *session, "-E") as subscriber:
        output(subscriber)
    with mosquitto("mosquitto_pub", node.port, version, "-q", "2", "-t", topic, "-l") as publisher:
        output(publisher, b"one\ntwo\nthree\n")
    with mosquitto("mosquitto_sub", node.port, version, *session, "-C", "3") as subscriber:
        assert output(subscriber) == b"one\ntwo\nthree\n"


def test_mosquitto_sub_gets_a_retained_message_and_its_flag(node: LiveNode, version: int, topic: str) -> None:
    with mosquitto("mosquitto_pub", node.port, version, "-q", "1", "-r", "-t", topic, "-m", "kept") as publisher:
        output(publisher)
    with mosquitto("mosquitto_sub", node.port, version, "-t", topic, "-C", "1", "-F", "%r %p") as subscriber:
        assert output(subscriber) == b"1 kept\n"


def test_mosquitto_rr_asks_and_is_answered(node: LiveNode, join: Join, topic: str) -> None:
    server = join(node)
    server.subscribe(topic, 1)
    asked = ("-t", topic, "-e", f"{topic}/reply", "-m", "ping", "-q", "1")
    with mosquitto("mosquitto_rr", node.port, 5, *asked) as asker:
        question = told(server.receive()[0])
        carried = {"CorrelationData": question.CorrelationData} if hasattr(question, "CorrelationData") else {}
        server.publish(question.ResponseTopic, b"pong", 1, **carried)
        assert output(asker) == b"pong\n"


# -- what goes wrong is said --


def test_sub_shows_why_a_subscription_was_refused(node: LiveNode) -> None:
    words = [sys.executable, "-m", "sterna", "sub", "-p", str(node.port), "-V", "5", "-t", "$AVGG/x"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    warning = (
        "Warning: Subscribing to $AVGG/x failed: Topic filter invalid: $AVGG (byte 0): unknown operator; write $AVG"
    )
    assert ended.stderr.splitlines()[0] == warning


def test_a_packet_that_is_too_large_is_logged_with_the_setting_that_bounds_it(
    start_node: Callable[[str], LiveNode], join: Join
) -> None:
    node = start_node("[limits]\npacket_bytes = 1000\n")
    client = join(node, version=5)
    client.send("t", b"x" * 2000)
    assert client.wait_for_end() == 0x95
    [failed] = node.events("connection failed")
    assert failed["reason"] == "packet of 2007 bytes; limits.packet_bytes allows 1000"


# -- MQTT 3.1 --


@pytest.mark.parametrize(("publish", "subscribe"), [("mosquitto", "sterna"), ("sterna", "mosquitto")])
def test_commands_speak_mqtt_3_1_with_a_node(
    node: LiveNode, join: Join, topic: str, publish: str, subscribe: str
) -> None:
    words = {"mosquitto": ["mosquitto_{}"], "sterna": [sys.executable, "-m", "sterna", "{}"]}
    common = ["-p", str(node.port), "-V", "31", "-q", "2", "-t", topic]
    join(node, version=4).publish(topic, b"kept", 1, retain=True)
    listen = [word.format("sub") for word in words[subscribe]] + [*common, "-C", "2", "-v"]
    say = [word.format("pub") for word in words[publish]] + [*common, "-m", "said"]
    # Mosquitto's commands call the version by another name.
    flags = {"mosquitto": "mqttv31", "sterna": "31"}
    listen[listen.index("31")], say[say.index("31")] = flags[subscribe], flags[publish]
    with subprocess.Popen(listen, stdout=subprocess.PIPE) as listener:
        assert listener.stdout is not None
        lines = [listener.stdout.readline()]  # what is retained comes once it has subscribed
        assert subprocess.run(say, timeout=120, check=False).returncode == 0
        lines.append(listener.stdout.readline())
        assert listener.wait(120) == 0
    assert lines == [f"{topic} kept\n".encode(), f"{topic} said\n".encode()]


def test_paho_speaks_mqtt_3_1_with_a_node(node: LiveNode, join: Join, topic: str, client_id: str) -> None:
    client = join(node, version=3, client_id=client_id, persistent=True)
    client.subscribe(topic, 2)
    for qos in range(3):
        client.publish(topic, b"%d" % qos, qos)
    assert [(m.payload, m.qos) for m in client.receive(3)] == [(b"0", 0), (b"1", 1), (b"2", 2)]
    client.close()
    join(node).publish(topic, b"meanwhile", 2)
    again = join(node, version=3, client_id=client_id, persistent=True)
    assert again.payloads() == [b"meanwhile"]
