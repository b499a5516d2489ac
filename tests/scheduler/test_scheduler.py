"""The scheduler's thread, over a model that goes on when a test says so."""

import concurrent.futures
import os
import threading

import pytest
from scheduling import LONG_S, PARTS, FakeModel, request, scheduling

from estream.engine.wanted import Request
from estream.errors import BudgetError, NumericError, OptionError, PromptError, ReadError, StateError
from estream.scheduler.pace import Pace
from estream.scheduler.scheduler import Scheduler


def test_requests_of_one_call_share_a_sweep_and_come_back_in_order():
    model = FakeModel()
    with scheduling(model) as scheduler:
        assert scheduler.read([request(5, 2), request(7), request(9, 3)]) == [6, 7, 11]
    assert model.sweeps == [[5, 7, 9]]


def test_while_a_sweep_runs_the_next_batch_forms():
    model = FakeModel(stepped=True)
    with scheduling(model) as scheduler:
        first = scheduler.submit([request(1)])
        model.wait_for_part(0)
        others = [scheduler.submit([request(n)]) for n in (2, 3, 4)]
        assert (scheduler.waiting, first.running(), others[0].running()) == (3, True, False)
        model.step(2 * PARTS)
        assert [each.result(LONG_S) for each in (first, *others)] == [[1], [2], [3], [4]]
    assert model.sweeps == [[1], [2, 3, 4]]


def test_callers_share_a_sweep_that_is_too_small_for_all():
    model = FakeModel(stepped=True)
    with scheduling(model, sweep_tokens=3) as scheduler:
        first = scheduler.submit([request(1)])
        model.wait_for_part(0)
        flood = [scheduler.submit([request(n)], caller="flood") for n in (10, 11, 12, 13)]
        late = scheduler.submit([request(20)], caller="late")
        model.step(3 * PARTS)
        concurrent.futures.wait([first, *flood, late], LONG_S)
    assert model.sweeps == [[1], [10, 20, 11], [12, 13]]


def test_those_who_come_together_share_the_first_sweep(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Pace, "gather_s", LONG_S)
    monkeypatch.setattr(Pace, "crowd", 2)
    model = FakeModel()
    with scheduling(model) as scheduler:
        tickets = [scheduler.submit([request(n)]) for n in (1, 2)]
        assert [each.result(LONG_S) for each in tickets] == [[1], [2]]
    assert model.sweeps == [[1, 2]]


def test_one_that_comes_alone_does_not_wait_for_ever():
    model = FakeModel()
    with scheduling(model) as scheduler:
        assert [scheduler.read([request(n)]) for n in (1, 2, 3)] == [[1], [2], [3]]


def test_a_failing_sweep_fails_its_own_requests_alone():
    model = FakeModel(stepped=True)
    model.errors = [None, ReadError("a page is damaged"), None]
    with scheduling(model) as scheduler:
        first = scheduler.submit([request(1)])
        model.wait_for_part(0)
        failing = [scheduler.submit([request(n)]) for n in (2, 3)]
        model.step(PARTS)
        model.wait_for_part(0)
        after = scheduler.submit([request(4)])
        model.step(2 * PARTS)
        assert (first.result(LONG_S), after.result(LONG_S)) == ([1], [4])
        errors = [each.exception(LONG_S) for each in failing]
        assert [str(each) for each in errors] == ["a page is damaged"] * 2
        assert errors[0] is not errors[1]
    assert model.sweeps == [[1], [2, 3], [4]]


def test_numbers_that_are_none_fail_the_request_that_has_them():
    class Strange(FakeModel):
        def read(self, requests, advance, /):
            values = super().read(requests, advance)
            if any(each.prompt[0] == 3 for each in requests):
                raise NumericError("no number")
            return values

    model = Strange(stepped=True)
    with scheduling(model) as scheduler:
        first = scheduler.submit([request(1)])
        model.wait_for_part(0)
        tickets = [scheduler.submit([request(n)]) for n in (2, 3, 4)]
        model.step(5 * PARTS)
        assert first.result(LONG_S) == [1]
        assert (tickets[0].result(LONG_S), tickets[2].result(LONG_S)) == ([2], [4])
        with pytest.raises(NumericError):
            tickets[1].result(LONG_S)
    assert model.sweeps == [[1], [2, 3, 4], [2], [3], [4]]


def test_an_error_outside_of_a_sweep_reaches_those_who_wait_and_ends_nothing():
    class Broken(FakeModel):
        broken = True

        def room_for(self, requests):
            if self.broken:
                raise RuntimeError("broken")
            return super().room_for(requests)

    model = Broken()
    with scheduling(model) as scheduler:
        # Of one alone nothing is asked.
        tickets = [scheduler.submit([request(n)], caller=str(n)) for n in range(2)]
        found = {str(each.exception(LONG_S)) for each in tickets}
        model.broken = False
        assert scheduler.read([request(3)]) == [3]
    assert found <= {"broken", "None"}


def test_what_no_sweep_can_hold_is_refused_at_once_and_the_rest_waits_for_room():
    model = FakeModel(room=10, stepped=True)
    with scheduling(model) as scheduler:
        with pytest.raises(BudgetError):
            scheduler.submit([request(1, 11)])
        with pytest.raises(PromptError):
            scheduler.submit([request(1), Request([])])
        first = scheduler.submit([request(1, 6)])
        model.wait_for_part(0)
        others = [scheduler.submit([request(n, 6)]) for n in (2, 3)]
        model.step(3 * PARTS)
        assert [each.result(LONG_S) for each in (first, *others)] == [[6], [7], [8]]
    assert model.sweeps == [[1], [2], [3]]


def test_a_callback_may_submit_and_close():
    model = FakeModel()
    with scheduling(model) as scheduler:
        following, closed = [], threading.Event()

        def go_on(done):
            following.append(scheduler.submit([request(2)]))
            following[0].add_done_callback(close)

        def close(done):
            scheduler.close()
            closed.set()

        # A callback of a ticket that is done already runs here, which is as good.
        scheduler.submit([request(1)]).add_done_callback(go_on)
        assert closed.wait(LONG_S)
        assert following[0].result(0) == [2]


def test_a_forked_child_is_told():
    model = FakeModel(stepped=True)
    with scheduling(model) as scheduler:
        ticket = scheduler.submit([request(1)])
        model.wait_for_part(0)
        uses = [lambda: scheduler.submit([request(2)]), lambda: scheduler.waiting, ticket.result, ticket.cancel]
        for use in uses:
            child = os.fork()
            if not child:
                scheduler.close()
                try:
                    use()
                except StateError as error:
                    os._exit(0 if "fork" in str(error) else 1)
                os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
        model.step(PARTS)
        assert ticket.result(LONG_S) == [1]


@pytest.mark.parametrize("name", ["max_queue", "sweep_tokens"])
def test_bounds_are_at_least_one(name: str):
    with pytest.raises(OptionError, match=f"{name} must be at least 1, not 0"):
        Scheduler(FakeModel(), **{name: 0})
