"""Refusals in the log: a few of each kind, then their number, however many there are."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from sterna.runtime.logs import TextFormatter
from sterna.runtime.reports import Reports
from sterna.vocabulary.throttle import OTHERS, Throttle, ThrottledKind


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    log = logging.getLogger("test.reports")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter())
    log.addHandler(handler)
    log.setLevel("INFO")
    log.propagate = False
    yield stream
    log.removeHandler(handler)


def reports() -> Reports:
    made = Reports(logging.getLogger("test.reports"))
    made.turn_over(0.0)
    return made


def refuse(reports: Reports, address: str, code: str = "0x86", **more: object) -> None:
    reports.report("connection failed", {"address": address, "code": code, "reason": "bad password", **more})


def test_a_flood_of_refusals_leaves_a_few_lines_and_their_number(lines: io.StringIO) -> None:
    reporting = reports()
    for port in range(10_000):
        refuse(reporting, f"192.0.2.1:{port}")
    assert len(lines.getvalue().splitlines()) == 10
    reporting.turn_over(59.0)
    assert len(lines.getvalue().splitlines()) == 10
    reporting.turn_over(61.0)
    assert (
        lines.getvalue()
        .splitlines()[-1]
        .endswith('WARNING connection failed of=192.0.2.1 code=0x86 more=9990 reason="and 9,990 more"')
    )
    refuse(reporting, "192.0.2.1:1")
    assert len(lines.getvalue().splitlines()) == 12


def test_another_address_and_another_reason_are_still_heard(lines: io.StringIO) -> None:
    reporting = reports()
    for _ in range(100):
        refuse(reporting, "192.0.2.1:1")
    refuse(reporting, "192.0.2.2:1")
    refuse(reporting, "192.0.2.1:1", "0x87")
    assert len(lines.getvalue().splitlines()) == 12


def test_clients_that_were_let_in_do_not_count_for_each_other(lines: io.StringIO) -> None:
    reporting = reports()
    for number in range(50):
        refuse(reporting, "192.0.2.1:1", user="alice", client=f"meter-{number}")
    assert len(lines.getvalue().splitlines()) == 50


def test_what_nobody_can_cause_at_will_is_always_said(lines: io.StringIO) -> None:
    reporting = reports()
    for _ in range(100):
        reporting.report("link down", {"peer": "b", "reason": "gone"})
    assert len(lines.getvalue().splitlines()) == 100


def test_memory_and_lines_are_bounded_however_many_addresses_there_are() -> None:
    throttle = Throttle(most=10, kinds=100)
    throttle.turn_over(0.0)
    admitted = sum(throttle.admits(ThrottledKind("event", f"address {number}")) for number in range(100_000))
    assert admitted == 100 + 10
    assert throttle.turn_over(100.0) == [(ThrottledKind("event", OTHERS), 99_890)]
    assert throttle.turn_over(200.0) == []
