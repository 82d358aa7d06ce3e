"""Options of `format("sterna")`, parsed once and carried from the driver to the tasks as plain values.

An option that cannot be used is refused in one line that names the option and says what to write.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from sterna.mqtt.topics import is_topic_filter
from sterna.pipeline.conditions import MATCHES, Condition
from sterna.pipeline.offsets import BEGINNING, END, OffsetSpec, TaskSize
from sterna.pipeline.table import COLUMNS
from sterna.vocabulary.errors import ConfigurationError

Words = Mapping[str, str]
_Value = TypeVar("_Value")

#: The name in the nodes' logs of a reader that has none; nodes keep no place for it.
NAMELESS = "spark"

#: Options of every query, which Spark shows to sources and sinks too.
_SPARKS_OWN = frozenset({"checkpointlocation", "path", "queryname"})

#: Properties that a catalog keeps of a table and hands over with its options (`CREATE TABLE ... USING sterna`).
_CATALOGS_OWN = frozenset(
    {"collation", "comment", "external", "is_managed_location", "location", "owner", "provider", "table_type"}
)
_OF_A_TABLE = "option."
"""Before an option of a table: Spark gives some of them twice."""

_TOPIC_LEVELS_MAX, _TOPIC_BYTES_MAX = 128, 65535

ALIGN_PATIENCE_S = 600.0
TASK_BYTES = 128 * 1024 * 1024
"""Of journals in a task: as many as Spark gives a task of a file."""
_SIZE = re.compile(r"(\d+)([kmg]?)b?")
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Access:
    """How to be let in by a feed."""

    reader: str = NAMELESS
    token: str | None = None
    ca_file: str | None = None

    @property
    def is_named(self) -> bool:
        return self.reader != NAMELESS


class TriggerLimits(NamedTuple):
    """How much a batch of a stream holds."""

    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int | None = None
    """Fewer wait for more of them, ..."""
    delay_s: float = 15 * 60.0
    """... but not longer than this."""

    @property
    def are_any(self) -> bool:
        return self[:3] != (None, None, None)


NO_LIMITS = TriggerLimits()
ONE_TASK = TaskSize(1)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Everything about a read."""

    nodes: tuple[str, ...]
    """Addresses of feeds; all nodes that these know are read too."""
    access: Access
    topics: tuple[str, ...] = ()
    """MQTT filters; empty: every topic."""
    sift: bool = True
    """Or may there be messages of other topics among what is read?"""
    columns: tuple[str, ...] = COLUMNS
    starting: OffsetSpec = BEGINNING
    ending: OffsetSpec = END
    limits: TriggerLimits = NO_LIMITS
    task_size: TaskSize = ONE_TASK
    align: tuple[int, float] | None = None
    """Read no node further ahead of another than so many microseconds, and wait so many seconds for one that is
    away."""
    conditions: tuple[Condition, ...] = ()
    """All of which have to hold."""
    fail_on_data_loss: bool = True
    ignore_missing_nodes: bool = False
    """Read what there is if a node does not answer that others expect."""
    patience_s: float = 60.0
    """How long a task waits for a node that does not answer, and everybody for one that has too many readers."""
    parquet: str | None = None
    """Directory of the nodes' sealed segments, as tasks see it; batch reads take from it what nodes have dropped."""
    gaps: str | None = None
    """Directory, as tasks see it, where what nodes had lost is noted."""

    @classmethod
    def parse(cls, words: Words, *, streaming: bool) -> ReadOptions:
        given = _Given(words)
        options = cls(
            nodes=given.take("nodes", _listed, ()),
            access=_access(given),
            topics=given.take("topics", topic_filters, ()),
            columns=given.take("columns", _columns, COLUMNS),
            starting=_place(given, "starting", END if streaming else BEGINNING),
            ending=_place(given, "ending", END),
            limits=_limits(given),
            task_size=_task_size(given, streaming),
            align=_align(given),
            conditions=given.take("subscribePattern", _pattern, ()),
            fail_on_data_loss=given.take("failOnDataLoss", _truth, True),
            ignore_missing_nodes=given.take("ignoreMissingNodes", _truth, False),
            patience_s=given.take("patienceSeconds", _seconds, 60.0),
            parquet=given.take("parquet", _text, None),
            gaps=given.take("gaps", _text, None),
        )
        given.check_nothing_is_left()
        if not options.nodes:
            raise ConfigurationError(
                'nodes: say which feed to read, as in .option("nodes", "127.0.0.1:7885"); a table of a catalog that '
                "was made with columns of its own has lost its options: make it without"
            )
        return options


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Everything about a write."""

    host: str
    port: int
    user: str | None = None
    password: str | None = None
    ca_file: str | None = None
    publisher: str | None = None
    """Names a write, so that running it again adds nothing; without one a streaming query has its own."""
    batch: int = 0
    """Which of a publisher's writes this is, for `foreachBatch`: each must be greater than the one before."""
    remember_s: int = 7 * 24 * 3600
    """How long a node remembers, after the last word, what it has had of this publisher."""
    patience_s: float = 60.0
    """How long a task waits for a node that does not answer."""

    @classmethod
    def parse(cls, words: Words) -> WriteOptions:
        given = _Given(words)
        host, port = given.take("broker", _host_and_port, ("", 0))
        options = cls(
            host=host,
            port=port,
            user=given.take("user", _text, None),
            password=_secret(given, "password"),
            ca_file=given.take("caFile", _text, None),
            publisher=given.take("publisher", _text, None),
            batch=given.take("batchId", _whole, 0),
            remember_s=given.take("rememberSeconds", _positive, 7 * 24 * 3600),
            patience_s=given.take("patienceSeconds", _seconds, 60.0),
        )
        given.check_nothing_is_left()
        if not host:
            raise ConfigurationError('broker: say where to publish, as in .option("broker", "127.0.0.1:1883")')
        return options


def is_of_a_table(words: Words) -> bool:
    """Are these what a catalog has of a table?"""
    return "provider" in {name.lower() for name in words}


def options_of(words: Words) -> dict[str, str]:
    """Options for us, in small letters, without those that Spark and its catalogs exchange."""
    named = {name.lower(): text for name, text in words.items()}
    again = {name.removeprefix(_OF_A_TABLE): text for name, text in named.items() if name.startswith(_OF_A_TABLE)}
    return {
        name: text
        for name, text in {**again, **named}.items()
        if name not in _SPARKS_OWN | _CATALOGS_OWN and not name.startswith((_OF_A_TABLE, "spark.sql."))
    }


class _Given:
    """The options of one read or write, each taken once; upper and lower case are the same."""

    def __init__(self, words: Words) -> None:
        self._words = options_of(words)
        self._known: list[str] = []

    def take(self, option: str, parse: Callable[[str, str], _Value], otherwise: _Value) -> _Value:
        self._known.append(option)
        text = self._words.pop(option.lower(), None)
        return otherwise if text is None else parse(text.strip(), option)

    def check_nothing_is_left(self) -> None:
        if self._words:
            raise ConfigurationError(
                f"{min(self._words)}: there is no such option; there are {', '.join(sorted(self._known))}"
            )


def _place(given: _Given, which: str, otherwise: OffsetSpec) -> OffsetSpec:
    """Where to begin or to end; of several the first counts, as in Spark's Kafka source."""
    said = [
        given.take(f"{which}Timestamp", OffsetSpec.at_millisecond, None),
        given.take(f"{which}OffsetsByTimestamp", OffsetSpec.at_milliseconds, None),
        given.take(f"{which}Offsets", OffsetSpec.parse, None),
    ]
    return next((one for one in said if one is not None), otherwise)


def _limits(given: _Given) -> TriggerLimits:
    limits = TriggerLimits(
        given.take("maxOffsetsPerTrigger", _positive, None),
        given.take("maxBytesPerTrigger", _bytes, None),
        given.take("minOffsetsPerTrigger", _positive, None),
        given.take("maxTriggerDelay", _duration, NO_LIMITS.delay_s),
    )
    if limits.rows_min is not None and limits.rows_max is not None and limits.rows_min > limits.rows_max:
        raise ConfigurationError(
            f"minOffsetsPerTrigger: {limits.rows_min} is more than maxOffsetsPerTrigger allows, {limits.rows_max}"
        )
    return limits


def _align(given: _Given) -> tuple[int, float] | None:
    within_s = given.take("alignTime", _duration, None)
    patience_s = given.take("alignPatience", _duration, ALIGN_PATIENCE_S)
    return None if within_s is None else (round(within_s * 1e6), patience_s)


def _task_size(given: _Given, streaming: bool) -> TaskSize:
    """A stream notes in its offsets how a batch is cut; a batch read has to be cut alike on every machine."""
    return TaskSize(
        given.take("tasks", _positive, (os.cpu_count() or 1) if streaming else 0),
        given.take("minPartitions", _positive, 1),
        given.take("maxRecordsPerPartition", _positive, None),
        given.take("maxBytesPerPartition", _bytes, TASK_BYTES),
    )


def _access(given: _Given) -> Access:
    return Access(
        reader=given.take("reader", _text, NAMELESS),
        token=_secret(given, "token"),
        ca_file=given.take("caFile", _text, None),
    )


def _secret(given: _Given, option: str) -> str | None:
    """The secret itself, or better the file that holds it: options are shown in plans and logs, files are not."""
    return given.take(option, _text, None) or given.take(f"{option}File", _first_line, None)


def _first_line(path: str, option: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise ConfigurationError(f"{option}: {path} cannot be read: {error.strerror}") from None


def _text(text: str, _option: str) -> str:
    return text


def _listed(text: str, _option: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def topic_filters(text: str, option: str) -> tuple[str, ...]:
    """With commas between them, or as a JSON array."""
    filters = _listed(text, option)
    if text.startswith("["):  # else no filter could have a comma in it
        with suppress(msgspec.MsgspecError):
            filters = msgspec.json.decode(text, type=tuple[str, ...])
    for one in filters:
        if not is_topic_filter(one.encode(), _TOPIC_LEVELS_MAX, _TOPIC_BYTES_MAX):
            raise ConfigurationError(f'{option}: "{one}" is no topic filter; + stands for one level, # for the rest')
    return filters


def _columns(text: str, option: str) -> tuple[str, ...]:
    columns = _listed(text, option)
    unknown = [column for column in columns if column not in COLUMNS]
    if unknown or not columns:
        raise ConfigurationError(f"{option}: the table has no column {unknown or text!r}; it has {', '.join(COLUMNS)}")
    return columns


def _positive(text: str, option: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(f"{option}: {text!r} is no whole number from 1 on")
    return int(text)


def _whole(text: str, option: str) -> int:
    if not text.isdecimal():
        raise ConfigurationError(f"{option}: {text!r} is no whole number")
    return int(text)


def _bytes(text: str, option: str) -> int:
    found = _SIZE.fullmatch(text.lower())
    if found is None or not int(found[1]):
        raise ConfigurationError(f"{option}: {text!r} is no size; write a number of bytes, or as in 64m (k, m, g)")
    return int(found[1]) << _SHIFTS[found[2]]


def _duration(text: str, option: str) -> float:
    found = _DURATION.fullmatch(text.lower())
    if found is None:
        raise ConfigurationError(f"{option}: {text!r} is no time; write it as in 30s (ms, s, m, h)")
    return float(found[1]) * _UNITS_S[found[2] or "ms"]


def _pattern(text: str, option: str) -> tuple[Condition, ...]:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigurationError(f"{option}: {text!r} is no regular expression: {error}") from None
    return (Condition("topic", MATCHES, (text,)),)


def _seconds(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{option}: {text!r} is no number of seconds") from None


def _truth(text: str, option: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(f"{option}: {text!r} is neither true nor false")
    return text.lower() == "true"


def _host_and_port(text: str, option: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigurationError(f'{option}: "{text}" is no address; write host:port, as in 127.0.0.1:1883')
    return host.strip("[]"), int(port)
