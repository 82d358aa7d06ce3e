"""An audit finds every fault that was planted, names it, and says nothing against what was as it should be.

Each test has clients and topics of its own in one world, which is audited once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from sterna.cli.pipeline_audit import report
from sterna.pipeline.audit.contract import idle, judge, offending, summary, violations
from sterna.pipeline.audit.node_records import DELIVERIES
from sterna.pipeline.audit.subscription_intervals import SUBSCRIPTIONS
from sterna.pipeline.jobs.audit import Audit

pytestmark = pytest.mark.timeout(600)  # Spark starts slowly on a busy machine

MESSAGES = (
    "topic string, qos tinyint, publisher string, origin string, epoch bigint, sequence bigint, ingress_time timestamp"
)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


SHARE = "$share/g/shared"


def second(number: float) -> datetime:
    return NOON + timedelta(seconds=number)


@dataclass
class World:
    """Messages come in at node "a", one a second from noon on; sequence n at second n."""

    messages: list[tuple[Any, ...]] = field(default_factory=list)
    subscriptions: list[tuple[Any, ...]] = field(default_factory=list)
    deliveries: list[tuple[Any, ...]] = field(default_factory=list)

    def publish(self, topic: str, sequences: Iterable[int], qos: int = 2, publisher: str = "p") -> None:
        self.messages += [(topic, qos, publisher, "a", 1, number, second(number)) for number in sequences]

    def subscribe(self, client: str, topic_filter: str, qos: int = 2, node: str = "a", **more: Any) -> None:
        """Before everything, and for good, unless `more` says otherwise."""
        told = {"no_local": False, "rules": None, "since": second(-9), "stands": second(-9), **more}
        named = ("no_local", "rules", "since", "stands", "until", "after", "reached", "over")
        self.subscriptions.append((node, client, 0, topic_filter, qos, *(told.get(name) for name in named)))

    def deliver(self, client: str, sequences: Iterable[int], qos: int = 2, node: str = "a", **more: Any) -> None:
        """Each a quarter of a second after it came in."""
        for number in sequences:
            place = len(self.deliveries)
            at = second(number + 0.25)
            resent, retained = more.get("resent", False), more.get("retained", False)
            message = ("a", 1, number, qos, resent, retained, more.get("dropped"), 1)
            self.deliveries.append((node, 1, place, at, client, 0, more.get("share"), *message))

    def tables(self, spark: SparkSession) -> tuple[DataFrame, DataFrame, DataFrame]:
        return (
            spark.createDataFrame(self.messages, MESSAGES),
            spark.createDataFrame(self.subscriptions, SUBSCRIPTIONS),
            spark.createDataFrame(self.deliveries, DELIVERIES),
        )


COUNTS = ("expected", "delivered", "waiting", "dropped", "lost", "uncertain", "duplicated", "reordered")


def vector(sequence: int) -> dict[str, tuple[int, int]]:
    return {"a": (1, sequence)}


def plant_faults(world: World) -> None:
    world.publish("faults", range(10))
    world.subscribe("clean", "faults")
    world.deliver("clean", range(10))
    world.subscribe("losing", "faults/#")
    world.deliver("losing", [0, 1, 2, 4, 5, 6, 7, 8, 9])
    world.subscribe("doubling", "faults")
    world.deliver("doubling", [*range(10), 5])
    world.subscribe("swapping", "faults/#")
    world.deliver("swapping", [0, 1, 3, 2, *range(4, 10)])
    world.subscribe("dropping", "faults", qos=1)
    world.deliver("dropping", range(9), qos=1)
    world.deliver("dropping", [9], qos=1, dropped="queue-full")
    world.subscribe("lagging", "faults")
    world.deliver("lagging", range(8))
    world.subscribe("forgotten", "faults")
    world.deliver("forgotten", range(4, 10))
    node, epoch, place, at, client, *_ = world.deliveries[-1]
    world.deliveries.append(
        (node, epoch, place + 1, at, client, 0, None, None, None, None, 0, False, False, "retention", 3)
    )


def use_every_quality_of_service(world: World) -> None:
    world.publish("qos", range(10, 14), qos=1)
    world.subscribe("at-most-once", "qos", qos=0)
    world.deliver("at-most-once", [10, 12, 13], qos=0)
    world.subscribe("once-too-often", "qos", qos=0)
    world.deliver("once-too-often", [10, 11, 11, 12, 13], qos=0)
    world.subscribe("at-least-once", "qos", qos=2)
    world.deliver("at-least-once", [10, 10, 11, 12, 13], qos=1)


def overlap(world: World) -> None:
    world.publish("room/1/heat", range(20, 23))
    world.publish("room/1/light", range(23, 25))
    world.subscribe("overlapping", "room/+/heat", qos=1)
    world.subscribe("overlapping", "room/#", qos=0)
    world.deliver("overlapping", range(20, 23), qos=1)
    world.deliver("overlapping", [23, 24], qos=0)


def come_and_go(world: World) -> None:
    world.publish("passing", range(30, 40))
    between: dict[str, Any] = {"since": second(33), "until": second(38), "stands": second(33)}
    world.subscribe("by-vector", "passing", after=vector(33), reached=vector(36), over="ended", **between)
    world.deliver("by-vector", range(34, 37))
    late = {**between, "stands": second(33.5)}  # 34 came so soon after it that clocks might be to blame
    world.subscribe("elsewhere", "passing", node="b", after={"b": (1, 70)}, reached=vector(36), over="ended", **late)
    world.deliver("elsewhere", [35, 36], node="b")
    world.subscribe("unconfirmed", "passing", node="b", after={}, **{**between, "stands": None})
    world.subscribe("in-flight", "passing", after=vector(33), reached=vector(36), over="ended", **between)
    world.deliver("in-flight", [34])
    world.subscribe("died", "passing", after=vector(33), over="died", **between)
    world.deliver("died", [34, 36])


def keep_secrets(world: World) -> None:
    world.publish("files/open", range(40, 43))
    world.publish("files/secret", range(43, 46))
    world.publish("files/own", range(46, 49), publisher="barred")
    world.subscribe("barred", "files/#", no_local=True, rules='[[["files/secret", false]], true]')
    world.deliver("barred", range(40, 43))
    world.deliver("barred", [43], retained=True)


def share(world: World) -> None:
    world.publish("shared", range(50, 60))
    world.subscribe("one", SHARE)
    world.subscribe("two", SHARE, node="b")
    world.deliver("one", [50, 53, 54, 57], share=SHARE)
    world.deliver("two", [51, 52, 53, 58], node="b", share=SHARE)


@pytest.fixture(scope="module")
def judged(spark: SparkSession) -> Iterator[tuple[DataFrame, DataFrame]]:
    """Every message judged, and the deliveries."""
    world = World()
    for happen in (plant_faults, use_every_quality_of_service, overlap, come_and_go, keep_secrets, share):
        happen(world)
    messages, subscriptions, deliveries = world.tables(spark)
    verdicts = judge(messages, subscriptions, deliveries).cache()
    yield verdicts, deliveries
    verdicts.unpersist()


@pytest.fixture(scope="module")
def table(judged: tuple[DataFrame, DataFrame]) -> dict[tuple[str, str, int], Row]:
    rows = summary(*judged).withColumn("bad", violations()).collect()
    return {(row.client, row.filter, row.qos): row for row in rows}


Table = dict[tuple[str, str, int], Row]


def counted(table: Table, client: str) -> dict[tuple[str, int], dict[str, int]]:
    """(filter, QoS) -> what was counted, noughts left out."""
    return {
        (topic_filter, qos): {name: row[name] for name in (*COUNTS, "bad") if row[name]}
        for (name, topic_filter, qos), row in table.items()
        if name == client
    }


def test_every_planted_fault_is_found_and_named(judged: tuple[DataFrame, DataFrame], table: Table) -> None:
    faults = offending(judged[0]).where("topic = 'faults' and client != 'forgotten'")
    assert {(row.client, row.sequence, row.verdict, row.reason) for row in faults.collect()} == {
        ("losing", 3, "lost", None),
        ("doubling", 5, "delivered", None),
        ("swapping", 2, "delivered", None),
        ("dropping", 9, "dropped", "queue-full"),
    }
    whole = {"expected": 10, "delivered": 10}
    assert counted(table, "clean") == {("faults", 2): whole}
    assert counted(table, "losing") == {("faults/#", 2): {"expected": 10, "delivered": 9, "lost": 1, "bad": True}}
    assert counted(table, "doubling") == {("faults", 2): {**whole, "duplicated": 1, "bad": True}}
    assert counted(table, "swapping") == {("faults/#", 2): {**whole, "reordered": 1, "bad": True}}
    assert counted(table, "dropping") == {("faults", 1): {"expected": 10, "delivered": 9, "dropped": 1}}
    assert counted(table, "lagging") == {("faults", 2): {"expected": 10, "delivered": 8, "waiting": 2}}


def test_the_table_adds_up_and_tells_latencies(table: Table) -> None:
    for row in table.values():
        assert row.expected == row.delivered + row.waiting + row.dropped + row.lost + row.uncertain
        assert sum(row.reasons.values()) == row.dropped
        assert row.p50_ms == row.p99_ms == row.max_ms == pytest.approx(250, abs=0.01)


def test_what_retention_took_is_not_called_lost(table: Table) -> None:
    row = table["forgotten", "faults", 2]
    assert (row.delivered, row.lost, row.dropped, row.reasons) == (6, 1, 3, {"retention": 3})


def test_what_each_quality_of_service_allows_is_no_violation(table: Table) -> None:
    assert counted(table, "at-most-once") == {("qos", 0): {"expected": 4, "delivered": 3, "lost": 1}}
    assert counted(table, "once-too-often") == {
        ("qos", 0): {"expected": 4, "delivered": 4, "duplicated": 1, "bad": True}
    }
    assert counted(table, "at-least-once") == {("qos", 1): {"expected": 4, "delivered": 4, "duplicated": 1}}


def test_a_message_that_several_filters_match_is_expected_once(table: Table) -> None:
    assert counted(table, "overlapping") == {
        ("room/+/heat", 1): {"expected": 3, "delivered": 3},
        ("room/#", 0): {"expected": 2, "delivered": 2},
    }


def test_only_what_came_while_a_subscription_stood_is_expected(table: Table) -> None:
    assert counted(table, "by-vector") == {("passing", 2): {"expected": 3, "delivered": 3}}
    assert counted(table, "elsewhere") == {("passing", 2): {"expected": 2, "delivered": 2}}
    assert counted(table, "unconfirmed") == {}
    assert counted(table, "in-flight") == {("passing", 2): {"expected": 3, "delivered": 1, "dropped": 2}}


def test_a_session_that_died_with_its_node_is_judged_up_to_its_last_record(table: Table) -> None:
    counts = {"expected": 4, "delivered": 2, "lost": 1, "uncertain": 1, "bad": True}
    assert counted(table, "died") == {("passing", 2): counts}


def test_what_a_client_may_not_have_is_not_expected(table: Table) -> None:
    assert counted(table, "barred") == {("files/#", 2): {"expected": 3, "delivered": 3}}


def test_the_members_of_a_shared_subscription_are_one_subscriber(table: Table) -> None:
    """55 and 56 are behind both members; 59 may be on its way to one of them."""
    counts = {"expected": 10, "delivered": 7, "waiting": 1, "lost": 2, "duplicated": 1, "bad": True}
    assert counted(table, "") == {(SHARE, 2): counts}


FETCHED = ("src", "href", "xlink:href")


class Page(HTMLParser):
    """The text a browser would show of it, and what it would fetch."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loaded: list[str] = []
        self.comments: list[str] = []
        """Texts of the plots, which are drawn as shapes."""
        self.cells: list[list[str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loaded += [value for name, value in attrs if name in FETCHED and value and value[0] != "#"]
        self._open.append(tag)
        if tag == "tbody":
            self.cells.append([])

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_comment(self, data: str) -> None:
        self.comments.append(data.strip())

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += data
        if self._open[-1:] == ["td"] and len(self.cells[0]) < 9:
            self.cells[0].append(data)


def test_the_report_shows_the_worst_first_and_says_whether_the_contract_was_kept(
    spark: SparkSession, judged: tuple[DataFrame, DataFrame], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    verdicts, _ = judged
    table = summary(*judged).where("client in ('losing', 'clean')")
    world = World()
    world.subscribe("clean", "faults")
    world.subscribe("keeper", "kept/#")
    world.subscribe("visitor", "kept/#", until=second(1))
    world.subscribe("member", SHARE)
    _, subscriptions, _ = world.tables(spark)
    bad = Audit(table, verdicts, ["a"], ["c"], idle(table, subscriptions))
    assert not report(bad, 10, tmp_path / "details.csv", as_json=False)
    shown = capsys.readouterr()
    _, worst, best, total = shown.out.splitlines()
    assert worst.split()[:7] == ["losing", "@", "a", "faults/#", "2", "10", "9"]
    assert best.split()[:7] == ["clean", "@", "a", "faults", "2", "10", "10"]
    assert total.split()[:5] == ["sum", "of", "2", "20", "19"]
    assert "node c notes no deliveries" in shown.err
    assert "subscribed, and nothing of theirs to be audited: keeper @ a\n" in shown.err
    written = "".join(file.read_text() for file in (tmp_path / "details.csv").glob("*.csv"))
    assert "losing,0,faults/#,2,faults,a,1,3," in written
    strange = f.when(f.col("client") == "losing", "<script>alert(1)</script>\u202e&").otherwise("clean")
    odd = Audit(table.withColumn("client", strange), verdicts, ["<a>"], ["c"], bad.idle)
    assert not report(odd, 1, None, as_json=True, page=tmp_path / "page.html", window="from <noon>")
    capsys.readouterr()
    page = Page((tmp_path / "page.html").read_text())
    assert page.tags.isdisjoint({"script", "a", "img", "iframe"})
    assert page.cells[0] == ["<script>alert(1)</script>\\u202e&", "a", "faults/#", "2", "10", "9", "0", "0", "1"]
    assert "2subscriptions" in page.text
    assert "1 subscriptions break the contract" in page.text
    assert "1 more are in the sum." in page.text
    assert "from <noon>. Nodes: <a>." in page.text
    assert {"How long deliveries took (ms)", "Why messages were dropped (subscriptions below)"} <= set(page.comments)
    assert page.loaded == []
    good = Audit(bad.table.where("client = 'clean'"), verdicts, ["a"], [], bad.idle)
    assert report(good, 10, None, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["sum"]["delivered"], told["subscriptions"][0]["client"]) == (10, "clean")
