"""Control topics: heard and spoken to by those the node names, and nowhere in its journal."""

from __future__ import annotations

import pytest

from broker.lone_node import LoneNode
from conformance.packets import Connect, Publish, Will
from node.joined_nodes import Town
from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import AccessList, AccessRule
from sterna.broker.control_notes import FORGET_S, NOTE_BYTES_MAX, NOTES_MAX
from sterna.journal.settings import JournalSettings
from sterna.runtime.config.access import control_rules
from sterna.runtime.config.settings import ControlTable

TOPIC = "$adaptation/net/reports/w1"


def let_in(node: LoneNode, *rules: AccessRule, users: tuple[str, ...] = ("anonymous",)) -> None:
    """From here on these may touch control topics."""
    guarded = AccessList(rules, "allow", control=control_rules(ControlTable(users=users)))
    node.broker.renewal.apply(Authenticator(), guarded)
    node.settle()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_by_default_nobody_may_publish_to_a_control_topic_or_hear_one(version: int, qos: int) -> None:
    node = LoneNode()
    client = node.join("c", version)
    refused = 0x87 if version == 5 else 0x80
    for wanted in (TOPIC, "$adaptation/#", "$adaptation", "$share/g/$adaptation/#", "$COUNT/$adaptation/net/+/+"):
        assert client.subscribe(wanted, 1) == refused, wanted
    client.publish(TOPIC, b"x", qos)
    assert node.dropped("not-authorized") == 1
    assert node.node.journal.next_offset == 0


def test_topics_that_only_look_alike_are_ordinary() -> None:
    node = LoneNode()
    client = node.join("c")
    assert client.subscribe("$adaptations/x", 1) == 1
    client.publish("$adaptations/x", b"x", 1)
    assert client.take(Publish).payload == b"x"


@pytest.mark.parametrize("version", [4, 5])
def test_those_named_speak_there_past_all_rules_and_wildcards_do_not_hear_them(version: int) -> None:
    node = LoneNode()
    let_in(node, AccessRule(("*",), ("$adaptation/#",), "both", "deny"))
    worker, curious = node.join("worker", version), node.join("curious", version)
    assert curious.subscribe("#", 1) == 1
    assert curious.subscribe("+/net/reports/w1", 1) == 1
    assert worker.subscribe("$adaptation/net/+/+", 0) == 0
    worker.publish(TOPIC, b"hello", 0)
    assert worker.take(Publish).payload == b"hello"
    assert not curious.received()
    assert node.node.journal.next_offset == 0


def test_control_words_are_at_qos_0_and_not_retained() -> None:
    node = LoneNode()
    let_in(node)
    worker = node.join("worker")
    for qos in (1, 2):
        worker.publish(TOPIC, b"x", qos)
    worker.publish(TOPIC, b"x", 0, retain=True)
    assert (node.dropped("control-topic-qos"), node.dropped("control-topic-retained")) == (2, 1)
    assert worker.subscribe(TOPIC, 1) == 1
    assert not worker.received()
    assert node.node.journal.next_offset == 0


def test_a_will_on_a_control_topic_is_refused() -> None:
    node = LoneNode()
    let_in(node)
    client = node.dial()
    client.say(Connect("c", will=Will(TOPIC, b"gone")))
    assert client.wire.closed


def test_a_client_that_is_no_longer_named_hears_nothing_more() -> None:
    """Also if it is spoken to at another node, where everything is as it was."""
    town = Town("AB")
    town.connect("AB")
    for name in "AB":
        let_in(town[name])
    worker, boss = town["A"].join("worker"), town["B"].join("boss")
    assert worker.subscribe(TOPIC, 0) == 0
    heard = []
    for users in (("anonymous",), ("somebody",), ("anonymous",)):
        let_in(town["A"], users=users)
        boss.publish(TOPIC, b"for " + users[0].encode(), 0)
        town.pass_time(0.1)
        heard.append(worker.payloads())
    assert heard == [[b"for anonymous"], [], [b"for anonymous"]]
    let_in(town["A"], users=("somebody",))
    worker.publish(TOPIC, b"x", 0)
    assert town["A"].dropped("not-authorized") == 1


def test_filters_that_keep_messages_at_qos_0_do_not_keep_control_words() -> None:
    node = LoneNode(settings=JournalSettings(durability="os", keep=("#", "$adaptation/#")))
    let_in(node)
    worker = node.join("worker")
    worker.publish(TOPIC, b"x", 0)
    assert node.node.journal.next_offset == 0
    worker.publish("plant/x", b"x", 0)
    node.settle()
    assert node.node.journal.next_offset == 1


def test_a_gateway_speaks_and_hears_in_its_own_name_only() -> None:
    rules = AccessList([], "allow", control=control_rules(ControlTable(users=("boss",), gateways=("*",))))
    gateway, boss, nobody = (rules.for_identity(user, "c") for user in ("g1", "boss", None))
    assert gateway.may_publish(b"$adaptation/net/gateways/g1")
    assert gateway.may_subscribe(b"$adaptation/net/to-gateways/g1")
    for topic in (b"$adaptation/net/gateways/g2", b"$adaptation/net/to-gateways/g1", b"$adaptation/net/to-workers/w"):
        assert not gateway.may_publish(topic)
        assert boss.may_publish(topic)
        assert not nobody.may_publish(topic)
    for wanted in (b"$adaptation/net/to-gateways/+", b"$adaptation/#", b"$adaptation/net/gateways/g1"):
        assert not gateway.may_subscribe(wanted)
        assert boss.may_subscribe(wanted)
    assert gateway.controls
    assert boss.controls
    assert not nobody.controls


def test_control_words_pass_between_nodes_and_enter_no_journal() -> None:
    town = Town("AB")
    town.connect("AB")
    for name in "AB":
        let_in(town[name])
    worker, boss = town["A"].join("worker"), town["B"].join("boss")
    assert boss.subscribe("$adaptation/net/reports/+", 0) == 0
    town.pass_time(0.1)
    worker.publish(TOPIC, b"report", 0)
    town.pass_time(0.1)
    assert boss.take(Publish).payload == b"report"
    assert [town[name].node.journal.next_offset for name in "AB"] == [0, 0]


SHOWN = "$adaptation/net/shown/chief"


def test_the_last_word_of_each_coordinator_to_people_is_kept_for_a_while() -> None:
    node = LoneNode()
    let_in(node)
    chief = node.join("coordinator")
    notes = node.broker.publications.control_notes
    for word in (b"first", b"second"):
        chief.publish(SHOWN, word)
    chief.publish(TOPIC, b"a report is for coordinators")
    chief.publish(SHOWN, b"x" * (NOTE_BYTES_MAX + 1))
    assert [word for _, word in notes.fresh(node.broker.now)] == [b"second"]
    for number in range(2 * NOTES_MAX):
        chief.publish(f"$adaptation/net/shown/{number}", b"%d" % number)
    assert len(notes.fresh(node.broker.now)) == NOTES_MAX
    node.pass_time(FORGET_S + 1)
    assert notes.fresh(node.broker.now) == []


def test_others_cannot_say_what_dashboards_show_of_coordinators() -> None:
    node = LoneNode()
    stranger = node.join("stranger")
    stranger.publish(SHOWN, b"I lead")
    assert node.broker.publications.control_notes.fresh(node.broker.now) == []
