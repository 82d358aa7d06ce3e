"""Orders: carried out once, by the worker they are for, while they are fresh, in the highest term."""

from __future__ import annotations

from sterna.adaptation.orders import Authority, OrderBook, OrderDesk, RefusedOrder
from sterna.adaptation.picture import ReportStamp
from sterna.adaptation.words import MoveGateway, Order, OrderAnswer, OrderState, StartNode, StopNode


def order(number: int = 1, term: int = 1, counter: int = 1, boot: int = 7, valid_s: float = 10.0) -> Order:
    return Order(number, term, boot, counter, valid_s, StartNode())


def desk() -> OrderDesk:
    made = OrderDesk(boot=7)
    made.reported(1, now=100.0)
    return made


def test_an_order_is_carried_out_once_and_answered_each_time() -> None:
    worker = desk()
    assert worker.came(order(), "boss", 101.0) is None
    assert worker.came(order(), "boss", 102.0) == OrderAnswer(1, 1, OrderState.UNDER_WAY)
    worker.answer(order(), OrderState.DONE)
    assert worker.came(order(), "boss", 500.0) == OrderAnswer(1, 1, OrderState.DONE)
    assert not worker.refusals


def test_orders_of_an_old_term_another_boot_an_unknown_report_or_too_late_are_refused_by_reason() -> None:
    worker = desk()
    assert worker.came(order(1, term=3), "boss", 101.0) is None
    for late, expected in (
        (order(2, term=2), RefusedOrder.OLD_TERM),
        (order(3, term=3, boot=6), RefusedOrder.OTHER_BOOT),
        (order(4, term=3, counter=2), RefusedOrder.UNKNOWN_REPORT),
        (order(5, term=3, valid_s=0.5), RefusedOrder.EXPIRED),
    ):
        answer = worker.came(late, "boss", 101.0)
        assert answer is not None
        assert (answer.state, answer.reason) == (OrderState.REFUSED, expected.value)
    assert worker.refusals == dict.fromkeys(list(RefusedOrder), 1)


def test_of_two_leaders_with_one_term_the_last_by_name_counts() -> None:
    worker = desk()
    assert worker.came(order(1), "b", 101.0) is None
    answer = worker.came(order(2), "a", 101.0)
    assert answer is not None
    assert answer.reason == "old-term"
    assert worker.came(order(3), "c", 101.0) is None
    assert worker.highest == Authority(1, "c")


def test_a_restarted_worker_remembers_the_highest_term() -> None:
    worker = OrderDesk(boot=8, highest=Authority(5, "boss"))
    worker.reported(1, 100.0)
    answer = worker.came(order(1, term=4, boot=8), "boss", 100.0)
    assert answer is not None
    assert answer.reason == "old-term"


def book() -> OrderBook:
    return OrderBook(retry_s=1.0, valid_s=5.0, pause_s=4.0, work_s=60.0)


def test_an_order_is_repeated_until_it_is_answered() -> None:
    orders = book()
    given = orders.give("w", "w", StartNode(), ReportStamp(7, 1), 2, now=0.0)
    assert (given.boot, given.counter, given.term) == (7, 1, 2)
    assert orders.due(0.5) == []
    assert orders.due(1.0) == [("w", given)]
    assert orders.due(1.5) == []
    orders.answered("w", OrderAnswer(given.id, 2, OrderState.UNDER_WAY), ReportStamp(7, 5), 1.6)
    assert orders.due(3.0) == []
    assert orders.waits("w", 3.0) == "an order is under way"
    orders.reported("w", ReportStamp(7, 4), 3.0)
    assert len(orders) == 1
    orders.reported("w", ReportStamp(7, 6), 3.1)
    assert len(orders) == 0
    assert orders.waits("w", 3.1) == ""


def test_an_order_that_nobody_answers_is_given_up_and_the_next_one_waits_longer_each_time() -> None:
    orders = book()
    pauses = []
    now = 0.0
    for _ in range(3):
        orders.give("w", "w", StopNode(), ReportStamp(7, 1), 2, now)
        now += 5.1
        assert orders.due(now) == []
        start = now
        while orders.waits("w", now):
            now += 0.5
        pauses.append(now - start)
    assert pauses == [4.0, 8.0, 16.0]
    assert orders.outcomes == {("StopNode", "expired"): 3}


def test_a_refusal_is_counted_by_its_reason_and_a_stranger_answers_for_nobody() -> None:
    orders = book()
    given = orders.give("g", "w", MoveGateway("g", "x"), ReportStamp(7, 1), 2, 0.0)
    orders.answered("other", OrderAnswer(given.id, 2, OrderState.DONE), ReportStamp(1, 1), 0.1)
    orders.answered("w", OrderAnswer(given.id, 1, OrderState.DONE), ReportStamp(7, 2), 0.1)
    assert len(orders) == 1
    orders.answered(
        "w", OrderAnswer(given.id, 2, OrderState.REFUSED, "node x is being emptied"), ReportStamp(7, 2), 0.2
    )
    assert len(orders) == 0
    assert orders.refusals == {"node x is being emptied": 1}
    assert orders.waits("g", 1.0) != ""


def test_a_move_is_done_when_the_worker_says_so_not_when_it_reports() -> None:
    orders = book()
    given = orders.give("g", "w", MoveGateway("g", "x"), ReportStamp(7, 1), 2, 0.0)
    orders.answered("w", OrderAnswer(given.id, 2, OrderState.UNDER_WAY), ReportStamp(7, 2), 0.1)
    orders.reported("w", ReportStamp(7, 9), 1.0)
    assert len(orders) == 1
    orders.answered("w", OrderAnswer(given.id, 2, OrderState.DONE), ReportStamp(7, 10), 20.0)
    assert orders.outcomes == {("MoveGateway", "done"): 1}
