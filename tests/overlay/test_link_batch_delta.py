"""Small batches told by their difference: whatever is sent comes out, and nonsense ends the connection."""

from random import Random

import pytest

from sterna.overlay.batch_delta import KEPT_BYTES_MAX, PLACES, changed, difference
from sterna.overlay.batches import DEFLATED, DIFFERENCE, BrokenBatch, Opener, Sealer, Unfolder, frame_head, read_head

KEY = b"k" * 32
LIMIT = 10_000


def framed(body: bytes) -> bytes:
    return frame_head(1, len(body)) + body


def what(data: bytes) -> int:
    found = read_head(data, 0)
    assert found is not None
    return found[1]


def test_any_two_batches_of_one_size_differ_by_what_makes_one_of_the_other() -> None:
    dice = Random(1)
    for _ in range(2000):
        before = dice.randbytes(dice.randrange(KEPT_BYTES_MAX + 1))
        after = bytes(byte if dice.random() < 0.9 else dice.randrange(256) for byte in before)
        assert changed(before, difference(7, before, after)) == after


def test_bytes_that_stay_are_told_in_a_run_where_that_is_no_longer() -> None:
    assert difference(3, b"0123456789", b"01x34x6789") == bytes((3, 2, 4)) + b"x34x"
    assert difference(3, b"0123456789", b"01x345x789") == bytes((3, 2, 1)) + b"x" + bytes((3, 1)) + b"x"
    assert difference(3, b"0123456789", b"0123456789") == bytes((3,))


@pytest.mark.parametrize(
    "told", [b"", b"\x01\x00\x01x", b"\x00\x00", b"\x00\x00\x02x", b"\x00\x0a\x01x", b"\x00\x00\x01x\x00"]
)
def test_a_difference_that_fits_no_batch_is_refused(told: bytes) -> None:
    unfolder = Unfolder(LIMIT)
    sealed = Sealer(KEY).seal(0, b"0123456789")[0]
    found = read_head(sealed, 0)
    assert found is not None
    unfolder.unfold(DEFLATED, sealed[-found[0] :])
    with pytest.raises(BrokenBatch, match="differs from none"):
        unfolder.unfold(DIFFERENCE, told)


def test_messages_of_a_topic_are_told_by_what_is_new_in_them() -> None:
    sealer, opener = Sealer(KEY), Opener(KEY, LIMIT)
    kinds = []
    for number in range(100):
        topic = b"topic/%02d" % (number % 10)
        batch = framed(topic + b" something they all say, and a number: %06d" % number)
        data = sealer.seal(0, batch, topic)[0]
        kinds.append(what(data))
        opener.feed(data)
        opened = opener.next()
        assert opened is not None
        assert opened.frames == [(1, batch[3:])]
    assert kinds == [DEFLATED] * 10 + [DIFFERENCE] * 90


def test_however_many_topics_and_sizes_there_are_what_is_sent_comes_out() -> None:
    sealer, opener, dice = Sealer(KEY), Opener(KEY, LIMIT), Random(2)
    kinds = set()
    for number in range(20_000):
        topic = b"%d" % int(dice.expovariate(2 / PLACES))
        like = topic if dice.random() < 0.9 else b""
        filler = b"x" * dice.choice([0, 20, 20, 20, KEPT_BYTES_MAX, 5000])
        batch = framed(topic + filler + b"%d" % number + dice.randbytes(dice.choice([0, 0, 0, 40])))
        data = sealer.seal(number, batch, like)[0]
        kinds.add(what(data))
        opener.feed(data)
        opened = opener.next()
        assert opened is not None
        assert opened.frames == [(1, batch[frame_bytes(batch) :])]
    assert kinds == {0, DEFLATED, DIFFERENCE}


def frame_bytes(batch: bytes) -> int:
    return len(frame_head(1, len(batch) - 3))


def test_without_compression_nothing_is_told_by_a_difference() -> None:
    sealer = Sealer(KEY, compress=False)
    assert [what(sealer.seal(0, framed(b"the same"), b"topic")[0]) for _ in range(3)] == [0, 0, 0]
