"""Spark computes what nodes leave to it, hands the results in, and is exact whatever is killed."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pyspark.sql import SparkSession

from live.nodes import wait_until
from sterna.measure.harness.ports import free_port
from sterna.operators.engine import Engine
from sterna.operators.grammar import parse
from sterna.operators.settings import OperatorSettings
from sterna.pipeline.feed.client import FeedClient
from sterna.pipeline.jobs.operators import OperatorsJob
from sterna.runtime.config.loading import load

from .cluster import ENVIRONMENT, QUICK_JVM, SparkCluster
from .driving import Driver
from .feeding import FeedingNode
from .gating import ADMIN, BatchGate
from .test_jobs import sterna

SOON_S = 180
"""Spark starts on a busy machine."""
pytestmark = pytest.mark.timeout(4 * SOON_S)

SPARKS = '[operators]\nengine = "spark"\nhourly_s = 2\nquarter_hourly_s = 1\nanchor = "wall"\n'

#: Each over all messages, so that their results add up to the number of these.
COUNTS = ("$HOURLYCOUNT/t", "$QUARTERHOURLYSUM/t")
#: Over topics, over a span, over a span of what is over topics.
IN_ORDER = ("$SUM/u/+", "$TMPSUM;0:20:00/u/+", "$TMPMAX;0:20:00$COUNT/u/+")

#: Rules that pass messages on, two of them the same ones.
ALONE = ("$GT;1/t/+", "$GT;1/t/#")
PASSING = "$GT;10/u/+"
CALLING, CALLED = "$SUM$TWICE/u/+", "$SUM$TWICE/u/$A"

StartFeeding = Callable[..., FeedingNode]
Kill = Callable[[], None]

MESSAGES = 50
"""Over `t` at a time."""


def functions(directory: Path) -> str:
    """Of one's own: one takes as long as payloads say, the other doubles them."""
    slow = ("import time", "def slow(payload):", "    time.sleep(float(payload))", "    return payload")
    twice = ("def twice(payload):", "    return 2 * float(payload)")
    (directory / "seconds.py").write_text("\n".join((*slow, *twice)))
    names = ("slow", "twice")
    own = [f'[[functions.own]]\nname = "{one.upper()}"\ncall = "seconds:{one}"\ndescription = ""\n' for one in names]
    return f'[functions]\ndirectory = "{directory}"\ntime_out_s = 2\n{"".join(own)}'


class Subscriber:
    """Somebody with a session that lasts, who notes every result with when it came."""

    def __init__(self, node: FeedingNode, name: str, qos: int = 1) -> None:
        self.name = name
        self._qos = qos
        self.got: list[tuple[str, bytes, str]] = []
        self.came: list[float] = []
        self._subscribed = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = self._on_message
        lasting = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        lasting.SessionExpiryInterval = 3600
        self._client.reconnect_delay_set(1, 1)
        self._client.connect("127.0.0.1", node.port, clean_start=False, properties=lasting)
        self._client.loop_start()

    def subscribe(self, *texts: str) -> None:
        for text in texts:
            self._subscribed.clear()
            self._client.subscribe(text, self._qos)
            assert self._subscribed.wait(SOON_S)

    def unsubscribe(self, text: str) -> None:
        self._client.unsubscribe(text)

    def _on_message(self, _client: object, _userdata: object, message: paho.MQTTMessage) -> None:
        self.came.append(time.time())
        number = dict(getattr(message.properties, "UserProperty", []))["sterna-sequence"]
        self.got.append((message.topic, bytes(message.payload), number))

    def by_rules(self) -> list[tuple[str, bytes]]:
        return [(topic, payload) for topic, payload, _ in self.got if topic.startswith("$GT;1/t/")]

    def of(self, topic: str) -> list[bytes]:
        return [payload for one, payload, _ in self.got if one == topic]

    def missing(self, counted: int, answered: int) -> str:
        """What has not come yet of the results that are owed for so many messages, if anything."""
        found = {text: (count_of(self.of(text)), counted) for text in COUNTS}
        found |= {text: (len(self.of(text)), answered) for text in (*map(named, IN_ORDER), CALLED)}
        return ", ".join(f"{self.name} {text} {n:g} of {most}" for text, (n, most) in found.items() if n < most)

    def leave(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        self._client._reset_sockets()  # which paho leaves to the collector


@pytest.fixture
def subscriber() -> Iterator[Callable[..., Subscriber]]:
    made: list[Subscriber] = []

    def join(node: FeedingNode, name: str, qos: int = 1) -> Subscriber:
        made.append(Subscriber(node, name, qos))
        return made[-1]

    yield join
    for one in made:
        one.leave()


def named(text: str) -> str:
    return parse(text.encode()).result_topic.decode()


def answers(text: str, values: list[tuple[bytes, int]]) -> list[bytes]:
    """By a node's engine; the test is over before anything is forgotten."""
    engine = Engine(parse(text.encode()), OperatorSettings(), 0)
    found = (engine.message(topic, b"%d" % value, time_us) for time_us, (topic, value) in enumerate(values))
    return [payload for payload in found if payload is not None]


def count_of(payloads: list[bytes]) -> float:
    return sum(float(payload) for payload in payloads)


def came_twice(results: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Some of these."""
    return [result for result, times in Counter(results).items() if times > 1][:3]


def results_kept(node: FeedingNode) -> list[tuple[str, str]]:
    """Topics and numbers of the results in a node's journal."""
    with FeedClient(node.feed, "test") as feed:
        batches = feed.read(0, feed.status().next, columns=["topic", "properties"])
        rows = [row for batch in batches for row in batch.to_pylist()]
    found = [(row["topic"], dict(row["properties"])) for row in rows if row["topic"].startswith("$")]
    return [(topic, properties["sterna-sequence"]) for topic, properties in found]


def first_difference(found: list[bytes], expected: list[bytes]) -> str:
    """In one line: lists of hundreds are not read by anybody."""
    for place, (one, other) in enumerate(zip_longest(found, expected)):
        if one != other:
            return f"answer {place} of {len(expected)} is {one!r}, not {other!r}"
    return ""


def test_expressions_come_and_go_while_one_query_serves_them(
    spark: SparkSession, start_feeding: StartFeeding, subscriber: Callable[..., Subscriber], tmp_path: Path
) -> None:
    node = start_feeding("a", SPARKS + functions(tmp_path))
    lines: list[str] = []
    job = OperatorsJob(tmp_path / "job", {"nodes": node.feed}, lines.append, load(node.file, {}).functions)
    query = job.start(spark)
    try:
        one, other = subscriber(node, "one"), subscriber(node, "other", qos=0)
        one.subscribe("$HOURLYCOUNT/t/a", "$HOURLYMAX/t/+", "$AVG/t/+", "$GT;1$TMPCOUNT;0:10:00/t/a")
        other.subscribe("$HOURLYCOUNT/t/a", *ALONE)
        node.publish("t/a", [1, 2, 3])
        node.publish("t/b", [7, "warm"])
        wait_until(lambda: count_of(one.of("$HOURLYCOUNT/t/a")) == 3, "the window ends", SOON_S)
        wait_until(lambda: b"7.0" in b"".join(one.of("$HOURLYMAX/t/$A")), "the window ends", SOON_S)
        one.subscribe("$GT;1$QUARTERHOURLYSUM/t/b")
        node.publish("t/b", [5])
        wait_until(lambda: one.of("$GT;1$QUARTERHOURLYSUM/t/b") == [b"5.0"], "the new one is served", SOON_S)
        averages = [b"1.0", b"2.0", b"3.0", b"5.0", b"4.0"]
        wait_until(lambda: len(one.of("$AVG/t/$A")) == len(averages), "each message is answered", SOON_S)
        assert one.of("$AVG/t/$A") == averages
        assert one.of("$GT;1$TMPCOUNT;0:10:00/t/a") == [b"2.0", b"3.0"]
        told = len(lines)
        one.unsubscribe("$HOURLYMAX/t/+")
        wait_until(lambda: any("6 expressions" in line for line in lines[told:]), "it has gone", SOON_S)
        assert count_of(other.of("$HOURLYCOUNT/t/a")) == 3
        assert len(one.got) == len({(topic, number) for topic, _, number in one.got})
        passed = [("$GT;1/t/a", b"2"), ("$GT;1/t/a", b"3"), ("$GT;1/t/b", b"7"), ("$GT;1/t/b", b"5")]
        wait_until(lambda: len(other.by_rules()) >= len(passed), "what passes is passed on", SOON_S)
        assert other.by_rules() == passed, "each once, whichever of the two expressions it fits"
        assert query.exception() is None
        # Payloads are numbers of seconds: the one that is too long is given up, and nobody else waits for it.
        one.subscribe("$SUM$SLOW/s/+")
        node.publish("s/a", [0, "x", 60])
        node.publish("s/b", [0.25])
        node.publish("t/a", [9])
        wait_until(lambda: other.by_rules()[-1:] == [("$GT;1/t/a", b"9")], "the others go on", SOON_S)
        wait_until(lambda: one.of("$SUM$SLOW/s/$A") == [b"0.0", b"0.25"], "functions are called", SOON_S)

        def left_out() -> set[str]:
            return {line.split(": ")[2].split(" (")[0] for line in lines if "left out" in line}

        wait_until(lambda: left_out() == {"function-failed", "function-timed-out"}, "the job says why", SOON_S)
    finally:
        job.stop()


def test_the_job_says_which_functions_cannot_be_loaded_before_spark_is_started(
    start_feeding: StartFeeding, tmp_path: Path
) -> None:
    node = start_feeding("a", SPARKS + functions(tmp_path))
    (tmp_path / "seconds.py").write_text("import nothing_of_that_name")
    command = sterna("operators", str(tmp_path / "job"), "--nodes", node.feed, "--config", str(node.file))
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=240)
    assert ended.returncode == 1
    assert "$SLOW: ModuleNotFoundError: No module named 'nothing_of_that_name'" in " ".join(ended.stderr.split())
    assert "starting Spark" not in ended.stderr


class KilledJob:
    """Two nodes, a subscriber at each, and a job that dies and comes back: in the middle of windows, of values in
    order, of rules that pass messages on and of functions."""

    def __init__(self, start: StartFeeding, join: Callable[..., Subscriber], directory: Path) -> None:
        key = '[network]\nname = "n"\nkey = "0123456789abcdef"\n'
        ports = free_port(), free_port()
        spark = SPARKS + functions(directory)
        self.directory = directory
        self.first = start("a", f'{ADMIN}{spark}{key}bind = "127.0.0.1:{ports[0]}"\n')
        network = f'{key}bind = "127.0.0.1:{ports[1]}"\nneighbours = ["127.0.0.1:{ports[0]}"]\n'
        self.second = start("b", ADMIN + spark + network)
        self.both = join(self.first, "here"), join(self.second, "there", qos=2)
        for one in self.both:
            one.subscribe(*COUNTS, *IN_ORDER, PASSING, CALLING)
        self.sent = 0
        self.values: list[tuple[bytes, int]] = []
        # The query for functions reads less than this at a time.
        self.gate = BatchGate(directory / "job/checkpoint", (self.first, self.second), MESSAGES)

    @property
    def words(self) -> tuple[str, ...]:
        return str(self.directory / "job"), "--nodes", self.first.feed, "--config", str(self.first.file)

    def publish(self) -> None:
        for node in (self.first, self.second):
            node.publish("t", [1] * MESSAGES)
            self.sent += MESSAGES
            self.values.append((b"u/a" if node is self.first else b"u/b", len(self.values) * len(self.values)))
            # A rule passes a message on at its own QoS: only at 2 no session brings it twice after a kill.
            node.publish(self.values[-1][0].decode(), [self.values[-1][1]], qos=2)

    def wait(self) -> None:
        self.publish()
        threading.Event().wait(0.5)  # Spark needs the machine, too

    def has_results(self, number: int) -> bool:
        return len(self.both[0].of("$HOURLYCOUNT/t")) >= number

    def missing(self) -> str:
        return "; ".join(filter(None, (one.missing(self.sent, len(self.values)) for one in self.both)))

    def live(self, command: Sequence[str], environment: Mapping[str, str] | None, *lives: Sequence[Kill]) -> None:
        """Each life sees some kills and ends with its own, all within batches; a last one is for what is missing."""
        for kills in lives:
            with Driver(command, self.directory / "said", environment) as driver:
                for kill in (*kills, driver.kill):
                    enough = len(self.both[0].of("$HOURLYCOUNT/t")) + 1
                    driver.wait_until(partial(self.has_results, enough), "results", SOON_S, self.wait)
                    self.gate.kill(driver, kill, self.publish, SOON_S)
                    if not self.second.is_running:
                        self.second.restart()
        assert len(self.gate.hit) == sum(len(kills) + 1 for kills in lives)
        self.publish()
        with Driver(command, self.directory / "said", environment) as driver:
            driver.wait_until(lambda: not self.missing(), self.missing, SOON_S)

    def check(self) -> None:
        for node in (self.first, self.second):
            assert came_twice(results_kept(node)) == [], f"node {node.name} has taken a result twice"
        for one in self.both:
            assert came_twice((topic, number) for topic, _, number in one.got) == [], f"twice to {one.name}"
            assert [count_of(one.of(text)) for text in COUNTS] == [self.sent] * 2, "some were counted twice"
            for text in IN_ORDER:
                difference = first_difference(one.of(named(text)), answers(text, self.values))
                assert difference == "", f"{text} at {one.name}"
            doubled = answers("$SUM/u/+", [(topic, 2 * value) for topic, value in self.values])
            assert first_difference(one.of(CALLED), doubled) == "", f"{CALLING} at {one.name}"
            for own in (b"u/a", b"u/b"):
                passed = [b"%d" % value for topic, value in self.values if topic == own and value > 10]
                assert first_difference(one.of("$GT;10/" + own.decode()), passed) == "", f"{own!r} at {one.name}"


@pytest.mark.slow
def test_killed_within_batches_every_message_is_counted_once(
    start_feeding: StartFeeding, subscriber: Callable[..., Subscriber], tmp_path: Path
) -> None:
    """Driver and JVM die together; so does, in between, one of two nodes."""
    job = KilledJob(start_feeding, subscriber, tmp_path)
    job.live(sterna("operators", *job.words, master="local[1]"), None, [], [job.second.kill])
    job.check()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_on_a_cluster_executors_and_workers_may_be_killed_too(
    start_feeding: StartFeeding, subscriber: Callable[..., Subscriber], tmp_path: Path
) -> None:
    """Executors hold the lanes: one after the other dies with what it holds in memory, then a node, then a worker; and
    twice the driver with its JVM.  Six kills, each within a batch."""
    job = KilledJob(start_feeding, subscriber, tmp_path)
    (tmp_path / "cluster").mkdir()
    quick = ("--conf", f"spark.executor.extraJavaOptions={QUICK_JVM}")
    with SparkCluster(tmp_path / "cluster") as cluster:
        first, second = cluster.workers
        command = sterna("operators", *job.words, *quick, master=cluster.master)
        lives = [first.kill_executor, second.kill_executor], [job.second.kill, first.kill]
        job.live(command, ENVIRONMENT, *lives)
    assert len(job.gate.hit) == 6
    job.check()
