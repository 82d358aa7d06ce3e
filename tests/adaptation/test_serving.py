"""From a node's totals to a decision: a worker's account, its report as bytes, the leader's picture."""

from __future__ import annotations

from random import Random

import pytest

from adaptation.talk import KEY
from sterna.adaptation.coordinating import Coordinating, CoordinatingTuning
from sterna.adaptation.deciding import decide
from sterna.adaptation.reasons import Rule, Start
from sterna.adaptation.serving import ServedTopic, ServedTotals, ServingRates, served_flows
from sterna.adaptation.settings import AdaptationTuning
from sterna.adaptation.topics import FROM_GATEWAYS, REPORTS, control_topic
from sterna.adaptation.words import FLOW_GATEWAYS_MAX, FLOWS_MAX, GatewayReport, Mailroom, Served, Trip, WorkerReport
from sterna.overlay.coordinates import Coordinate

QUICK = AdaptationTuning(up=100.0, down=50.0, high_s=0.0, witnesses=1)
PUBLISHERS, SUBSCRIBERS = ["p0", "p1", "p2"], ["s0", "s1", "s2"]


def place_at(ms: float) -> Coordinate:
    return Coordinate((ms / 1000, 0.0, 0.0, 0.0), 0.0, 0.1)


def totals(deliveries: dict[str, int]) -> list[ServedTotals]:
    return [ServedTotals(name, 1, 1, count) for name, count in deliveries.items()]


def test_rates_come_of_totals_are_steady_and_never_negative() -> None:
    rates = ServingRates()
    served, node = rates.look(totals({"g": 1000, "idle": 7}), 5000, 0.0)
    assert ([one.deliveries_per_s for one in served], node) == ([0.0, 0.0], 0.0)
    for second in range(1, 41):
        served, node = rates.look(totals({"g": 1000 + 50 * second, "idle": 7}), 5000 + 900 * second, float(second))
    assert [one.deliveries_per_s for one in served] == [pytest.approx(50, rel=0.05), 0.0]
    assert node == pytest.approx(900, rel=0.05)
    # One client leaves and takes its count away; then the gateway itself goes and comes back.
    served, _ = rates.look(totals({"g": 100, "idle": 7}), 0, 41.0)
    assert 0 < served[0].deliveries_per_s < 50
    rates.look([], 0, 42.0)
    assert rates.look(totals({"g": 10**9}), 0, 43.0)[0][0].deliveries_per_s == 0


def test_topics_name_gateways_by_their_places_and_are_bounded() -> None:
    served = [Served(f"g{number}", 1, 1) for number in range(100)]
    everybody = [one.gateway for one in served]
    topics = [ServedTopic(f"t{n}", dict.fromkeys(everybody, 0.5), everybody) for n in range(FLOWS_MAX + 5)]
    flows = served_flows([ServedTopic("strange", {"nobody": 1.0}, ["nobody"]), *topics], served)
    assert [len(flow.publishers) for flow in flows] == [FLOW_GATEWAYS_MAX] * (FLOWS_MAX - 1)
    assert (flows[0].topic, flows[0].publishers[3], flows[0].subscribers[4]) == ("t0", (3, 30), 4)


class Town:
    """A cloud that serves six gateways, three of them beside an idle edge; words come as bytes."""

    def __init__(self, tuning: AdaptationTuning) -> None:
        self.tuning = tuning
        self.boss = Coordinating("boss", "eu", CoordinatingTuning(), tuning, 4, Random(1), 0.0)
        self.mails = {name: Mailroom("net", "eu", name, 1, KEY) for name in ("boss", "cloud", "edge")}
        self.say("edge", WorkerReport("", "off", 100.0, "e", ""), place_at(100))
        for name in PUBLISHERS + SUBSCRIBERS:
            far = name in PUBLISHERS
            report = GatewayReport((Trip("cloud", 0.1 if far else 0.001), Trip("edge", 0.001 if far else 0.1)))
            mail = Mailroom("net", "eu", name, 1)
            place = place_at(100 if far else 0)
            self.hear(control_topic("net", FROM_GATEWAYS, name), mail.write(report, place))

    def say(self, name: str, word: WorkerReport, place: Coordinate) -> None:
        self.hear(control_topic("net", REPORTS, name), self.mails[name].write(word, place))

    def hear(self, topic: bytes, data: bytes) -> None:
        letter = self.mails["boss"].read(topic, data)
        assert letter is not None
        self.boss.came(letter, 1.0)

    def cloud_reports(self, deliveries_a_second: dict[str, int], topics: list[ServedTopic]) -> None:
        rates = ServingRates()
        for second in range(60):
            counted = {name: second * deliveries_a_second.get(name, 0) for name in PUBLISHERS + SUBSCRIBERS}
            served, per_s = rates.look(totals(counted), 0, float(second))
        flows = served_flows(topics, served)
        report = WorkerReport(
            "", "serving", 100.0, "c", "c:1", fixed=True, serves=served, bytes_per_s=per_s, flows=flows
        )
        self.say("cloud", report, place_at(0))

    def starts(self) -> list[str]:
        self.outcome = decide(self.boss.observations.picture(2.0), self.tuning)
        return [one.worker for one in self.outcome.decisions if isinstance(one, Start)]

    def why(self, subject: str) -> list[Rule]:
        return [one.reason.rule for one in self.outcome.judgements if getattr(one, "subject", "") == subject]


@pytest.mark.parametrize(("a_second", "expected"), [(2, ["edge"]), (0, [])])
def test_gateways_with_deliveries_start_a_node_and_idle_ones_do_not(a_second: int, expected: list[str]) -> None:
    """99 ms saved by three gateways: 594 with two deliveries a second each, and nothing without any."""
    town = Town(AdaptationTuning(value="deliveries", up=100.0, down=50.0, high_s=0.0, witnesses=1))
    town.cloud_reports(dict.fromkeys(PUBLISHERS, a_second), [])
    assert town.starts() == expected


def test_a_node_beside_publishers_whose_readers_are_far_is_not_started() -> None:
    town = Town(QUICK)
    published = dict.fromkeys(PUBLISHERS, 5.0)
    town.cloud_reports({}, [ServedTopic("plant/line", published, SUBSCRIBERS)])
    assert town.starts() == []
    assert town.why("edge") == [Rule.NO_GAIN_FOR_TOPICS]
    # One of them reads what its neighbours say: now a node there shortens a way.
    town = Town(QUICK)
    town.cloud_reports({}, [ServedTopic("plant/line", published, [*SUBSCRIBERS, "p1"])])
    assert town.starts() == ["edge"]


def test_gateways_whose_messages_nobody_told_of_count_as_before() -> None:
    town = Town(QUICK)
    town.cloud_reports({}, [ServedTopic("plant/line", {"s0": 5.0}, ["s1"])])
    assert town.starts() == ["edge"]
