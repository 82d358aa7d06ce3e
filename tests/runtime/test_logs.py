"""Logs: one event, one line, no secrets."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from sterna.runtime.logs import VALUE_CHARACTERS_MAX, configure

log = logging.getLogger("sterna.tests")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_has_instant_level_event_and_circumstances(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    log.info("client connected", extra={"client": "abc", "address": "127.0.0.1:4711", "clean": True, "why": "a b"})
    log.debug("not shown")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO client connected client=abc address=127.0.0.1:4711 clean=True "
        r'why="a b"\n',
        stream.getvalue(),
    )


@pytest.mark.parametrize(("form", "shown"), [("text", "connected client=a\n"), ("json", '"user": null')])
def test_what_there_is_none_of_takes_no_room_in_text_and_is_null_in_json(
    stream: io.StringIO, form: str, shown: str
) -> None:
    configure("info", "json" if form == "json" else "text", stream)
    log.info("connected", extra={"client": "a", "user": None})
    assert shown in stream.getvalue()
    assert "None" not in stream.getvalue()


def test_json_is_one_object_per_line_and_keeps_types(stream: io.StringIO) -> None:
    configure("debug", "json", stream)
    log.warning("queue full", extra={"client": "é\n", "queued": 5, "level": "forged", "topic": b"a/\xff"})
    event = json.loads(stream.getvalue())
    assert (event["level"], event["event"], event["queued"]) == ("warning", "queue full", 5)
    assert (event["client"], event["topic"]) == ("é\n", "a/\\xff")
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    "hostile", ["a\nb", "a\r\x1b[2J", "x=1 y", '"', "\u0085", "", "a\u202eb", "\u2066x", "\u200b", "\xa0"]
)
def test_no_value_of_a_client_breaks_its_line(stream: io.StringIO, hostile: str) -> None:
    configure("info", "text", stream)
    log.info("refused %s", hostile, extra={"client": hostile})
    line = stream.getvalue().removesuffix("\n")
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert line.endswith(f"client={json.dumps(hostile)}")


def test_secrets_are_never_shown_and_long_values_are_cut(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    log.info("login", extra={"password": "hunter2", "client_secret": "hunter2", "client": "c" * 5000})
    assert "hunter2" not in stream.getvalue()
    assert "password=***" in stream.getvalue()
    assert len(stream.getvalue()) < VALUE_CHARACTERS_MAX + 200


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_brings_its_traceback(stream: io.StringIO, form: str) -> None:
    configure("info", "json" if form == "json" else "text", stream)
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("failed")
    assert "ValueError: boom" in stream.getvalue()
