"""Questions of operators: asked at one node, answered by all that can be reached."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from broker.lone_node import LoneNode
from node.joined_nodes import Town
from sterna.broker.inspection import LOOKED_AT_MAX, MESSAGES_SHOWN, Findings, NotAFilter
from sterna.mqtt.reasons import Reason
from sterna.node.management import (
    ANSWER_BYTES_MAX,
    ANSWER_S,
    ASKED_MAX,
    QUESTIONS,
    ROWS_MAX,
    Gathered,
    Management,
    NoOtherNodes,
)
from sterna.vocabulary.errors import LinkProtocolError
from sterna.vocabulary.versions import Versions


def asked(town: Town, node: str, kind: str, argument: str, most: int = ROWS_MAX) -> Gathered:
    answers: list[Gathered] = []
    town[node].network.management.ask(kind, argument, most, answers.append)
    town.settle()
    (answer,) = answers
    return answer


def deafen(town: Town, monkeypatch: pytest.MonkeyPatch, *nodes: str) -> None:
    """These nodes read no letters of management any more."""
    for node in nodes:
        monkeypatch.setattr(town[node].network.management, "letter", lambda _sender, _body: None)


@pytest.fixture
def town() -> Town:
    town = Town("ABC")
    town.connect("AB", "BC")
    return town


def test_a_client_is_found_wherever_it_is(town: Town) -> None:
    client = town["C"].resume("meter")
    client.subscribe("plant/+/temp", 1)
    (row,) = asked(town, "A", "client", "meter").rows
    assert (row["client"], row["node"], row["connected"], row["inflight"]) == ("meter", "C", True, 0)
    assert row["filters"] == [{"filter": "plant/+/temp", "qos": 1}]
    client.vanish()
    town.pass_time(5)
    (row,) = asked(town, "B", "client", "meter").rows
    assert (row["connected"], row["seconds"]) == (False, pytest.approx(5, abs=0.2))
    assert asked(town, "A", "client", "nobody").rows == []


def test_a_client_is_shown_with_what_is_in_flight_to_it_and_what_waits(town: Town) -> None:
    client = town["C"].resume("meter")
    client.subscribe("plant/+", 1)
    publisher = town["C"].join("publisher")
    publisher.publish("plant/1", b"12345", 1)
    (row,) = asked(town, "A", "client", "meter").rows
    assert [(one["topic"], one["qos"], one["bytes"]) for one in row["in_flight"]] == [("plant/1", 1, 5)]
    assert row["waiting"] == []
    client.vanish()
    for number in range(2 * MESSAGES_SHOWN):
        publisher.publish(f"plant/{number}", b"x", 1)
    town.pass_time(3)
    (row,) = asked(town, "B", "client", "meter").rows
    assert len(row["waiting"]) == MESSAGES_SHOWN
    assert {"topic": "plant/0", "bytes": 1}.items() <= row["waiting"][0].items()
    assert row["waiting"][0]["waits_s"] == pytest.approx(3, abs=0.2)


def test_clients_are_found_by_part_of_their_name(town: Town) -> None:
    for node, name in (("A", "meter-1"), ("B", "lamp-1"), ("C", "meter-2")):
        town[node].join(name)
    assert sorted(row["client"] for row in asked(town, "B", "clients", "meter").rows) == ["meter-1", "meter-2"]
    assert asked(town, "B", "clients", "").is_cut is False
    cut = asked(town, "B", "clients", "", most=1)
    assert len(cut.rows) == 3  # one of each node


def test_subscriptions_are_those_that_a_topic_would_reach(town: Town) -> None:
    one, other = town["A"].join("one"), town["C"].join("other")
    one.subscribe("plant/+/temp")
    one.subscribe("office/#", 2)
    other.subscribe("$share/group/plant/#")
    other.subscribe("$AVG/plant/+/temp", 1)

    def filters(topic_filter: str) -> list[str]:
        return sorted(row["filter"] for row in asked(town, "B", "subscriptions", topic_filter).rows)

    assert filters("plant/oven/temp") == ["$AVG/plant/+/temp", "$share/group/plant/#", "plant/+/temp"]
    assert filters("office/1") == ["office/#"]
    assert filters("plant/#") == filters("plant/oven/temp")
    assert len(filters("")) == 4
    assert filters("elsewhere") == []
    with pytest.raises(NotAFilter):
        asked(town, "B", "subscriptions", "a/#/b")


def test_retained_messages_are_asked_of_one_node(town: Town) -> None:
    town["C"].join("publisher").publish("plant/oven", b"x" * 1000, 1, retain=True)
    (row,) = asked(town, "A", "retained", "plant/+").rows
    assert (row["topic"], row["bytes"], row["is_cut"], row["payload"]) == ("plant/oven", 1000, True, "x" * 256)
    assert asked(town, "A", "retained", "other/#").rows == []


def test_a_client_is_disconnected_from_any_node_and_keeps_its_session(town: Town) -> None:
    client = town["C"].resume("meter")
    (row,) = asked(town, "A", "kick", "meter").rows
    assert row["node"] == "C"
    assert client.farewell() == Reason.ADMINISTRATIVE_ACTION
    (row,) = asked(town, "A", "client", "meter").rows
    assert not row["connected"]
    assert asked(town, "A", "kick", "meter").rows == []


def test_a_node_that_does_not_answer_is_named(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town["A"].join("meter")
    deafen(town, monkeypatch, "C")
    answers: list[Gathered] = []
    town["A"].network.management.ask("clients", "", ROWS_MAX, answers.append)
    town.pass_time(ANSWER_S / 2)
    assert not answers
    town.pass_time(ANSWER_S)
    (answer,) = answers
    assert (len(answer.rows), answer.silent) == (1, ["C"])


def test_questions_that_wait_are_bounded(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    management = town["A"].network.management
    deafen(town, monkeypatch, "B", "C")
    answers: list[Gathered] = []
    for _ in range(ASKED_MAX + 1):
        management.ask("clients", "", ROWS_MAX, answers.append)
    (answer,) = answers
    assert sorted(answer.silent) == ["B", "C"]
    town.pass_time(ANSWER_S + 1)
    assert len(answers) == ASKED_MAX + 1


def test_an_answer_fits_into_a_letter(town: Town) -> None:
    client = town["C"].join("meter")
    long = "/".join(["level" * 100] * 8)
    for number in range(100):
        client.subscribe(f"{number}/{long}")
    answer = asked(town, "A", "subscriptions", "")
    assert answer.is_cut
    assert 0 < len(answer.rows) < 100
    assert sum(len(row["filter"]) for row in answer.rows) < ANSWER_BYTES_MAX
    assert set(town["A"].network.links.links) == {"B"}


def test_nonsense_of_another_node_harms_nobody(town: Town) -> None:
    management = town["A"].network.management
    for body in (b"", b"\xc1", b"\x93\x01\x02\x03", b"\x95\x01\x00\xa4what\xa0\x01", b"\x95\x01\x00\xa6client\xa0\x00"):
        with pytest.raises(LinkProtocolError):
            management.letter("B", body)
    management.letter("B", b"\x94\x02\x05\x90\xc2")  # an answer to no question


def test_a_lone_node_answers_for_itself() -> None:
    node = LoneNode()
    node.join("meter")
    answers: list[Gathered] = []
    Management("lone", node.broker, NoOtherNodes()).ask("clients", "", 10, answers.append)
    (answer,) = answers
    assert [(row["client"], row["node"]) for row in answer.rows] == [("meter", "lone")]


def test_a_question_looks_at_so_much_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LOOKED_AT_MAX >= ROWS_MAX
    monkeypatch.setattr("sterna.broker.inspection.LOOKED_AT_MAX", 2)
    node = LoneNode()
    for number in range(3):
        node.join(f"meter-{number}")
    answers: list[Gathered] = []
    Management("lone", node.broker, NoOtherNodes()).ask("clients", "", 10, answers.append)
    assert (len(answers[0].rows), answers[0].is_cut) == (2, True)


def test_a_node_of_an_earlier_release_is_not_asked_a_question_that_it_does_not_know(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    town["A"].join("meter")
    letters: list[bytes] = []
    monkeypatch.setattr(town["C"].network.management, "letter", lambda _sender, body: letters.append(body))
    with monkeypatch.context() as earlier:
        earlier.setattr("sterna.vocabulary.versions.LINK", Versions(12, 12))
        town["C"].network.router.shares_changed()  # C announces itself, as a node of that release would
        town.pass_time(1)
    monkeypatch.setitem(QUESTIONS, "clients", QUESTIONS["clients"]._replace(since=13))
    answer = asked(town, "A", "clients", "")
    assert (len(answer.rows), answer.silent, letters) == (1, ["C"], [])


def test_the_process_around_a_node_answers_questions_of_its_own(town: Town) -> None:
    def weather(node: str, argument: str, most: int) -> Findings:
        return Findings([{"node": node, "of": argument}][:most], is_cut=False)

    for name in "ABC":
        town[name].network.management.provide("weather", partial(weather, name))
    assert sorted(row["node"] for row in asked(town, "B", "weather", "today").rows) == ["A", "B", "C"]
    with pytest.raises(KeyError):
        asked(town, "B", "nobody provides this", "")


def test_a_question_may_be_less_patient(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    deafen(town, monkeypatch, "C")
    answers: list[Gathered] = []
    town["A"].network.management.ask("clients", "", 1, answers.append, within_s=0.5)
    town.settle()
    town.pass_time(0.6)
    (answer,) = answers
    assert answer.silent == ["C"]


def test_round_trips_are_those_of_letters_to_the_nodes_that_were_last_asked_for(town: Town) -> None:
    management = town["A"].network.management
    management.ping(["B", "C", "nowhere"])
    assert management.round_trip_s("B") is None
    town.settle()
    assert management.round_trip_s("B") is not None
    assert management.round_trip_s("nowhere") is None
    management.ping(["C"])
    assert management.round_trip_s("B") is None  # forgotten
    town.settle()
    assert management.round_trip_s("C") is not None


def test_an_echo_that_nobody_asked_for_is_passed_over(town: Town) -> None:
    management = town["A"].network.management
    management.letter("B", msgspec.msgpack.encode([6, 7]))
    management.ping(["B"])
    management.letter("B", msgspec.msgpack.encode([6, 999]))
    assert management.round_trip_s("B") is None
