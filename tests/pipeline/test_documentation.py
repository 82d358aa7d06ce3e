"""Every snippet of the page about Spark, run in order against a node; and the tour, whole."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sterna.pipeline.jobs.archive import Archive, start_archive

from .feeding import FeedingNode, finished, payloads
from .page import BROKER, FEED, PAGE, snippets

pytestmark = pytest.mark.timeout(600)  # Spark starts slowly on a busy machine
ALL_S = 900
"""It starts half a dozen times, one after the other."""

ROOT = Path(__file__).parents[2]
RECORDED = "[journal]\ndeliveries = true\n"


def test_the_snippets_of_the_page_do_what_it_says(
    spark: SparkSession,
    start_feeding: Callable[..., FeedingNode],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = start_feeding("plant-1", RECORDED)
    node.listen("listener", "plant/+/temperature")
    node.publish("plant/hall/temperature", [20, 26.5])
    node.publish("plant/hall/state", ['{"room": "hall", "open": true}'])
    archive = tmp_path / "plant-archive"
    finished(lambda: start_archive(spark, Archive(archive), {"nodes": node.feed}, available_now=True), ALL_S)
    names: dict[str, object] = {}
    for snippet in snippets("python"):
        here = snippet.replace(FEED, node.feed).replace(BROKER, node.broker)
        # Spark takes relative paths from where it was started, and that was not here.
        here = re.sub(r'"(warm|plant-gaps|plant-operators|[a-z]+-checkpoint)"', rf'"{tmp_path}/\1"', here)
        here = here.replace('"plant-archive/', f'"{archive}/')
        exec(compile(here, "docs/pipeline.md", "exec"), names)
    shown = capsys.readouterr().out
    assert "plant/hall/state|hall|true" in shown.replace(" ", "")
    assert "|listener|plant/+/temperature|1|2|2|0|0|0|" in shown.replace(" ", "")
    assert [row.celsius for row in spark.read.parquet(str(tmp_path / "warm")).collect()] == [26.5]

    def said(topics: str) -> list[str]:
        return payloads(spark.read.format("sterna").options(nodes=node.feed, topics=topics).load())

    assert said("alarms/fire") == ["hall"]
    assert said("echo/#") == ["20", "26.5", '{"room": "hall", "open": true}']
    assert said("counts/plant-1") == ["3"]


@pytest.mark.slow
@pytest.mark.timeout(ALL_S + 60)
def test_the_commands_of_the_page_do_what_it_says(start_feeding: Callable[..., FeedingNode], tmp_path: Path) -> None:
    node = start_feeding("plant-1", RECORDED)
    node.listen("listener", "plant/#")
    node.publish("plant/hall/temperature", [20, 26.5])
    node.publish("office/desk/temperature", [21])
    script = f'sterna() {{ {sys.executable} -m sterna "$@"; }}\n' + "\n".join(snippets("sh")).replace(FEED, node.feed)
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, timeout=ALL_S, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[:4] == ["topic", "messages", "plant/hall/temperature", "2"]
    assert "plan: all messages go through one task, in order" in done.stderr
    results = words[words.index("payload") + 1 :]
    assert results[2:4] == ["$AVG/plant/$A/temperature", "20.0"]
    assert results[6:8] == ["$AVG/plant/$A/temperature", "26.5"]
    assert words[words.index("listener") :][:8] == ["listener", "@", "plant-1", "plant/#", "1", "2", "2", "0"]


def test_every_option_is_on_the_page() -> None:
    source = (ROOT / "src/sterna/pipeline/options.py").read_text()
    options = re.findall(r'(?:take|_secret)\((?:given, )?"(\w+)"', source)
    assert len(options) > 12
    assert [option for option in options if f"`{option}`" not in PAGE] == []


@pytest.mark.parametrize(
    "module",
    ["sterna", "sterna.runtime.server", "sterna.cli.pipeline", "sterna.pipeline.feed.client"],
)
def test_nothing_but_jobs_and_source_imports_spark(module: str) -> None:
    code = f"import sys, {module}; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=240).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(ALL_S + 60)
def test_the_tour_prints_what_its_page_shows(tmp_path: Path) -> None:
    """All of it, to the letter; what it draws has other numbers each time."""
    words = [sys.executable, str(ROOT / "scripts/tour"), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=ALL_S, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs/tour.md").read_text()
    assert (tmp_path / "tour.md").read_text() == page
    pictures = re.findall(r"\]\((pictures/\S+)\)", page)
    assert len(pictures) == 2
    for picture in pictures:
        assert (tmp_path / picture).stat().st_size > 1000
        assert (ROOT / "docs" / picture).exists()
