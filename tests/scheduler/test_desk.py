"""Whatever comes, is swept, fails and is cancelled, each ticket ends once, with its own answer."""

from concurrent.futures import CancelledError as WithdrawnError

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from scheduling import Answer, FakeModel, ticket

from estream.errors import NumericError, QueueFullError, ReadError, StateError
from estream.scheduler.desk import QUEUED_TOKENS, Desk, deliver, fail_all
from estream.scheduler.filling import Filler
from estream.scheduler.ticket import Ticket

MAX_QUEUE = 5


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Desks(RuleBasedStateMachine):
    """One thread plays all: callers, the sweeping thread, and time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.desk: Desk[Answer] = Desk(MAX_QUEUE, self.clock)
        self.numbered: dict[Ticket[Answer], int] = {}
        self.cancelled: set[Ticket[Answer]] = set()
        self.failed: dict[Ticket[Answer], BaseException] = {}
        self.answered: set[Ticket[Answer]] = set()
        self.stopped = False

    @rule(caller=st.sampled_from("abc"), deadline=st.none() | st.floats(0, 5), tokens=st.integers(1, 20))
    def submit(self, caller: str, deadline: float | None, tokens: int) -> None:
        number = len(self.numbered)
        made = ticket(number, caller, None if deadline is None else self.clock.now + deadline, tokens)
        if self.desk.closed:
            with pytest.raises(StateError):
                self.desk.add(made)
        elif self.desk.queue.requests >= MAX_QUEUE:
            with pytest.raises(QueueFullError) as refused:
                self.desk.add(made)
            assert refused.value.wait_s >= 0
        else:
            self.desk.add(made)
            self.numbered[made] = number

    @precondition(lambda self: self.desk.sweeping is None and len(self.desk.queue))
    @rule(bound=st.integers(1, 40))
    def begin(self, bound: int) -> None:
        order = self.desk.order()
        begun = self.desk.begin(Filler(FakeModel(), bound).fill(order, self.clock.now))
        assert begun is not None
        self.stopped = False

    @precondition(lambda self: self.desk.sweeping is not None)
    @rule(part=st.integers(0, 4))
    def advance(self, part: int) -> None:
        if self.desk.advance(part, 4):
            assert not self.desk.sweeping.live or self.desk.closed
            self.stopped = True
        for each in self.desk.sweeping.live:
            assert each.progress.share == part / 4

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        open_ones = [t for t in self.numbered if not t.done()]
        if not open_ones:
            return
        chosen = data.draw(st.sampled_from(open_ones))
        assert chosen.cancel()
        self.stopped |= self.desk.withdraw(chosen)
        self.cancelled.add(chosen)

    @precondition(lambda self: self.desk.sweeping is not None)
    @rule(error=st.sampled_from([None, None, ReadError("damaged"), NumericError("no number")]))
    def end(self, error: BaseException | None) -> None:
        swept = self.desk.sweeping.tickets
        live = set(self.desk.sweeping.live)
        again = isinstance(error, NumericError) and len(swept) > 1 and not self.desk.closed
        tickets = self.desk.end(error)
        assert set(tickets) == (set() if again else live)
        if error is None:
            deliver(tickets, swept, [Answer(self.numbered[t]) for t in swept])
            self.answered |= live
        else:
            fail_all(tickets, error)
            self.failed |= dict.fromkeys(tickets, error)

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @precondition(lambda self: len(self.numbered) > 6)
    @rule(cancel=st.booleans())
    def close(self, cancel: bool) -> None:
        error = StateError("closed")
        left, must_cancel = self.desk.close(cancel=cancel)
        self.stopped |= must_cancel
        fail_all(left, error)
        self.failed |= dict.fromkeys(left, error)

    @invariant()
    def each_is_in_one_place(self) -> None:
        sweeping = self.desk.sweeping
        live = sweeping.live if sweeping else set()
        for each in self.numbered:
            places = [each in self.desk.queue, each in live, each in self.cancelled, each in self.failed, each in self.answered]
            assert sum(places) == 1
            assert each.done() == any(places[2:])
        assert self.desk.queue.requests == len(self.desk.queue) <= MAX_QUEUE + len(self.numbered)
        if sweeping and not sweeping.live and sweeping.cancellable:
            assert self.stopped

    @invariant()
    def each_has_its_own_answer(self) -> None:
        for each in self.answered:
            assert each.result(0) == [self.numbered[each]]
        for each, error in self.failed.items():
            assert type(each.exception(0)) is type(error)
        for each in self.cancelled:
            with pytest.raises(WithdrawnError):
                each.result(0)


TestDesks = Desks.TestCase
TestDesks.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_what_is_larger_than_the_queue_waits_in_it_alone():
    desk: Desk[Answer] = Desk(2, Clock())
    desk.add(ticket(0, tokens=QUEUED_TOKENS + 1))
    with pytest.raises(QueueFullError, match=r"1 requests with 1048577 tokens wait.*try again in about 1\.0 s"):
        desk.add(ticket(1))


def test_the_wait_that_is_told_counts_what_is_swept_and_what_waits():
    clock = Clock()
    desk: Desk[Answer] = Desk(1, clock)
    for _ in range(2):
        desk.add(ticket(0, tokens=100))
        desk.begin(desk.order())
        if clock.now == 0.0:
            clock.now = 2.0
            desk.end(None)
    desk.add(ticket(1, tokens=50))
    with pytest.raises(QueueFullError) as refused:
        desk.add(ticket(2))
    assert refused.value.wait_s == pytest.approx(3.0)


def test_whose_numbers_are_none_is_found_by_reading_each_alone():
    desk: Desk[Answer] = Desk(9, Clock())
    tickets = [ticket(i) for i in range(3)]
    for each in tickets:
        desk.add(each)
    desk.begin(desk.order())
    assert desk.end(NumericError("no number")) == []
    assert all(each.alone and each.progress.stage == "waiting" for each in tickets)
    desk.begin(desk.order()[:1])
    assert desk.end(NumericError("no number")) == tickets[:1]


def test_each_gets_its_own_copy_of_an_error():
    tickets = [ticket(0), ticket(1)]
    fail_all(tickets, QueueFullError("full", 7.0))
    one, other = (each.exception(0) for each in tickets)
    assert one is not other
    assert (str(one), one.wait_s) == (str(other), other.wait_s) == ("full", 7.0)
