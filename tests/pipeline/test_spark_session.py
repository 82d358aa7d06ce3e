"""The settings of a session: by the size of the machine where there is one, and the cluster's own on a cluster."""

from __future__ import annotations

import os

import pytest
from typer.testing import CliRunner

from sterna.cli import pipeline
from sterna.pipeline.spark_session import SETTINGS, settings_for, with_retries

BY_SIZE = {"spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled"}


@pytest.mark.parametrize("master", ["local", "local[*]", "local[3]", "local[2,4]"])
def test_one_machine_shuffles_into_as_many_parts_as_it_has_cores(master: str) -> None:
    chosen = settings_for(master, {})
    assert chosen["spark.sql.shuffle.partitions"] == str(os.cpu_count())
    assert chosen["spark.sql.adaptive.enabled"] == "false"
    assert chosen.items() >= SETTINGS.items()


@pytest.mark.parametrize("master", ["spark://a:7077", "yarn", "k8s://https://a", "local-cluster[2,1,1024]"])
def test_a_cluster_knows_its_size_itself(master: str) -> None:
    chosen = settings_for(master, {})
    assert not BY_SIZE & chosen.keys()
    assert chosen.items() >= SETTINGS.items()
    assert with_retries(master) == master


def test_the_settings_of_a_user_win_everywhere() -> None:
    own = {"spark.sql.shuffle.partitions": "7", "spark.sql.session.timeZone": "CET"}
    for master in ("local[*]", "spark://a:7077"):
        assert settings_for(master, own).items() >= own.items()


@pytest.mark.parametrize(
    "words", [["query", "select 1"], ["evaluate", "$SUM/t"], ["audit"]], ids=lambda words: str(words[0])
)
def test_jobs_that_read_much_at_once_see_how_much_it_is(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[dict[str, str]] = []

    def session(_name: str, master: str, conf: list[str]) -> None:
        opened.append(settings_for(master, dict(one.split("=", 1) for one in conf)))
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "spark_session", session)
    monkeypatch.setattr(pipeline, "_check", lambda source: None)  # no node is there
    for conf in ([], ["--conf", "spark.sql.adaptive.enabled=false"]):
        CliRunner().invoke(pipeline.app, [*words, "--nodes", "127.0.0.1:1", *conf])
    assert [one["spark.sql.adaptive.enabled"] for one in opened] == ["true", "false"]
