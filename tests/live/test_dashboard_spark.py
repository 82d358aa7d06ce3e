"""A Spark query as the dashboard shows it: it reads, and its lag falls."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from playwright.sync_api import expect
from rich.console import Console

from sterna.cli.demo_nodes import DemoNode, joined, wait_until
from sterna.cli.demo_spark import SparkCounts

from .browsers import chromium, opened

PATIENCE_S = 600.0
"""Spark starts slowly on a busy machine."""
BACKLOG = 500
PACE_S = 0.1

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE_S)]

WATCH = """() => {
    window.lags = [];
    const look = () => {
        for (const row of document.querySelectorAll('[aria-label="Jobs"] tbody tr')) {
            const lag = Number(row.cells[2].textContent.replace(/[^0-9]/g, ""));
            if (row.cells[0].textContent === "topic-counts" && window.lags.at(-1) !== lag) window.lags.push(lag);
        }
    };
    new MutationObserver(look).observe(document.body, {childList: true, subtree: true, characterData: true});
}"""


def test_a_spark_query_is_seen_reading_and_its_lag_falls(tmp_path: Path) -> None:
    node = DemoNode(tmp_path, "read")
    node.start()
    try:
        with chromium() as browser, joined("sensor", node, []) as client:
            wait_until(lambda: bool(client.is_connected()), "the client to connect")
            for number in range(BACKLOG):
                client.publish("room/1", str(number), 1).wait_for_publish(PATIENCE_S)
            spark = SparkCounts(node.feed, tmp_path, Console(quiet=True), PATIENCE_S)
            try:
                with opened(browser, f"{node.dashboard}#/spark") as page:
                    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
                    page.evaluate(WATCH)
                    deadline = time.monotonic() + PATIENCE_S
                    while not page.evaluate("window.lags.some((one, place) => one < (window.lags[place - 1] ?? 0))"):
                        assert spark.is_running, spark.last_words()
                        assert time.monotonic() < deadline, page.evaluate("window.lags")
                        client.publish("room/1", "one more", 1)
                        page.wait_for_timeout(1000 * PACE_S)
                    job = page.get_by_role("region", name="Jobs").locator("tr", has_text="topic-counts")
                    expect(job).to_contain_text("reading")
                    lags = page.evaluate("window.lags")
                print(f"lag of the query: {lags}")
                assert max(lags) >= BACKLOG > min(lags)
                assert spark.counts["room/1"] >= BACKLOG
            finally:
                spark.stop()
    finally:
        node.stop()
