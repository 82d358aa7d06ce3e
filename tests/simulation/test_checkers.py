"""The checkers themselves: each broken promise is recognised, and what is allowed is not taken for one."""

from __future__ import annotations

from dataclasses import replace

from town import Town

from sterna.simulation.checkers import check_delivery, nothing_reordered, retained_values, wills_published
from sterna.simulation.machine import OutOfTurn
from sterna.simulation.network_checkers import lacked_by, waited_long_enough
from sterna.simulation.records import LastWill, Publication, ReceivedDelivery, Records, Span
from sterna.simulation.world import new_world
from sterna.vocabulary.identity import Stamp


class History:
    """Records, written by hand: messages 1, 2, 3 ... of publisher p on topic t, subscriber s."""

    def __init__(self, qos: int = 1, *, since: float = 0.0, topic_filter: bytes = b"t") -> None:
        self.records = Records()
        self.span = Span("s", "net", topic_filter, qos, since)
        self.records.spans.append(self.span)

    def published(self, number: int, qos: int = 1, *, sends: int = 1, at: float = 1.0, retain: bool = False) -> None:
        publication = Publication(f"p/{number}", "p", "net", number, b"t", qos, retain, at, sends)
        publication.acknowledged_at = at + 1 if qos else None
        self.records.publications[publication.identity] = publication

    def arrived(self, number: int, qos: int = 1, *, client: str = "s", retain: bool = False) -> None:
        self.records.arrived(client, ReceivedDelivery(5.0, b"t", f"p/{number}", qos, retain))

    def claims(self) -> list[str]:
        return [violation.claim for violation in check_delivery(self.records)]


def test_what_came_once_and_in_order_breaks_nothing() -> None:
    history = History()
    for number in (1, 2, 3):
        history.published(number)
        history.arrived(number)
    assert history.claims() == []


def test_an_acknowledged_message_that_never_came_is_lost() -> None:
    history = History()
    history.published(1)
    assert history.claims() == ["lost"]


def test_nothing_is_owed_that_was_sent_before_the_subscription_or_never_acknowledged() -> None:
    history = History(since=2.0)
    history.published(1, at=1.0)
    history.published(2, at=3.0)
    history.records.publications["p/2"].acknowledged_at = None
    assert history.claims() == []


def test_nothing_is_owed_to_a_subscription_that_was_given_up() -> None:
    history = History()
    history.published(1)
    history.span.until = 10.0
    assert history.claims() == []


def test_nothing_is_owed_at_qos_0() -> None:
    history = History(qos=0)
    history.published(1)
    history.published(2, qos=0)
    assert history.claims() == []


def test_qos_2_may_not_come_twice() -> None:
    history = History(qos=2)
    history.published(1, qos=2)
    history.arrived(1, qos=2)
    history.arrived(1, qos=2)
    assert history.claims() == ["duplicated"]


def test_qos_1_may_come_twice_even_after_later_ones() -> None:
    history = History()
    for number in (1, 2):
        history.published(number)
    for number in (1, 2, 1, 2):
        history.arrived(number)
    assert history.claims() == []


def test_qos_0_may_come_as_often_as_a_publisher_at_qos_1_sent_it() -> None:
    history = History(qos=0)
    history.published(1, qos=1, sends=2)
    history.published(2, qos=0)
    for number in (1, 1, 2):
        history.arrived(number, qos=0)
    assert history.claims() == []
    history.arrived(2, qos=0)
    assert history.claims() == ["duplicated"]


def test_overtaking_is_seen_by_first_arrivals() -> None:
    history = History()
    for number in (1, 2):
        history.published(number)
    for number in (2, 1):
        history.arrived(number)
    assert history.claims() == ["reordered"]


def test_a_member_of_a_share_has_all_other_topics_in_order() -> None:
    for topic_filter, claims in ((b"$share/g/t", []), (b"$share/g/other/+", ["reordered"])):
        history = History()
        whole = history.records.spans[0]
        history.records.spans.append(replace(whole, topic_filter=topic_filter))
        for number in (1, 2):
            history.published(number)
        for number in (2, 1):
            history.arrived(number)
        assert [one.claim for one in nothing_reordered(history.records)] == claims


def test_at_qos_2_only_what_a_client_forgot_with_its_old_session_may_come_again() -> None:
    for number, times, claims in ((1, 2, []), (1, 3, ["duplicated"]), (2, 2, ["duplicated"])):
        history = History(qos=2)
        history.records.unreleased["s"] = {"p/1"}
        for known in (1, 2):
            history.published(known, qos=2)
            history.arrived(known, qos=2)
        for _ in range(times - 1):
            history.arrived(number, qos=2)
        assert history.claims() == claims


def test_what_an_old_session_handed_over_may_come_after_what_the_new_one_has_had() -> None:
    for handed_over, claims in (("p/1", []), ("p/3", ["reordered"])):
        history = History()
        history.records.handed_over["s"] = {handed_over}
        for number in (1, 2):
            history.published(number)
        for number in (2, 1):
            history.arrived(number)
        assert history.claims() == claims


def test_a_publisher_with_a_new_session_is_two_publishers() -> None:
    for began, claims in ((2.5, []), (0.5, ["reordered"])):
        history = History()
        history.records.new_sessions["p"] = [began]
        history.published(1, at=2.0)
        history.published(2, at=3.0)
        for number in (2, 1):
            history.arrived(number)
        assert history.claims() == claims


def test_a_publisher_that_got_a_new_session_may_go_back_to_the_old_one_with_each_connection() -> None:
    for connected_at, claims in ((2.5, []), (3.5, ["reordered"])):
        history = History()
        history.records.new_sessions["p"] = [1.0]
        history.records.connected["p"] = [0.5, 1.0, connected_at]
        history.published(1, at=2.0)
        history.published(2, at=3.0)
        for number in (2, 1):
            history.arrived(number)
        assert history.claims() == claims


def test_the_order_of_a_publisher_behind_a_gateway_counts_but_for_what_was_under_way() -> None:
    """Number 1 is acknowledged at 3.0; number 2 is sent at 4.0."""
    for lost_at, claims in ((None, ["reordered"]), (1.5, ["reordered"]), (2.5, []), (3.5, [])):
        history = History()
        history.records.wandering.add("p")
        if lost_at is not None:
            history.records.new_sessions["p"] = [lost_at]
        history.published(1, at=2.0, sends=2)
        history.published(2, at=4.0)
        for number in (2, 1):
            history.arrived(number)
        assert history.claims() == claims, lost_at


def test_a_message_that_was_under_way_is_forgiven_and_those_around_it_are_not() -> None:
    history = History()
    history.records.wandering.add("p")
    history.records.new_sessions["p"] = [2.5]
    history.published(1, at=0.5)
    history.published(2, at=1.0)
    history.published(3, at=2.0)  # acknowledged at 3.0
    for number in (3, 2, 1):
        history.arrived(number)
    assert [violation.names[0] for violation in check_delivery(history.records)] == ["p/1"]


def test_a_gateway_may_deliver_a_message_as_often_as_it_sent_it_and_no_more() -> None:
    history = History(qos=0)
    history.records.wandering.add("p")
    history.published(1, qos=1, sends=2)
    for _ in range(2):
        history.arrived(1, qos=0)
    assert history.claims() == []
    history.arrived(1, qos=0)
    assert history.claims() == ["duplicated"]


def test_messages_of_different_qos_may_overtake_each_other() -> None:
    history = History(qos=2)
    history.published(1, qos=2)
    history.published(2, qos=0)
    history.arrived(2, qos=0)
    history.arrived(1, qos=2)
    assert history.claims() == []


def test_a_retained_copy_is_neither_a_repetition_nor_out_of_order() -> None:
    history = History()
    for number in (1, 2):
        history.published(number)
        history.arrived(number)
    history.arrived(1, retain=True)
    assert history.claims() == []


def test_more_qos_than_granted_is_wrong() -> None:
    history = History(qos=1)
    history.published(1, qos=2)
    history.arrived(1, qos=2)
    assert "QoS" in history.claims()


def test_what_nobody_published_is_unknown() -> None:
    history = History()
    history.arrived(9)
    assert history.claims() == ["unknown"]


def test_a_share_owes_each_message_to_one_member() -> None:
    history = History(qos=2, topic_filter=b"$share/g/t")
    history.records.spans.append(Span("s2", "net", b"$share/g/t", 2, 0.0))
    history.published(1, qos=2)
    history.published(2, qos=2)
    history.arrived(1, qos=2, client="s2")
    assert history.claims() == ["share lost"]
    history.arrived(2, qos=2)
    assert history.claims() == []
    history.arrived(2, qos=2, client="s2")
    assert history.claims() == ["duplicated"]


def test_what_was_in_flight_at_qos_2_when_a_session_was_fenced_is_not_lost() -> None:
    for topic_filter in (b"t", b"$share/g/t"):
        history = History(qos=2, topic_filter=topic_filter)
        history.records.in_flight["s"] = {"p/1", "p/3"}
        history.published(1, qos=2)
        assert history.claims() == []
        history.published(2, qos=2)
        history.published(3, qos=1)
        assert len(history.claims()) == 2


def test_a_retained_value_older_than_the_last_acknowledged_is_wrong() -> None:
    history = History()
    for number in (1, 2):
        history.published(number, retain=True)
    history.arrived(1, client="auditor", retain=True)
    assert [v.claim for v in retained_values(history.records, [("auditor", "net")])] == ["retained"]
    history.arrived(2, client="auditor", retain=True)
    assert list(retained_values(history.records, [("auditor", "net")])) == []


def test_a_will_is_owed_if_the_node_was_well_when_the_connection_broke() -> None:
    history = History(topic_filter=b"w")
    history.records.wills["c/will1"] = LastWill("c/will1", "c", "node1", "net", b"w", 1, 10.0, 20.0)
    assert [v.claim for v in wills_published(history.records, {"node1": []})] == ["will"]
    assert list(wills_published(history.records, {"node1": [21.0]})) == []
    history.records.arrived("s", ReceivedDelivery(21.0, b"w", "c/will1", 1, False))
    assert list(wills_published(history.records, {"node1": []})) == []


def test_qos_0_may_come_again_after_its_node_was_killed_and_only_then() -> None:
    history = History(qos=0)
    history.published(1)
    for at in (5.0, 7.0):
        history.records.arrived("s", ReceivedDelivery(at, b"t", "p/1", 0, False, "node1"))
    assert history.claims() == ["duplicated"]
    history.records.crashes["node2"] = [6.0]
    assert history.claims() == ["duplicated"]
    history.records.crashes["node1"] = [4.0]
    assert history.claims() == ["duplicated"]
    history.records.crashes["node1"].append(6.0)
    assert history.claims() == []


def test_a_will_comes_twice_at_qos_0_only_if_its_node_crashed_in_between() -> None:
    for qos, crashed_at, claims in ((0, 4.0, []), (0, 2.0, ["duplicated"]), (2, 4.0, ["duplicated"])):
        history = History(qos=2)
        history.records.wills["s/will1"] = LastWill("s/will1", "s", "node", "net", b"t", qos)
        history.records.crashes["node"] = [crashed_at]
        for at in (3.0, 5.0):
            history.records.arrived("s", ReceivedDelivery(at, b"t", "s/will1", qos, False))
        assert history.claims() == claims


def test_a_will_comes_twice_at_qos_2_only_if_its_client_forgot_that_it_had_it() -> None:
    """It was told that it has a new session, and goes back to the old one."""
    history = History(qos=2)
    history.records.wills["s/will1"] = LastWill("s/will1", "s", "node", "net", b"t", 2)
    for at in (3.0, 5.0):
        history.records.arrived("s", ReceivedDelivery(at, b"t", "s/will1", 2, False))
    assert history.claims() == ["duplicated"]
    history.records.unreleased["s"] = {"s/will1"}
    assert history.claims() == []
    history.records.arrived("s", ReceivedDelivery(7.0, b"t", "s/will1", 2, False))
    assert history.claims() == ["duplicated"]


def test_a_client_that_went_back_to_its_old_session_counts_as_two_publishers() -> None:
    history = History(qos=2)
    history.published(1, qos=2, retain=True)
    history.published(2, qos=2, retain=True)
    for number in (1, 2, 2):
        history.arrived(number, qos=2)
    history.arrived(1, client="auditor", retain=True)
    auditors = [("auditor", "net")]
    assert history.claims() == ["duplicated"]
    assert [v.claim for v in retained_values(history.records, auditors)] == ["retained"]
    history.records.went_back.add("p")
    assert [v.claim for v in retained_values(history.records, auditors)] == ["retained"], "at which node?"
    history.records.publications["p/1"].nodes = {"A"}
    history.records.publications["p/2"].nodes = {"A"}
    assert [v.claim for v in retained_values(history.records, auditors)] == ["retained"], "the later one at that node"
    history.records.publications["p/2"].nodes = {"B"}
    assert list(retained_values(history.records, auditors)) == []
    assert history.claims() == ["duplicated"], "it was sent once"
    history.records.publications["p/2"].sends = 2
    assert history.claims() == []
    history.records.arrivals["auditor"].clear()
    assert [v.claim for v in retained_values(history.records, auditors)] == ["retained"]


def test_a_message_that_the_node_of_its_reader_had_waited_for_in_vain_may_come_late() -> None:
    history = History()
    for number in (1, 2):
        history.published(number)
    for number in (2, 1):
        history.arrived(number)
    history.records.overtaken["another"] = {"p/1"}
    assert history.claims() == ["reordered"]
    history.records.overtaken["s"] = {"p/1"}
    assert history.claims() == []


def test_a_node_that_gives_up_early_is_caught() -> None:
    machine = new_world(1).add_machine("A")
    for waited_s in (10.0, 9.5):
        machine.out_of_turn.append(OutOfTurn(20.0, "B", 1, 2, waited_s, frozenset()))
    assert [violation.claim for violation in waited_long_enough(machine)] == ["gave up early"]


def test_a_message_that_a_foreign_broker_sent_again_may_come_once_more_and_to_late_subscribers_out_of_turn() -> None:
    for since, repeats, claims in ((2.0, 1, []), (2.0, 0, ["reordered"]), (0.5, 1, ["reordered"])):
        history = History(since=since)
        history.published(1, at=1.0)
        history.published(2, at=3.0)
        history.arrived(2)
        history.arrived(1)
        history.records.echoed["p/1"] = repeats
        assert history.claims() == claims
    history = History(qos=2)
    history.published(1, qos=2)
    for _ in range(2):
        history.arrived(1, qos=2)
    history.records.echoed["p/1"] = 1
    assert history.claims() == []
    history.arrived(1, qos=2)
    assert history.claims() == ["duplicated"]


def test_a_node_lacks_what_it_wants_of_another_and_has_not_read_and_nothing_else() -> None:
    """That it has no way to that other node, and so may lack something, is not enough."""
    town = Town(2, "subscription-flooding", "static")
    town.begin()
    town.publishers["node1"].publish(b"t/1", 1)
    town.scene.run(1.0)
    origin, reader = town.machine("node1"), town.machine("node2")
    heal = town.scene.network.partition([["node1"], ["node2"]])
    town.scene.run(20.0)
    assert reader.running is not None
    assert reader.running.node.network is not None
    assert not reader.running.node.network.router.streams.lacks_nothing("node1")
    assert lacked_by(reader, origin) == []
    town.publishers["node1"].publish(b"unwanted", 1)
    town.publishers["node1"].publish(b"t/1", 1)
    town.scene.run(1.0)
    (lacking,) = lacked_by(reader, origin)
    assert town.scene.records.publications[lacking].topic == b"t/1"
    assert town.scene.records.publications[lacking].acknowledged_at is not None
    heal()
    town.wait_until_in_step()
    assert lacked_by(reader, origin) == []
    assert town.end() == []


def test_a_node_does_not_lack_what_a_session_had_before_it_came_there() -> None:
    town = Town(2, "subscription-flooding", "static")
    town.begin()
    origin, reader = town.machine("node1"), town.machine("node2")
    heal = town.scene.network.partition([["node1"], ["node2"]])
    town.publishers["node1"].publish(b"t/1", 1)
    town.scene.run(1.0)
    assert len(lacked_by(reader, origin)) == 1
    assert origin.running is not None
    assert reader.running is not None
    journal = origin.running.broker.journal
    barrier = reader.running.broker.sessions[b"node2s"].barrier
    barrier["node1"] = Stamp(journal.epoch, journal.next_offset - 1)
    assert lacked_by(reader, origin) == []
    del barrier["node1"]
    heal()
    town.wait_until_in_step()
    assert town.end() == []
