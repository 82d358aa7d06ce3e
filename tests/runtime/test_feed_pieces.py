"""What goes over the wire for a range is, after the reader has cut it, exactly what was asked for: whatever it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.feed_world import message
from sterna.broker.delivery.share_targets import encode_decision
from sterna.journal.columns import to_batch
from sterna.journal.filter_set import FilterSet
from sterna.journal.frames import HEADER_BYTES
from sterna.journal.group_encoding import encode_group, message_weight
from sterna.journal.table import FOR_SHARES_ONLY, TABLE_SCHEMA
from sterna.mqtt.message import Message
from sterna.mqtt.properties import CONTENT_TYPE, CORRELATION_DATA, PAYLOAD_FORMAT, RESPONSE_TOPIC, USER_PROPERTY
from sterna.mqtt.wire import binary
from sterna.node import feed_pieces
from sterna.node.arrow_checks import check_message
from sterna.node.feed_pieces import AS_IT_LIES, CUT, FeedQuestion, needles_of, pick, table_of, unpack
from sterna.vocabulary.errors import JournalCorrupt

EVERYTHING = FeedQuestion(0, 1 << 40)


def written(*groups: list[Message], events: list[bytes] | None = None) -> bytes:
    """The bytes of groups, as a segment holds them, from the first message on."""
    data, base = b"", 0
    for messages in groups:
        weight = sum(map(message_weight, messages))
        group = encode_group(messages, events or [], base=base, epoch=3, weight=weight)
        data += group.data
        base = group.end_offset
    return data


def read(data: bytes, question: FeedQuestion, rows_min: int = 1) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for kind, buffers in pick(data, question).pieces:
        for rows in unpack(memoryview(bytes((kind,)) + b"".join(buffers)), rows_min):
            table = table_of(rows, question, "node-1")
            found += table.to_pylist() if table is not None else []
    return found


def kinds(data: bytes, question: FeedQuestion) -> list[int]:
    return [kind for kind, _ in pick(data, question).pieces]


def test_frames_without_anything_between_travel_as_one_piece_of_the_disk() -> None:
    data = written([message(n) for n in range(300)], [message(n) for n in range(300, 400)])
    ((kind, buffers),) = pick(data, EVERYTHING).pieces
    assert kind == AS_IT_LIES
    assert [bytes(buffer) for buffer in buffers] == [data]


def test_session_events_do_not_travel() -> None:
    data = written([message(0)], [message(1)], events=[b"subscribed to a secret"])
    sent = b"".join(bytes(buffer) for _, buffers in pick(data, EVERYTHING).pieces for buffer in buffers)
    assert b"secret" not in sent
    assert [row["offset"] for row in read(data, EVERYTHING)] == [0, 1]


def test_a_row_of_the_table_says_everything_about_its_message() -> None:
    one = message(5, b"plant/temp")
    one.expires_at = one.received_at + 60
    one.properties = b"".join(
        (
            bytes((PAYLOAD_FORMAT, 1)),
            bytes((CONTENT_TYPE,)) + binary(b"text/plain"),
            bytes((RESPONSE_TOPIC,)) + binary(b"answers"),
            bytes((CORRELATION_DATA,)) + binary(b"\x00\xff"),
            bytes((USER_PROPERTY,)) + binary(b"unit") + binary(b"C"),
            bytes((USER_PROPERTY,)) + binary(b"unit") + binary(b"K"),
        )
    )
    (row,) = read(written([one]), EVERYTHING)
    assert row.pop("ingress_time").timestamp() == one.received_at
    assert row.pop("expiry_time").timestamp() == one.expires_at
    assert row == {
        "topic": "plant/temp",
        "payload": b"payload 5",
        "qos": 1,
        "retain": False,
        "publisher": "client",
        "origin": "node-1",
        "epoch": 3,
        "sequence": 0,
        "offset": 0,
        "properties": [
            ("unit", "K"),
            ("$payload-format", "1"),
            ("$response-topic", "answers"),
            ("$correlation-data", "00ff"),
        ],
        "content_type": "text/plain",
        "user_properties": [{"key": "unit", "value": "C"}, {"key": "unit", "value": "K"}],
    }


def test_batches_have_the_schema_of_the_table_whether_or_not_there_are_properties() -> None:
    plain, told = message(0), message(1)
    told.properties = bytes((CONTENT_TYPE,)) + binary(b"a/b")
    for messages in ([plain], [told], [plain, told]):
        (rows,) = unpack(memoryview(bytes((AS_IT_LIES,)) + written(messages)))
        assert table_of(rows, EVERYTHING, "n").schema.equals(TABLE_SCHEMA)


def test_copies_of_other_nodes_messages_are_left_out() -> None:
    passed_on = message(2)
    passed_on.shares = encode_decision({b"$share/g/t": "node-1"}, only=True)
    decided = message(3)
    decided.shares = encode_decision({b"$share/g/t": "node-2"})
    data = written([message(0), message(1, origin="node-2"), passed_on, decided])
    assert passed_on.shares.startswith(FOR_SHARES_ONLY)
    assert [row["offset"] for row in read(data, EVERYTHING)] == [0, 3]


def test_a_frame_of_copies_alone_stays_on_the_node() -> None:
    data = written([message(n, origin="node-2") for n in range(400)], [message(n) for n in range(400)])
    picked = pick(data, EVERYTHING)
    assert picked.rows == 400
    assert {row["offset"] for row in read(data, EVERYTHING)} == set(range(400, 800))


def test_a_frame_with_few_rows_of_interest_is_cut_and_one_with_many_is_not() -> None:
    data = written([message(n) for n in range(900)])
    few = FeedQuestion(0, 900, FilterSet([b"plant/1"]))
    many = FeedQuestion(0, 900, FilterSet([b"plant/1", b"plant/2"]))
    assert kinds(data, few) == [CUT]
    assert kinds(data, many) == [AS_IT_LIES]
    assert [row["offset"] for row in read(data, few)] == list(range(1, 900, 3))
    assert len(read(data, many)) == 600
    assert sum(len(bytes(b)) for _, buffers in pick(data, few).pieces for b in buffers) < len(data) / 2


def test_frames_without_a_word_of_the_filter_are_not_even_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: object) -> Any:
        raise AssertionError("looked")

    monkeypatch.setattr(feed_pieces, "_look", look)
    data = written([message(n) for n in range(900)])
    filters = [b"office/+/temp"]
    assert pick(data, FeedQuestion(0, 900, FilterSet(filters), needles=needles_of(filters))).pieces == []


@pytest.mark.parametrize(
    ("filters", "needles"),
    [
        ([b"a/b/#"], (b"a/b",)),
        ([b"+/sensor/+/x"], (b"/sensor/",)),
        ([b"a/#", b"#"], ()),
        ([b"+/+"], (b"/",)),
        ([b"plain"], (b"plain",)),
        ([b"%d/#" % n for n in range(100)], ()),
    ],
)
def test_a_needle_stands_in_every_topic_its_filter_matches(filters: list[bytes], needles: tuple[bytes, ...]) -> None:
    assert needles_of(filters) == needles


def test_old_frames_are_left_out_by_their_headers() -> None:
    data = written([message(n) for n in range(10)], [message(n) for n in range(10, 20)])
    question = FeedQuestion(0, 20, since_us=(1_700_000_000 + 12) * 1_000_000, until_us=(1_700_000_000 + 15) * 1_000_000)
    assert pick(data, question).rows == 10
    assert [row["offset"] for row in read(data, question)] == [12, 13, 14]


_TOPICS = st.sampled_from([b"a", b"a/b", b"a/b/c", b"x/y", b"x/b", b"$sys/a"])
_FILTERS = st.lists(st.sampled_from([b"#", b"a/#", b"+/b", b"a", b"x/+", b"nobody/+", b"$sys/#"]), max_size=3)
_MESSAGES = st.lists(st.tuples(_TOPICS, st.booleans()), max_size=40)


@given(
    groups=st.lists(_MESSAGES, max_size=4),
    filters=st.none() | _FILTERS,
    bounds=st.tuples(st.integers(0, 80), st.integers(0, 80)),
    times=st.tuples(st.none() | st.integers(0, 80), st.none() | st.integers(0, 80)),
    publishers=st.none() | st.sets(st.integers(0, 3), max_size=2),
    qos=st.none() | st.sets(st.integers(0, 2), max_size=2),
    look=st.sampled_from([1, 10, 1000]),
    rows_min=st.sampled_from([1, 7, 1000]),
)
def test_whatever_is_asked_for_comes_and_nothing_else(
    groups: list[list[tuple[bytes, bool]]],
    filters: list[bytes] | None,
    bounds: tuple[int, int],
    times: tuple[int | None, int | None],
    publishers: set[int] | None,
    qos: set[int] | None,
    look: int,
    rows_min: int,
) -> None:
    number = 0
    written_groups: list[list[Message]] = []
    for group in groups:
        written_groups.append([])
        for topic, foreign in group:
            one = message(number, topic, "elsewhere" if foreign else "")
            one.publisher, one.qos = b"p%d" % (number % 4), number % 3
            written_groups[-1].append(one)
            number += 1
    data = written(*written_groups, events=[b"event"])
    since, until = (None if at is None else (1_700_000_000 + at) * 1_000_000 for at in times)
    interest = None if filters is None else FilterSet(filters)
    named = None if publishers is None else frozenset(b"p%d" % one for one in publishers)
    question = FeedQuestion(
        *bounds,
        interest,
        since,
        until,
        needles_of(filters, list(named or ())),
        named,
        None if qos is None else frozenset(qos),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed_pieces, "LOOK_ROWS_MIN", look)
        found = [row["offset"] for row in read(data, question, rows_min)]
    everything = [one for group in written_groups for one in group]
    assert found == [
        offset
        for offset, one in enumerate(everything)
        if bounds[0] <= offset < bounds[1]
        and one.identity is None
        and (interest is None or one.topic in interest)
        and (times[0] is None or offset >= times[0])
        and (times[1] is None or offset < times[1])
        and (named is None or one.publisher in named)
        and (qos is None or one.qos in qos)
    ]


@pytest.mark.parametrize("look", [1, 1000])
def test_rows_are_chosen_by_publisher_and_qos(look: int, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [message(number) for number in range(300)]
    for number, one in enumerate(messages):
        one.publisher, one.qos = b"p%d" % (number % 4), number % 3
    data, named = written(messages), frozenset([b"p1", b"p2"])
    question = FeedQuestion(0, 900, needles=needles_of(None, sorted(named)), publishers=named, qos=frozenset([2]))
    monkeypatch.setattr(feed_pieces, "LOOK_ROWS_MIN", look)
    assert [row["offset"] for row in read(data, question)] == [n for n in range(300) if n % 4 in (1, 2) and n % 3 == 2]
    assert kinds(data, question) == [CUT if look == 1 else AS_IT_LIES]
    nobody = FeedQuestion(0, 900, needles=needles_of(None, [b"nobody"]), publishers=frozenset([b"nobody"]))
    assert pick(data, nobody).pieces == []


def test_a_rotten_body_costs_its_frame_and_is_told() -> None:
    first, second, third = (written([message(n)]) for n in range(3))
    data = written([message(0)], [message(1)], [message(2)])
    assert len(data) == len(first) + len(second) + len(third)
    at = len(first) + HEADER_BYTES + 20
    rotten = data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]
    picked = pick(rotten, EVERYTHING)
    assert [(rot.byte, rot.chain) for rot in picked.rot] == [(len(first), False)]
    assert [row["offset"] for row in read(rotten, EVERYTHING)] == [0, 2]


def test_a_rotten_header_ends_the_chain_and_is_told() -> None:
    first = len(written([message(0)]))
    data = bytearray(written([message(0)], [message(1)], [message(2)]))
    data[first + 9] ^= 1
    picked = pick(bytes(data), EVERYTHING)
    assert [(rot.byte, rot.chain) for rot in picked.rot] == [(first, True)]
    assert [row["offset"] for row in read(bytes(data), EVERYTHING)] == [0]


@given(st.integers(0, 5000), st.integers(1, 255), st.sampled_from([AS_IT_LIES, CUT]))
def test_a_piece_that_was_tampered_with_is_refused_or_read(place: int, bits: int, kind: int) -> None:
    data = written([message(n) for n in range(300)])
    question = FeedQuestion(0, 300, FilterSet([b"plant/1"])) if kind == CUT else EVERYTHING
    ((_, buffers),) = pick(data, question).pieces
    piece = bytearray(bytes((kind,)) + b"".join(buffers))
    piece[place % len(piece)] ^= bits
    try:
        found = [rows.batch.num_rows for rows in unpack(memoryview(piece))]
    except JournalCorrupt:
        return
    assert kind == CUT or sum(found) == 300


def test_a_batch_of_the_journal_is_what_a_frame_holds() -> None:
    """The contract with the columns of the journal: what they mean is asked for by name."""
    batch = to_batch([message(0, origin="elsewhere")])
    assert isinstance(batch, pa.RecordBatch)
    assert {"topic", "payload", "received_at", "origin", "shares", "properties"} <= set(batch.schema.names)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_no_process_dies_of_a_hostile_piece(seed: int) -> None:
    """Right checksums, mutated Arrow: what a node sends may be refused, and never ends the one that reads it."""
    fuzz = Path(__file__).with_name("feed_fuzz.py")
    done = subprocess.run([sys.executable, fuzz, str(seed), "3000"], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_compressed_batch_is_refused_before_it_is_unpacked() -> None:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    sink = pa.BufferOutputStream()
    batch = to_batch([message(1, payload=bytes(1_000_000))])
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    body = reader.read_next_message().serialize().to_pybytes()
    assert len(body) < 10_000
    with pytest.raises(ValueError, match="compressed"):
        check_message(memoryview(body))


def test_a_batch_has_the_length_it_says() -> None:
    whole = to_batch([message(1)]).serialize().to_pybytes()
    check_message(memoryview(whole))
    for body in (whole + whole, whole[:-8], whole + bytes(8)):
        with pytest.raises(ValueError, match="another length"):
            check_message(memoryview(body))
