"""Orders of a leader to workers: given once, repeated until answered, carried out once, and never late.

An order is made on a report of the worker and names it.  The worker takes it for `valid_s` after that report, by its
own clock, so an order that was long under way does nothing and no clocks need to agree.  Orders of a term before the
highest one are refused: a leader that was cut off and comes back gives no orders that count.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sterna.adaptation.picture import ReportStamp
from sterna.adaptation.words import TEXT_MAX, MoveGateway, Order, OrderAnswer, OrderState, Task

ANSWERS_KEPT = 256
"""Orders whose answers a worker remembers, so that a repeated one is answered and not carried out again."""
REPORTS_KEPT = 1024
DOUBLINGS_MAX = 10


class Authority(NamedTuple):
    """Of two leaders the one with the higher term counts; of one term, the one whose name comes last."""

    term: int
    leader: str


NOBODY = Authority(0, "")


class RefusedOrder(StrEnum):
    OLD_TERM = "old-term"
    EXPIRED = "expired"
    OTHER_BOOT = "other-boot"
    """It was made on a report from before the worker's last start."""
    UNKNOWN_REPORT = "unknown-report"


class OrderDesk:
    """A worker's side: which orders are to be carried out."""

    def __init__(self, boot: int, highest: Authority = NOBODY) -> None:
        self._boot = boot
        self.highest = highest
        self._sent: deque[tuple[int, float]] = deque(maxlen=REPORTS_KEPT)
        self._answers: dict[tuple[int, int], OrderAnswer] = {}
        self.refusals: Counter[RefusedOrder] = Counter()

    def reported(self, counter: int, now: float) -> None:
        """A report with this number went out."""
        self._sent.append((counter, now))

    def came(self, order: Order, leader: str, now: float) -> OrderAnswer | None:
        """None: it is to be carried out, and `answer` said afterwards.  Else the answer."""
        key = (order.term, order.id)
        if key in self._answers:
            return self._answers[key]
        refusal = self._refusal(order, leader, now)
        if refusal is not None:
            self.refusals[refusal] += 1
            return OrderAnswer(order.id, order.term, OrderState.REFUSED, refusal.value)
        self.highest = Authority(order.term, leader)
        self.answer(order, OrderState.UNDER_WAY)
        return None

    def answer(self, order: Order, state: OrderState, reason: str = "") -> OrderAnswer:
        key = (order.term, order.id)
        answer = self._answers[key] = OrderAnswer(order.id, order.term, state, reason[:TEXT_MAX])
        if len(self._answers) > ANSWERS_KEPT:
            del self._answers[next(iter(self._answers))]
        return answer

    def _refusal(self, order: Order, leader: str, now: float) -> RefusedOrder | None:
        if Authority(order.term, leader) < self.highest:
            return RefusedOrder.OLD_TERM
        if order.boot != self._boot:
            return RefusedOrder.OTHER_BOOT
        sent = next((at for counter, at in self._sent if counter == order.counter), None)
        if sent is None:
            return RefusedOrder.UNKNOWN_REPORT
        return RefusedOrder.EXPIRED if now - sent > order.valid_s else None


@dataclass(slots=True)
class _GivenOrder:
    worker: str
    order: Order
    at: float
    said_at: float
    answered: ReportStamp | None = None
    """The letter that answered it: its effect is in later reports."""


class OrderBook:
    """A leader's side: orders under way, one for each worker and gateway."""

    def __init__(self, *, retry_s: float, valid_s: float, pause_s: float, work_s: float) -> None:
        """`work_s`: so long the worker may take, once it has answered.  `pause_s`: an order that failed is not given
        again before this, doubled each time."""
        self._work_s = work_s
        self._retry_s = retry_s
        self._valid_s = valid_s
        self._pause_s = pause_s
        self._number = 0
        self._given: dict[str, _GivenOrder] = {}
        self._failures: dict[str, tuple[int, float]] = {}
        #: Orders that are over, by kind and outcome.
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.refusals: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._given)

    def waits(self, subject: str, now: float) -> str:
        """Why nothing is ordered about this worker or gateway just now; empty: something may be."""
        if subject in self._given:
            return "an order is under way"
        failures, until = self._failures.get(subject, (0, 0.0))
        return f"{failures} orders failed; the next one waits" if now < until else ""

    def give(self, subject: str, worker: str, what: Task, made_on: ReportStamp, term: int, now: float) -> Order:
        """`subject`: whom it is about; `worker`: who is to do it."""
        self._number += 1
        order = Order(self._number, term, made_on.boot, made_on.counter, self._valid_s, what)
        self._given[subject] = _GivenOrder(worker, order, now, now)
        return order

    def due(self, now: float) -> list[tuple[str, Order]]:
        """Orders to be said again, with the workers they are for.  Those that nobody answered in time are given up."""
        again = []
        for subject, given in list(self._given.items()):
            if now - given.at > (self._valid_s if given.answered is None else self._work_s):
                self._close(subject, "expired" if given.answered is None else "unfinished", now, failed=True)
            elif given.answered is None and now - given.said_at >= self._retry_s:
                given.said_at = now
                again.append((given.worker, given.order))
        return again

    def answered(self, worker: str, answer: OrderAnswer, stamp: ReportStamp, now: float) -> None:
        found = next(
            (
                (subject, given)
                for subject, given in self._given.items()
                if given.worker == worker and (given.order.id, given.order.term) == (answer.id, answer.term)
            ),
            None,
        )
        if found is None:
            return
        subject, given = found
        if answer.state in (OrderState.REFUSED, OrderState.FAILED):
            self.refusals[answer.reason[:80]] += 1
            self._close(subject, answer.state, now, failed=True)
        elif answer.state == OrderState.DONE:
            given.answered = stamp
            self._close(subject, answer.state, now, failed=False)
        else:
            given.answered = stamp

    def reported(self, worker: str, stamp: ReportStamp, now: float) -> None:
        """A report that is later than the answer shows what came of the order."""
        for subject, given in list(self._given.items()):
            is_shown = given.answered is not None and stamp > given.answered
            if given.worker == worker and is_shown and not isinstance(given.order.what, MoveGateway):
                self._close(subject, OrderState.UNDER_WAY, now, failed=False)

    def forget(self) -> None:
        """No longer the leader: nothing is repeated, and nothing is waited for."""
        self._given.clear()
        self._failures.clear()

    def view(self) -> list[Mapping[str, object]]:
        return [
            {"subject": subject, "worker": one.worker, "order": type(one.order.what).__name__, "id": one.order.id}
            for subject, one in self._given.items()
        ]

    def _close(self, subject: str, outcome: str, now: float, *, failed: bool) -> None:
        given = self._given.pop(subject)
        self.outcomes[type(given.order.what).__name__, outcome] += 1
        if not failed:
            self._failures.pop(subject, None)
            return
        failures = self._failures.get(subject, (0, 0.0))[0] + 1
        pause = self._pause_s * 2.0 ** min(failures - 1, DOUBLINGS_MAX)
        self._failures[subject] = (failures, now + pause)
