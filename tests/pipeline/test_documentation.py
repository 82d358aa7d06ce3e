"""Every snippet of the page about Spark, run in order against a node; and the example, whole."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .feeding import FeedingNode, payloads

pytestmark = pytest.mark.timeout(600)  # Spark starts slowly on a busy machine
ALL_S = 900
"""It starts half a dozen times, one after the other."""

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/pipeline.md").read_text()
FEED, BROKER = "127.0.0.1:7885", "127.0.0.1:1883"
RECORDED = "[journal]\ndeliveries = true\n"


def snippets(kind: str) -> list[str]:
    found = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"no {kind} snippet on the page"
    return found


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
    names: dict[str, object] = {}
    for snippet in snippets("python"):
        here = snippet.replace(FEED, node.feed).replace(BROKER, node.broker)
        # Spark takes relative paths from where it was started, and that was not here.
        here = re.sub(r'"(warm|plant-gaps|plant-operators|[a-z]+-checkpoint)"', rf'"{tmp_path}/\1"', here)
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
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(ALL_S + 60)
def test_the_example_runs(tmp_path: Path) -> None:
    example = ROOT / "examples/pipeline_tour.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=ALL_S, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "each message once: True" in done.stdout
    assert done.stdout.count("|36.0") == 3, "the stream did not see what came in"
