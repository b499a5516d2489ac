"""Tickets in every state: progress, cancelling, closing, tasks."""

import asyncio
import concurrent.futures
import threading
import time
from concurrent.futures import CancelledError as WithdrawnError

import pytest
from scheduling import LONG_S, PARTS, FakeModel, request, scheduling

from estream.errors import CancelledError, StateError
from estream.scheduler.ticket import Progress


def test_progress_is_told_in_every_state():
    model = FakeModel(stepped=True)
    with scheduling(model) as scheduler:
        first, second, third = (scheduler.submit([request(n)]) for n in (1, 2, 3))
        model.wait_for_part(0)
        while third not in scheduler._desk.queue and third.progress.stage == "waiting":
            time.sleep(0)
        shares = []
        for part in range(1, PARTS):
            model.step()
            model.wait_for_part(part)
            shares.append(first.progress)
        assert shares == [Progress("sweeping", part / PARTS) for part in range(1, PARTS)]
        late = scheduler.submit([request(4)])
        assert late.progress == Progress("waiting", 0.0)
        assert late.cancel()
        assert late.progress == Progress("cancelled", 0.0)
        model.step(2 * PARTS)
        concurrent.futures.wait([first, second, third], LONG_S)
        assert first.progress == Progress("done", 1.0)
        assert not first.cancel()


def test_a_waiting_request_that_is_cancelled_is_never_read():
    model = FakeModel(stepped=True)
    with scheduling(model) as scheduler:
        first = scheduler.submit([request(1)])
        model.wait_for_part(0)
        second, third = scheduler.submit([request(2)]), scheduler.submit([request(3)])
        assert second.cancel()
        assert second.cancel()
        assert concurrent.futures.wait([second], LONG_S).done == {second}
        with pytest.raises(WithdrawnError):
            second.result(0)
        model.step(2 * PARTS)
        assert (first.result(LONG_S), third.result(LONG_S)) == ([1], [3])
    assert (model.sweeps, model.cancels) == ([[1], [3]], 0)


def test_a_request_alone_in_its_sweep_stops_it_at_the_next_page():
    model = FakeModel(stepped=True)
    with scheduling(model) as scheduler:
        first = scheduler.submit([request(1)])
        model.wait_for_part(0)
        second = scheduler.submit([request(2)])
        model.step()
        model.wait_for_part(1)
        assert first.cancel()
        model.wait_for_part(0)
        model.step(PARTS)
        assert second.result(LONG_S) == [2]
    assert (model.sweeps, model.cancels) == ([[1], [2]], 1)


def test_in_a_shared_sweep_the_others_go_on_until_the_last_is_cancelled():
    model = FakeModel(stepped=True)
    with scheduling(model) as scheduler:
        opening = scheduler.submit([request(0)])
        model.wait_for_part(0)
        tickets = [scheduler.submit([request(n)]) for n in (1, 2, 3)]
        model.step(PARTS)
        opening.result(LONG_S)
        model.wait_for_part(0)
        assert tickets[0].cancel()
        assert model.cancels == 0
        model.step(PARTS)
        assert [each.result(LONG_S) for each in tickets[1:]] == [[2], [3]]
        shared = [scheduler.submit([request(n)]) for n in (4, 5)]
        model.wait_for_part(0)
        concurrent.futures.wait([each for each in shared if not each.running()], 0)
        for each in shared:
            assert each.cancel()
        assert scheduler.waiting == 0


def test_a_cancellation_before_the_sweep_can_hear_it_is_not_lost():
    asked, go_on = threading.Event(), threading.Event()

    class Slow(FakeModel):
        def read(self, requests, advance, /):
            asked.set()
            assert go_on.wait(LONG_S)
            return super().read(requests, advance)

    model = Slow()
    with scheduling(model) as scheduler:
        ticket = scheduler.submit([request(1)])
        assert asked.wait(LONG_S)
        assert ticket.cancel()
        # Before it has begun, another sweep of the model may be running, which is not ours to stop.
        assert model.cancels == 0
        go_on.set()
        assert scheduler.read([request(2)]) == [2]
    assert model.cancels == 1


def test_closing_lets_the_sweep_end_and_refuses_what_waits():
    model = FakeModel(stepped=True)
    with scheduling(model) as scheduler:
        first = scheduler.submit([request(1)])
        model.wait_for_part(0)
        second = scheduler.submit([request(2)])
        closing = threading.Thread(target=scheduler.close)
        closing.start()
        with pytest.raises(StateError, match="closed before"):
            second.result(LONG_S)
        assert not first.done()
        model.step(PARTS)
        closing.join(LONG_S)
        assert first.result(0) == [1]
        with pytest.raises(StateError, match="this scheduler is closed"):
            scheduler.submit([request(3)])
        scheduler.close()


def test_closing_can_cancel_the_sweep():
    model = FakeModel(stepped=True)
    with scheduling(model) as scheduler:
        first = scheduler.submit([request(1)])
        model.wait_for_part(0)
        scheduler.close(cancel=True)
        with pytest.raises(CancelledError):
            first.result(0)
    assert model.cancels == 1


def test_tasks_wait_without_a_thread_each_and_withdraw_what_they_no_longer_want():
    model = FakeModel(stepped=True)
    with scheduling(model) as scheduler:

        async def ask():
            first = asyncio.create_task(scheduler.aread([request(1)]))
            await asyncio.to_thread(model.wait_for_part, 0)
            ticket = scheduler.submit([request(2)])
            kept, dropped = asyncio.ensure_future(scheduler.aread([request(3)])), asyncio.ensure_future(ticket)
            while scheduler.waiting < 2:
                await asyncio.sleep(0)
            dropped.cancel()
            with pytest.raises(asyncio.CancelledError):
                await dropped
            model.step(2 * PARTS)
            return await first, await kept, ticket.cancelled()

        assert asyncio.run(asyncio.wait_for(ask(), LONG_S)) == ([1], [3], True)
    assert model.sweeps == [[1], [3]]


def test_a_task_that_is_cancelled_while_it_submits_leaves_nothing_behind():
    preparing, go_on = threading.Event(), threading.Event()

    class Slow(FakeModel):
        def prepare(self, requests):
            preparing.set()
            assert go_on.wait(LONG_S)
            return super().prepare(requests)

    model = Slow(stepped=True)
    with scheduling(model) as scheduler:

        async def ask():
            task = asyncio.create_task(scheduler.aread([request(1)]))
            await asyncio.to_thread(preparing.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()

        asyncio.run(ask())
        model.step(3 * PARTS)
        assert scheduler.read([request(2)]) == [2]
