"""The queue of journal offsets behaves like a plain list of pairs, whatever is done to it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sterna.broker.queue import OffsetQueue

steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 20)),
        st.tuples(st.just("push_front"), st.integers(0, 20)),
        st.tuples(st.just("pop"), st.just(0)),
        st.tuples(st.just("remove"), st.integers(0, 20)),
        st.tuples(st.just("drop_below"), st.integers(0, 20)),
    ),
    max_size=40,
)


@given(steps)
def test_the_queue_agrees_with_a_list(steps: list[tuple[str, int]]) -> None:
    queue: OffsetQueue[str] = OffsetQueue()
    model: list[tuple[int, str]] = []
    for number, (step, offset) in enumerate(steps):
        tag = f"tag {number}"
        if step == "push":
            queue.push(offset, tag)
            model.append((offset, tag))
        elif step == "push_front":
            queue.push_front(offset, tag)
            model.insert(0, (offset, tag))
        elif step == "pop" and model:
            assert queue.pop() == model.pop(0)
        elif step == "remove":
            queue.remove(offset)
            place = next((i for i, item in enumerate(model) if item[0] == offset), None)
            if place is not None:
                del model[place]
        elif step == "drop_below":
            kept = [item for item in model if item[0] >= offset]
            assert queue.drop_below(offset) == len(model) - len(kept)
            model = kept
        assert list(queue) == model
        assert len(queue) == len(model)
        assert bool(queue) == bool(model)


def test_what_is_kept_elsewhere_is_not_dropped() -> None:
    queue: OffsetQueue[None] = OffsetQueue()
    for offset in range(6):
        queue.push(offset, None)
    assert queue.drop_below(4, unless=lambda offset: offset == 2) == 3
    assert [offset for offset, _ in queue] == [2, 4, 5]


def test_a_long_lived_queue_gives_back_what_it_no_longer_needs() -> None:
    queue: OffsetQueue[None] = OffsetQueue()
    for offset in range(10_000):
        queue.push(offset, None)
        queue.push(offset, None)
        assert queue.pop()[0] == offset // 2
    for _ in range(9_900):
        queue.pop()
    assert len(queue) == 100
    assert len(queue._offsets) < 2_100


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("ab"))))
def test_runs_put_back_are_the_queue_they_came_from(items: list[tuple[int, str]]) -> None:
    queue: OffsetQueue[str] = OffsetQueue()
    for offset, tag in items:
        queue.push(offset, tag)
    again: OffsetQueue[str] = OffsetQueue()
    for first, count, tag in queue.runs():
        again.push_run(first, count, tag)
    assert list(again) == items


def test_what_follows_each_other_is_told_together() -> None:
    queue: OffsetQueue[str] = OffsetQueue()
    queue.push_run(5, 1000, "a")
    queue.push(1005, "b")
    assert list(queue.runs()) == [(5, 1000, "a"), (1005, 1, "b")]
