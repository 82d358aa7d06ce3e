"""The queue of journal offsets behaves like a plain list of pairs, and never walks more of itself than it has to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.broker.session import offset_queue as queue_module
from sterna.broker.session.offset_queue import PIECE_MESSAGES, PIECE_TAGS, OffsetQueue

steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 20)),
        st.tuples(st.just("push_front"), st.integers(0, 20)),
        st.tuples(st.just("pop"), st.just(0)),
        st.tuples(st.just("remove"), st.integers(0, 20)),
        st.tuples(st.just("drop_below"), st.integers(0, 20)),
    ),
    max_size=60,
)


class Model:
    """A list of (offset, tag, found to be kept elsewhere)."""

    def __init__(self) -> None:
        self.items: list[tuple[int, str, bool]] = []

    def remove(self, offset: int) -> None:
        place = next((i for i, item in enumerate(self.items) if item[0] == offset), None)
        if place is not None:
            del self.items[place]

    def drop_below(self, first: int) -> int:
        """Every item up to the first that is still there; odd ones are kept elsewhere."""
        front = 0
        while front < len(self.items) and (self.items[front][2] or self.items[front][0] < first):
            front += 1
        kept = [(offset, tag, True) for offset, tag, known in self.items[:front] if known or offset % 2]
        self.items[:front] = kept
        return front - len(kept)


def drop_all_below(queue: OffsetQueue[str], first: int) -> int:
    total, more = 0, True
    while more:
        dropped, more = queue.drop_below(first, unless=lambda offset: offset % 2)
        total += dropped
    return total


@pytest.mark.parametrize("piece", [1, 3, PIECE_MESSAGES])
@given(steps)
def test_the_queue_agrees_with_a_list(piece: int, steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_module, "PIECE_MESSAGES", piece)
        queue: OffsetQueue[str] = OffsetQueue()
        model = Model()
        for step, offset in steps:
            tag, edition = f"tag {offset % 5}", queue.edition
            before = list(queue)
            if step == "push":
                queue.push(offset, tag)
                model.items.append((offset, tag, False))
            elif step == "push_front":
                queue.push_front(offset, tag)
                model.items.insert(0, (offset, tag, False))
            elif step == "pop" and model.items:
                assert queue.pop() == model.items.pop(0)[:2]
            elif step == "remove":
                queue.remove(offset)
                model.remove(offset)
            elif step == "drop_below":
                assert drop_all_below(queue, offset) == model.drop_below(offset)
            assert list(queue) == [item[:2] for item in model.items]
            assert len(queue) == len(model.items)
            assert bool(queue) == bool(model.items)
            assert (queue.edition != edition) == (list(queue) != before)


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("ab"))))
def test_parts_put_back_are_the_queue_they_came_from(items: list[tuple[int, str]]) -> None:
    queue: OffsetQueue[str] = OffsetQueue()
    for offset, tag in items:
        queue.push(offset, tag)
    again: OffsetQueue[str] = OffsetQueue()
    for part in queue.parts():
        if isinstance(part[0], int):
            again.push_run(*part)
        else:
            again.push_block(*part)
    assert list(again) == items
    assert len(again) == len(items)


def test_what_follows_each_other_is_told_together() -> None:
    queue: OffsetQueue[str] = OffsetQueue()
    for offset in range(5, 5005):
        queue.push(offset, "a")
    for _ in range(5):
        queue.pop()
    assert list(queue.parts()) == [(10, 4995, "a")]


def test_what_is_kept_elsewhere_is_not_dropped_and_not_asked_for_again() -> None:
    queue: OffsetQueue[None] = OffsetQueue()
    for offset in range(6):
        queue.push(offset, None)
    asked: list[int] = []

    def kept(offset: int) -> bool:
        asked.append(offset)
        return offset == 2

    assert queue.drop_below(4, unless=kept) == (3, False)
    assert [offset for offset, _ in queue] == [2, 4, 5]
    assert queue.drop_below(5, unless=kept) == (1, False)
    assert [offset for offset, _ in queue] == [2, 5]
    assert asked == [0, 1, 2, 3, 4]


def test_dropping_asks_only_about_what_is_dropped_one_piece_at_a_time() -> None:
    queue: OffsetQueue[None] = OffsetQueue()
    queue.push_run(0, 100 * PIECE_MESSAGES, None)
    asked: list[int] = []
    assert queue.drop_below(10, unless=asked.append) == (10, False)
    assert len(asked) == 10
    asked.clear()
    assert queue.drop_below(5 * PIECE_MESSAGES, unless=asked.append) == (PIECE_MESSAGES - 10, True)
    assert len(asked) == PIECE_MESSAGES - 10


def test_telling_a_queue_looks_at_pieces_and_not_at_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: OffsetQueue[str] = OffsetQueue()
    for number in range(50 * PIECE_MESSAGES):
        queue.push(3 * number, "ab"[number % 2])

    def walked(_: object) -> None:
        raise AssertionError("every message was looked at")

    monkeypatch.setattr(OffsetQueue, "__iter__", walked)
    parts = queue.parts()
    assert len(parts) == queue.pieces == 50
    assert sum(len(part[0]) for part in parts if isinstance(part[0], bytes)) == 50 * PIECE_MESSAGES * 8


def test_a_message_costs_nine_bytes_and_however_many_tags_come_in_turn_few_more() -> None:
    plain: OffsetQueue[int] = OffsetQueue()
    mixed: OffsetQueue[int] = OffsetQueue()
    for number in range(10 * PIECE_MESSAGES):
        plain.push(number, 0)
        mixed.push(number, number % (PIECE_TAGS + 1))
    assert plain.pieces == 10
    assert mixed.pieces <= 10 * PIECE_MESSAGES / PIECE_TAGS + 1
    assert plain._pieces[0].offsets.itemsize + len(plain._pieces[0].codes) / PIECE_MESSAGES == 9


def test_a_long_lived_queue_gives_back_what_it_no_longer_needs() -> None:
    queue: OffsetQueue[None] = OffsetQueue()
    for offset in range(10_000):
        queue.push(offset, None)
        queue.push(offset, None)
        assert queue.pop()[0] == offset // 2
    for _ in range(9_900):
        queue.pop()
    assert len(queue) == 100
    assert sum(len(piece.codes) for piece in queue._pieces) <= 2 * PIECE_MESSAGES


def test_what_comes_back_to_the_front_does_not_move_what_waits() -> None:
    queue: OffsetQueue[None] = OffsetQueue()
    queue.push_run(1000, 20 * PIECE_MESSAGES, None)
    behind = queue._pieces[0].offsets
    for offset in range(999, 936, -1):
        queue.push_front(offset, None)
    assert queue.pieces == 21
    assert queue._pieces[1].offsets is behind
    assert [queue.pop()[0] for _ in range(100)] == list(range(937, 1037))
