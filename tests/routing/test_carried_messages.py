"""Carried messages: an extent without gaps, bounded by bytes and age, for readers it follows on."""

from __future__ import annotations

from sterna.mqtt.message import Message
from sterna.routing.carried import CarriedMessages
from sterna.routing.kept_filters import KeptFilters
from sterna.vocabulary.identity import Identity, Stamp


def _message(number: int, topic: bytes = b"t/1", size: int = 10, expires_at: float = 0.0) -> Message:
    message = Message(topic, b"x" * size, 1, received_at=1000.0 + number)
    if expires_at:
        message.expires_at = expires_at
    message.identity = Identity("origin", 1, number)
    return message


def _carried(count: int, *, bytes_max: int = 10**6, age_s: float = 100.0, is_new: bool = True) -> CarriedMessages:
    carried = CarriedMessages(bytes_max, age_s)
    for number in range(count):
        carried.keep(_message(number), float(number), is_new=is_new)
    return carried


def _numbers(carried: CarriedMessages, after: Stamp | None, filters: list[bytes] | None = None) -> list[int] | None:
    page = carried.page("origin", after, Stamp(1, 9999), filters, 0.0, 2000.0)
    return None if page is None else [sequence for _, sequence, _ in page.messages]


def test_a_reader_goes_on_where_it_stopped() -> None:
    carried = _carried(5)
    assert _numbers(carried, Stamp(1, 1)) == [2, 3, 4]
    assert _numbers(carried, None) == [0, 1, 2, 3, 4]
    assert _numbers(carried, Stamp(1, 4)) == []
    assert _numbers(carried, Stamp(1, 1), [b"other/#"]) == []
    assert _numbers(carried, Stamp(1, 1), [b"t/+"]) == [2, 3, 4]


def test_a_reader_that_stopped_before_the_extent_waits_for_the_origin() -> None:
    carried = _carried(10, age_s=5.0)
    carried.make_room(9.0)
    assert carried.evicted == 4
    assert carried.extent("origin") == (Stamp(1, 3), False)
    assert _numbers(carried, Stamp(1, 2)) is None
    assert _numbers(carried, None) is None
    assert _numbers(carried, Stamp(1, 3)) == [4, 5, 6, 7, 8, 9]


def test_bytes_are_bounded_and_the_oldest_go_first() -> None:
    carried = _carried(1000, bytes_max=64 * 1024)
    assert carried.bytes <= 64 * 1024
    assert carried.evicted + carried.messages == 1000
    assert (_numbers(carried, Stamp(1, 990)) or [])[-1] == 999


def test_one_who_came_in_the_middle_has_nothing_for_those_who_never_read() -> None:
    carried = CarriedMessages(10**6, 100.0)
    carried.keep(_message(7), 0.0, is_new=False)
    assert _numbers(carried, None) is None
    assert _numbers(carried, Stamp(1, 6)) == [7]
    assert _numbers(carried, Stamp(1, 5)) is None


def test_a_message_that_has_expired_is_not_handed_on() -> None:
    carried = CarriedMessages(10**6, 100.0)
    carried.keep(_message(0, expires_at=1500.0), 0.0, is_new=True)
    carried.keep(_message(1), 0.0, is_new=True)
    assert _numbers(carried, None) == [1]


def test_pages_are_bounded_and_follow_on_each_other() -> None:
    carried = CarriedMessages(10**8, 100.0)
    for number in range(40):
        carried.keep(_message(number, size=10_000), 0.0, is_new=True)
    after, found = None, []
    for _ in range(40):
        page = carried.page("origin", after, Stamp(1, 39), None, 0.0, 2000.0)
        assert page is not None
        found += [sequence for _, sequence, _ in page.messages]
        after = page.reached
        if page.complete:
            break
    assert found == list(range(40))


def test_an_origin_of_which_something_was_missed_begins_anew() -> None:
    carried = _carried(5)
    carried.forget("origin")
    assert (carried.bytes, carried.messages, carried.extent("origin")) == (0, 0, None)
    assert _numbers(carried, Stamp(1, 1)) is None


def test_clocks_of_other_nodes_do_not_decide_who_is_owed_a_message() -> None:
    carried = CarriedMessages(10**6, 100.0)
    carried.keep(_message(0), 20.0, is_new=True)  # it came at 20 by the clock here, whenever it was published
    for joined_at, found in ((10.0, [0]), (24.0, [0]), (26.0, [])):
        page = carried.page("origin", None, Stamp(1, 0), None, joined_at, 2000.0)
        assert page is not None
        assert [sequence for _, sequence, _ in page.messages] == found


def test_a_filter_is_answered_for_from_where_it_was_kept_to_where_it_no_longer_was() -> None:
    kept = KeptFilters()
    last = Stamp(1, 50)
    assert kept.begin([b"t/#"], {"origin": Stamp(1, 10)})
    assert not kept.begin([b"t/#"], {"origin": Stamp(1, 15)})  # it is kept already
    assert kept.reached("origin", Stamp(1, 10), last, [b"t/#", b"$SYS/x"]) == last
    assert kept.reached("origin", Stamp(1, 9), last, [b"t/#"]) is None
    assert kept.reached("origin", None, last, [b"t/#"]) is None
    assert kept.reached("unread", None, last, [b"t/#"]) == last
    assert kept.reached("origin", Stamp(1, 10), last, [b"t/#", b"u"]) is None
    assert kept.reached("origin", Stamp(1, 10), last, [b"t/1", b"t/+"]) == last  # `t/#` covers them
    kept.end(b"t/#", {"origin": Stamp(1, 20)})
    assert kept.reached("origin", Stamp(1, 12), last, [b"t/#"]) == Stamp(1, 20)


def test_a_filter_that_is_kept_again_has_a_gap_if_something_was_read_in_between() -> None:
    kept = KeptFilters()
    kept.begin([b"t"], {"away": Stamp(1, 10), "here": Stamp(1, 10)})
    kept.end(b"t", {"away": Stamp(1, 20), "here": Stamp(1, 20)})
    assert kept.begin([b"t"], {"away": Stamp(1, 20), "here": Stamp(1, 30), "new": Stamp(1, 5)})
    last = Stamp(1, 40)
    assert kept.reached("away", Stamp(1, 10), last, [b"t"]) == last
    assert kept.reached("here", Stamp(1, 29), last, [b"t"]) is None
    assert kept.reached("here", Stamp(1, 30), last, [b"t"]) == last
    assert kept.reached("new", Stamp(1, 4), last, [b"t"]) is None


def test_everything_does_not_cover_topics_that_begin_with_a_dollar() -> None:
    kept = KeptFilters()
    kept.begin([b"#"], {})
    assert kept.reached("origin", None, Stamp(1, 1), [b"+/#", b"a/b"]) == Stamp(1, 1)
    assert kept.reached("origin", None, Stamp(1, 1), [b"$own/x"]) is None
