"""Whose turn it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling import Answer, numbers, ticket

from estream.scheduler.pace import Pace
from estream.scheduler.queue import FairQueue

FRESH = Pace()


def paced(seconds: float) -> Pace:
    pace = Pace()
    pace.note(1, 1, seconds)
    return pace


def queue_of(*tickets) -> FairQueue[Answer]:
    queue: FairQueue[Answer] = FairQueue()
    for each in tickets:
        queue.add(each)
    return queue


def test_callers_take_turns_however_many_requests_each_has():
    flood = [ticket(i, "flood") for i in range(100)]
    queue = queue_of(*flood, ticket(200, "late"), ticket(201, "late"), ticket(300, "later"))
    assert numbers(queue.order(0.0, FRESH))[:6] == [0, 200, 300, 1, 201, 2]


def test_turns_are_counted_in_tokens():
    queue = queue_of(*[ticket(i, "long", tokens=30) for i in range(3)], *[ticket(10 + i, "short", tokens=10) for i in range(9)])
    assert numbers(queue.order(0.0, FRESH)) == [0, 10, 11, 12, 1, 13, 14, 15, 2, 16, 17, 18]


def test_what_a_caller_was_given_counts_in_the_next_sweep():
    queue = queue_of(*[ticket(i, "one") for i in range(6)])
    for each in queue.order(0.0, FRESH)[:3]:
        queue.serve(each, 0.0, FRESH)
    # Who comes later is owed nothing for the time before, and owes nothing.
    queue.add(ticket(10, "two"))
    queue.add(ticket(11, "two"))
    assert numbers(queue.order(0.0, FRESH)) == [10, 3, 11, 4, 5]


def test_a_deadline_comes_first_when_it_would_be_missed_otherwise():
    pace = paced(1.0)
    soon, sooner, far = ticket(1, "a", 1.9), ticket(2, "a", 1.5), ticket(3, "a", 5.0)
    queue = queue_of(ticket(0, "b"), far, soon, sooner)
    assert numbers(queue.order(0.0, pace)) == [2, 0, 1, 3]


def test_a_deadline_that_cannot_be_kept_keeps_its_turn_and_no_more():
    pace = paced(1.0)
    queue = queue_of(ticket(0, "b"), ticket(1, "a", 0.5), ticket(2, "a", 1.5))
    assert numbers(queue.order(0.0, pace)) == [2, 0, 1]


def test_before_the_first_sweep_every_deadline_may_be_urgent():
    queue = queue_of(ticket(0, "b"), ticket(1, "a", 9.0), ticket(2, "a", 5.0))
    assert numbers(queue.order(0.0, FRESH)) == [2, 0, 1]


def test_the_urgent_and_the_others_have_every_other_place_across_sweeps_too():
    pace = paced(1.0)
    queue = queue_of(*[ticket(i, "patient") for i in range(4)], *[ticket(10 + i, "urgent", 1.5) for i in range(4)])
    served = []
    for _ in range(6):
        first = queue.order(0.0, pace)[0]
        queue.serve(first, 0.0, pace)
        served.append(first)
    assert [n >= 10 for n in numbers(served)] == [True, False] * 3


def test_counts_follow_what_waits():
    one, two = ticket(1, "a", tokens=5), ticket(2, "b", tokens=7)
    queue = queue_of(one, two)
    assert (len(queue), queue.requests, queue.tokens) == (2, 2, 12)
    queue.remove(one)
    assert (one in queue, two in queue, queue.tokens) == (False, True, 7)
    assert queue.clear() == [two]
    assert (len(queue), queue.requests, queue.tokens) == (0, 0, 0)


def test_callers_who_come_once_are_forgotten():
    queue = queue_of(ticket(0, "stays"), ticket(1, "stays"))
    for i in range(1000):
        each = ticket(i, f"caller {i}")
        queue.add(each)
        queue.serve(each, 0.0, FRESH)
        queue.add(stay := ticket(i, "stays"))
        queue.serve(stay, 0.0, FRESH)
    assert len(queue._given) < 50


WAITING = st.lists(st.tuples(st.integers(0, 3), st.none() | st.floats(0, 4), st.integers(1, 9)), max_size=30)


@given(WAITING, st.sampled_from([0.0, 1.0, 2.0]))
def test_the_order_holds_each_once_and_a_callers_patient_ones_in_their_order(waiting, now):
    tickets = [ticket(i, str(caller), deadline, tokens) for i, (caller, deadline, tokens) in enumerate(waiting)]
    order = queue_of(*tickets).order(now, paced(1.0))
    assert sorted(numbers(order)) == list(range(len(tickets)))
    for caller in "0123":
        patient = numbers([t for t in order if t.caller == caller and t.deadline is None])
        assert patient == sorted(patient)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), min_size=1, max_size=60), st.integers(1, 5))
def test_no_caller_that_waits_falls_behind_by_more_than_one_request(waiting, per_sweep):
    queue = queue_of(*[ticket(i, caller, tokens=tokens) for i, (caller, tokens) in enumerate(waiting)])
    given = dict.fromkeys("abc", 0)
    while len(queue):
        present = {each.caller for each in queue}
        for each in queue.order(0.0, FRESH)[:per_sweep]:
            queue.serve(each, 0.0, FRESH)
            given[each.caller] += each.prepared.tokens
        if {each.caller for each in queue} == present and present:
            amounts = [given[caller] for caller in present]
            assert max(amounts) - min(amounts) <= 9


@pytest.mark.parametrize("count", [0, 1])
def test_an_empty_queue_has_an_order_too(count: int):
    assert len(queue_of(*[ticket(i) for i in range(count)]).order(0.0, FRESH)) == count
