"""Load and indexes against a sham broker: what it drops and repeats is found, and a second program finds the same."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from measure.sham_broker import Forward, faithfully, sham_broker
from sterna.measure.ildm.indexes import RawLog, indexes
from sterna.measure.ildm.latency import LatencyJob, measure
from sterna.measure.ildm.load import LoadRun, TClients
from sterna.measure.ildm.scenario import LatencyPlace, LoadPlace, Scenario
from sterna.measure.ildm.search import find_limit

SCENARIO = Scenario(
    about="two topics",
    nodes=1,
    latency=LatencyPlace("l", 1, (1,)),
    places=(LoadPlace(1, "one", 2, 3), LoadPlace(1, "two", 1, 1), LoadPlace(1, "six", 1, 0)),
)


def loaded(forward: Forward, interval_ms: float = 5.0, seconds: float = 1.0) -> tuple[LoadRun, list[int]]:
    with sham_broker(forward) as port, closing(TClients(_heard(SCENARIO), [port])) as clients:
        return clients.run(interval_ms, seconds), clients.deliveries


def _heard(scenario: Scenario) -> Scenario:
    """The sham broker knows topics with subscribers only."""
    return Scenario(scenario.about, 1, scenario.latency, scenario.places[:2])


def every(count: int, change: Callable[[bytes], bytes]) -> Forward:
    """Change one packet in `count`."""
    passed = 0

    def forward(data: bytes, size: int) -> bytes:
        nonlocal passed
        packets = [data[place : place + size] for place in range(0, len(data), size)]
        for index in range(len(packets)):
            passed += 1
            if passed % count == 0:
                packets[index] = change(packets[index])
        return b"".join(packets)

    return forward


def test_sp_ratio_counts_topics_without_subscribers() -> None:
    assert SCENARIO.sp_ratio == (2 * 3 + 1) / 4


def test_all_that_is_sent_comes_and_is_counted() -> None:
    run, deliveries = loaded(faithfully)
    found = indexes(run.log, deliveries, 0.1)
    assert sorted(deliveries) == [1, 3, 3]
    assert (found.lost, found.duplicated) == (0, 0)
    assert found.sent == len(run.log.sent_ns) == run.offered - run.held_back
    assert len(run.log.received_ns) == found.expected
    assert found.expected == sum(deliveries[publisher] for publisher in run.log.sent_by)


@pytest.mark.parametrize("count", [10, 50])
def test_what_a_broker_drops_is_loss(count: int) -> None:
    run, deliveries = loaded(every(count, lambda packet: b""))
    found = indexes(run.log, deliveries, 0.0)
    assert found.lost > 0
    assert found.loss_rate == pytest.approx(1 / count, rel=0.5)
    assert found.duplicated == 0


def test_what_a_broker_repeats_is_no_negative_loss() -> None:
    run, deliveries = loaded(every(10, lambda packet: packet * 2))
    found = indexes(run.log, deliveries, 0.0)
    assert found.lost == 0
    assert found.duplicated > 0


def test_a_second_program_computes_the_same_indexes_from_the_saved_log(tmp_path: Path) -> None:
    run, deliveries = loaded(every(7, lambda packet: b""))
    run.log.save(tmp_path)
    found = indexes(run.log, deliveries, 0.2)
    with (tmp_path / "sent.csv").open() as stream:
        sent = [(int(row["ns"]), int(row["publisher"]), int(row["number"])) for row in csv.DictReader(stream)]
    with (tmp_path / "received.csv").open() as stream:
        received = list(csv.DictReader(stream))
    begin, end = run.log.begin_ns + 200_000_000, run.log.end_ns - 200_000_000
    seconds = (end - begin) / 1e9
    assert found.ingress == len([1 for ns, _, _ in sent if begin <= ns < end]) / seconds
    assert found.egress == len([1 for row in received if begin <= int(row["ns"]) < end]) / seconds
    due = {(publisher, number): deliveries[publisher] for _, publisher, number in sent}
    for row in received:
        due[int(row["publisher"]), int(row["number"])] -= 1
    assert sum(due.values()) == found.lost


def test_stragglers_of_an_earlier_run_are_not_counted() -> None:
    kept: list[bytes] = []

    def late(data: bytes, size: int) -> bytes:
        """The first packets come with the first of the next run."""
        if not kept:
            kept.append(data[:size])
            return data[size:]
        if len(kept) == 1 and int.from_bytes(data[size - 28 : size - 24]) > int.from_bytes(kept[0][-28:-24]) + 10:
            kept.append(b"")
            return kept[0] + data
        return data

    only = Scenario("one topic", 1, LatencyPlace("l", 1, (1,)), (LoadPlace(1, "one", 1, 1),))
    with sham_broker(late) as port, closing(TClients(only, [port])) as clients:
        first, second = (clients.run(20.0, 0.2) for _ in range(2))
    assert indexes(first.log, [1], 0.0).lost == 1
    found = indexes(second.log, [1], 0.0)
    assert (found.lost, found.duplicated) == (0, 0)
    assert len(kept) == 2, "it came"


def test_indexes_of_a_log_written_by_hand() -> None:
    log = RawLog(begin_ns=0, end_ns=4_000_000_000)
    for number, second in enumerate((0.5, 1.5, 2.5, 3.5)):
        log.sent_ns.append(int(second * 1e9))
        log.sent_by.append(0)
        log.sent_number.append(number)
    for number, second in (0, 0.6), (1, 1.6), (1, 1.7), (2, 2.6):
        log.received_ns.append(int(second * 1e9))
        log.received_by.append(0)
        log.received_from.append(0)
        log.received_number.append(number)
    found = indexes(log, [1], 1.0)
    assert (found.seconds, found.ingress, found.egress) == (2.0, 1.0, 1.5)
    assert (found.expected, found.lost, found.duplicated) == (4, 1, 1)
    assert found.loss_rate == 0.25
    assert found.is_under_limit(1.0)
    assert not found.is_under_limit(1.6)


def test_bursts_do_not_matter_where_windows_are_blurred_over_whole_periods() -> None:
    """A host that does everything of 50 ms at once: a sharp window may count one burst more or less."""
    log = RawLog(begin_ns=0, end_ns=2_000_000_000)
    log.sent_ns.extend(range(0, log.end_ns, 1_000_000))
    log.sent_by.extend([0] * 2000)
    log.received_ns.extend(sorted((moment // 50_000_000 + 1) * 50_000_000 for moment in log.sent_ns))
    for column in log.received_by, log.received_from:
        column.extend([0] * 2000)
    log.sent_number.extend(range(2000))
    log.received_number.extend(range(2000))
    sharp = indexes(log, [1], 0.49)
    assert sharp.seconds == pytest.approx(1.02)
    assert abs(sharp.share(1.0) - 1) > 0.01
    blurred = indexes(log, [1], 0.49, 0.3)
    assert blurred.seconds == pytest.approx(0.72)
    assert blurred.ingress == pytest.approx(1000, rel=0.001)
    assert blurred.share(1.0) == pytest.approx(1, abs=0.002)


def test_several_messages_of_a_publisher_in_one_turn_keep_their_numbers() -> None:
    only = Scenario("one topic", 1, LatencyPlace("l", 1, (1,)), (LoadPlace(1, "one", 1, 2),))
    with sham_broker(faithfully) as port, closing(TClients(only, [port])) as clients:
        run = clients.run(0.1, 0.2)
    assert list(run.log.sent_number) == list(range(len(run.log.sent_ns)))
    assert len(run.log.sent_ns) > len(set(run.log.sent_ns)), "some went together"
    found = indexes(run.log, [2], 0.0)
    assert (found.lost, found.duplicated) == (0, 0)


def test_latency_is_measured_by_clients_of_its_own() -> None:
    def slowly(data: bytes, size: int) -> bytes:
        time.sleep(0.02)
        return data

    with sham_broker(slowly) as port:
        log = measure(LatencyJob(topic="l", publisher=port, subscribers=(port, port), every_s=0.05, seconds=0.5))
    assert log.due == 2 * log.sent == len(log.latency_us)
    assert log.p50_ms is not None
    assert log.p50_ms >= 20


@pytest.mark.slow
def test_the_limit_of_a_sham_broker_with_real_sockets_is_found() -> None:
    """It takes so many messages of each publisher in a run, however fast they come: no clock but the generator's."""
    seconds, most = 1.0, 25

    def forward(data: bytes, size: int) -> bytes:
        packets = [data[place : place + size] for place in range(0, len(data), size)]
        return b"".join(packet for packet in packets if int.from_bytes(packet[-28:-24]) < most)

    with sham_broker(forward) as port:

        def passes(interval: float) -> bool:
            with closing(TClients(_heard(SCENARIO), [port])) as clients:
                run = clients.run(interval, seconds)
                return indexes(run.log, clients.deliveries, 0.0).lost == 0

        found = find_limit(passes, 32.0, "bisect")
    limit_ms = seconds * 1e3 / most
    assert 0.8 * limit_ms <= found.interval_ms <= 1.05 * limit_ms, "a busy machine may send fewer at the end"
