"""Words of the control protocol: what was said comes out again, and nothing else does."""

from __future__ import annotations

from math import inf, nan
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.adaptation.picture import Observations, RefusedReport, ReportStamp
from sterna.adaptation.topics import FROM_GATEWAYS, REPORTS, TO_GATEWAYS, TO_WORKERS, control_topic
from sterna.adaptation.words import (
    FindClosest,
    FindRandom,
    Found,
    GatewayReport,
    Leading,
    Leaving,
    Mailroom,
    MoveGateway,
    Order,
    OrderAnswer,
    OrderState,
    RefusedWord,
    SentCoordinate,
    Served,
    SignedWord,
    StartNode,
    Trip,
    Word,
    WorkerPlace,
    WorkerReport,
    measuring_key,
)
from sterna.overlay.coordinates import Coordinate

KEY = b"a key of sixteen bytes"
HERE = Coordinate((0.1, 0.2, 0.3, 0.4), 0.001, 0.25, -0.001)
REPORT = control_topic("net", REPORTS, "w1")
REPORTED = WorkerReport("lab", "serving", 1.5, "127.0.0.1:7", "127.0.0.1:1883", serves=(Served("g", 3, 4, 2.5),))
START = Order(1, 1, 1, 1, 1.0, StartNode())
WORDS: list[Word] = [
    REPORTED,
    FindRandom(4),
    FindClosest(6),
    Found("closest", (WorkerPlace("w2", "127.0.0.1:9", SentCoordinate.of(HERE)),), b"key", ("127.0.0.1:1883",)),
    GatewayReport((Trip("w1", 0.01),)),
    Order(7, 3, 99, 12, 10.0, MoveGateway("g", "w2")),
    Order(8, 3, 99, 12, 10.0, StartNode()),
    OrderAnswer(7, 3, OrderState.FAILED, "no room"),
    Leading(3, True),
    Leaving(),
]


def worker(name: str = "w1", network: str = "net", key: bytes = KEY) -> Mailroom:
    return Mailroom(network, "eu", name, 99, key)


def gateway(name: str = "g1") -> Mailroom:
    return Mailroom("net", "eu", name, 5)


@pytest.mark.parametrize("word", WORDS, ids=lambda word: type(word).__name__)
def test_a_word_comes_out_as_it_was_said(word: Word) -> None:
    reader = worker("boss")
    assert reader.read(REPORT, worker().write(word, HERE)) == SignedWord("w1", "eu", ReportStamp(99, 1), word, HERE)
    assert not reader.refusals


@pytest.mark.parametrize(
    ("topic", "said", "refusal"),
    [
        (REPORT, worker(key=b"another key of 16 bytes").write(REPORTED), RefusedWord.MAC),
        (REPORT, worker().write(REPORTED)[:-1], RefusedWord.MAC),
        (REPORT, gateway("w1").write(REPORTED), RefusedWord.OPEN),
        (control_topic("other", REPORTS, "w1"), worker().write(REPORTED), RefusedWord.NETWORK),
        (REPORT, worker("w2").write(REPORTED), RefusedWord.SENDER),
        (control_topic("net", FROM_GATEWAYS, "g1"), gateway("g2").write(FindRandom(1)), RefusedWord.SENDER),
        (control_topic("net", FROM_GATEWAYS, "g1"), gateway().write(Leading(9)), RefusedWord.KIND),
        (control_topic("net", FROM_GATEWAYS, "g1"), gateway().write(REPORTED), RefusedWord.KIND),
        (control_topic("net", TO_WORKERS, "w1"), gateway().write(START), RefusedWord.OPEN),
        (REPORT, b"", RefusedWord.SIZE),
        (REPORT, bytes(300_000), RefusedWord.SIZE),
        (REPORT, b"\x02" + worker().write(REPORTED)[1:], RefusedWord.VERSION),
    ],
)  # fmt: skip
def test_words_that_are_not_right_are_refused_and_counted_by_reason(
    topic: bytes, said: bytes, refusal: RefusedWord
) -> None:
    reader = worker("boss")
    assert reader.read(topic, said) is None
    assert reader.refusals == {refusal: 1}


def test_a_word_of_another_network_is_refused_even_if_the_topic_is_ours() -> None:
    reader = Mailroom("net", "eu", "boss", 1, KEY)
    other = gateway()
    other._network = "other"
    assert reader.read(control_topic("net", FROM_GATEWAYS, "g1"), other.write(FindRandom(1))) is None
    assert reader.refusals == {RefusedWord.NETWORK: 1}


@pytest.mark.parametrize(
    "word",
    [
        FindRandom(0),
        FindRandom(17),
        GatewayReport(tuple(Trip("w", 0.1) for _ in range(65))),
        WorkerReport("lab", "serving", 0.0, "x" * 301, ""),
        WorkerReport("lab", "dancing", 0.0, "", ""),  # type: ignore[arg-type]
        Order(-1, 1, 1, 1, 1.0, StartNode()),
        Order(1, 1, 1, 1, 0.0, StartNode()),
        Order(1, 1, 1, 1, nan, StartNode()),
        Order(1, 1, 1, 1, 1.0, MoveGateway("a/b", "c")),
    ],
)
def test_words_out_of_bounds_are_malformed(word: Word) -> None:
    reader = worker("boss")
    assert reader.read(REPORT, worker().write(word)) is None
    assert reader.refusals == {RefusedWord.MALFORMED: 1}


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything(data: bytes) -> None:
    for topic in (REPORT, control_topic("net", FROM_GATEWAYS, "g1"), b"$adaptation/x", b"\xff"):
        assert worker("boss").read(topic, data) is None
        assert worker("boss").read(topic, b"\x01\x00" + data) is None


def test_damaged_words_change_nothing_or_are_refused() -> None:
    """Open words, so that no MAC hides what decoding does."""
    rng = Random(1)
    topic = control_topic("net", FROM_GATEWAYS, "g1")
    whole = gateway().write(GatewayReport((Trip("w1", 0.01), Trip("w2", 0.02))), HERE)
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        reader = worker("boss")
        letter = reader.read(topic, bytes(damaged[: rng.randint(0, len(damaged))]))
        assert (letter is None) == bool(reader.refusals)


@pytest.mark.parametrize("bad", [nan, inf, -inf, 1e300])
def test_places_that_are_nonsense_pass_as_words_and_are_refused_by_the_picture(bad: float) -> None:
    place = Coordinate((bad, 0.0, 0.0, 0.0), 0.001, 0.5)
    letter = worker("boss").read(REPORT, worker().write(REPORTED, place))
    assert letter is not None
    assert letter.coordinate is not None
    assert not letter.coordinate.is_sound
    assert Observations(dimensions=4, lost_s=1, fresh_s=1)._unsound_coordinate(letter.coordinate) is (
        RefusedReport.COORDINATE
    )


def test_a_gateway_reads_what_it_is_told_without_a_key() -> None:
    found = Found("random", (), b"key")
    letter = gateway().read(control_topic("net", TO_GATEWAYS, "g1"), worker("boss").write(found))
    assert letter is not None
    assert letter.word == found


def test_measuring_keys_differ_by_network_and_period_and_are_not_the_sealing_key() -> None:
    keys = {measuring_key(network, KEY, period) for network in ("a", "b") for period in (1, 2)}
    assert len(keys) == 4
    assert all(len(key) == 32 for key in keys)


def test_extra_fields_of_an_envelope_are_refused() -> None:
    from sterna.adaptation.words import Envelope, _decoder

    body = msgspec.msgpack.encode([*msgspec.to_builtins(Envelope("net", "eu", "w", 1, 1, Leaving())), "more"])
    with pytest.raises(msgspec.ValidationError):
        _decoder.decode(body)
