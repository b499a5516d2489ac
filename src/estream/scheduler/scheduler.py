"""Many callers, one model: one thread that fills sweeps from what waits."""

import asyncio
import atexit
import math
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Hashable, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from estream.engine.memory import PLANNED_TOKENS
from estream.engine.wanted import Request
from estream.errors import OptionError, StateError
from estream.scheduler.desk import Desk, Sweeping, deliver, fail_all
from estream.scheduler.filling import Filler
from estream.scheduler.port import Read, Reader
from estream.scheduler.ticket import Ticket

R = TypeVar("R", bound=Read)

_SCHEDULERS: "weakref.WeakSet[Scheduler[Any]]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A thread in native code must not meet the interpreter's end."""
    for scheduler in list(_SCHEDULERS):
        scheduler.close(cancel=True)


class Scheduler(Generic[R]):
    """Fills sweeps of one model from the requests of any number of callers, on threads and in asyncio. Each request gets the
    bits that it would get alone. Close it before the model, or use it in a ``with`` block.
    """

    def __init__(
        self,
        model: Reader[R],
        max_queue: int = 1024,
        sweep_tokens: int = PLANNED_TOKENS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the thread.

        Args:
            model: a loaded model. Others may go on to use it beside.
            max_queue: the most requests that wait.
            sweep_tokens: where the machine was not measured for the package, sweeps take up to so many tokens.
            clock: gives seconds.

        Raises:
            OptionError: a bound is below 1.

        """
        for name, bound in (("max_queue", max_queue), ("sweep_tokens", sweep_tokens)):
            if bound < 1:
                raise OptionError(f"{name} must be at least 1, not {bound}")
        self._model, self._clock = model, clock
        self._desk: Desk[R] = Desk(max_queue, clock)
        self._filler: Filler[R] = Filler(model, sweep_tokens)
        self._changed = threading.Condition()
        self._pid = os.getpid()
        self._worker = threading.Thread(target=self._work, name="estream-scheduler", daemon=True)
        self._worker.start()
        _SCHEDULERS.add(self)

    def submit(self, requests: Sequence[Request], *, deadline: float | None = None, caller: Hashable = None) -> Ticket[R]:
        """Hand in requests that are to share one sweep. Texts are tokenized here, on the caller's thread.

        Args:
            requests: what :meth:`Model.read` takes.
            deadline: in so many seconds the answer is wanted. It orders sweeps; a late answer comes all the same.
            caller: whose turn this takes; None for the calling thread's.

        Raises:
            PromptError: a request cannot be read.
            BudgetError: no sweep within the memory budget can hold them.
            QueueFullError: too many wait; its ``wait_s`` says how long that may last.
            StateError: the scheduler or its model is closed, or this process was forked from the one that made it.

        """
        self._check_process()
        prepared = self._model.prepare(requests)
        until = None if deadline is None else self._clock() + deadline
        ticket: Ticket[R] = Ticket(prepared, _key(caller), until, self._withdraw)
        with self._changed:
            self._desk.add(ticket)
            self._changed.notify_all()
        return ticket

    def read(self, requests: Sequence[Request], *, deadline: float | None = None, caller: Hashable = None) -> list[R]:
        """Submit and wait for the readings. An interrupt withdraws the requests."""
        ticket = self.submit(requests, deadline=deadline, caller=caller)
        try:
            return ticket.result()
        finally:
            ticket.cancel()

    async def aread(self, requests: Sequence[Request], *, deadline: float | None = None, caller: Hashable = None) -> list[R]:
        """As :meth:`read`, from asyncio; cancelling the task withdraws the requests. Texts are tokenized on another thread."""
        call = asyncio.to_thread(self.submit, requests, deadline=deadline, caller=_key(caller))
        submitting = asyncio.ensure_future(call)
        try:
            ticket = await asyncio.shield(submitting)
        except asyncio.CancelledError:
            submitting.add_done_callback(_withdraw_when_submitted)
            raise
        return await ticket

    @property
    def waiting(self) -> int:
        """Requests that wait for a sweep."""
        self._check_process()
        with self._changed:
            return self._desk.queue.requests

    def close(self, *, cancel: bool = False) -> None:
        """Refuse what waits with StateError, and end when the sweep that runs has ended, or with ``cancel`` at its next page
        (its callers get CancelledError). Closing twice, or in a forked child, is harmless.
        """
        if os.getpid() != self._pid:
            return
        with self._changed:
            left, must_cancel = self._desk.close(cancel=cancel)
            if must_cancel:
                self._model.cancel()
            self._changed.notify_all()
        fail_all(left, StateError("the scheduler was closed before these requests were read"))
        if threading.current_thread() is not self._worker:
            self._worker.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(cancel=error is not None)

    def _work(self) -> None:
        while (sweeping := self._next()) is not None:
            self._sweep(sweeping)

    def _next(self) -> Sweeping[R] | None:
        """Wait for the next sweep; None when the scheduler is closed."""
        while True:
            with self._changed:
                self._gather()
                if self._desk.closed:
                    return None
                order = self._desk.order()
            try:
                # Others come and go meanwhile.
                chosen = self._filler.fill(order, self._clock())
            except BaseException as error:
                self._refuse(order, error)
                continue
            with self._changed:
                sweeping = self._desk.begin(chosen)
            if sweeping is not None:
                return sweeping

    def _gather(self) -> None:
        """Wait until somebody has come, and a moment for others that come together: those whose sweep has just ended, or who
        begin with them.
        """
        desk = self._desk
        was_idle = not len(desk.queue)
        self._changed.wait_for(lambda: desk.closed or len(desk.queue))
        # Of a crowd of one nobody knows whether others come with it.
        crowd = desk.pace.crowd if desk.pace.crowd > 1 or not was_idle else math.inf
        if len(desk.queue) < crowd:
            self._changed.wait_for(lambda: desk.closed or len(desk.queue) >= crowd, desk.pace.gather_s)
            self._changed.wait_for(lambda: desk.closed or len(desk.queue))

    def _refuse(self, tickets: Sequence[Ticket[R]], error: BaseException) -> None:
        with self._changed:
            refused = [ticket for ticket in tickets if ticket in self._desk.queue]
            for ticket in refused:
                self._desk.queue.remove(ticket)
        fail_all(refused, error)

    def _sweep(self, sweeping: Sweeping[R]) -> None:
        requests = [request for ticket in sweeping.tickets for request in ticket.prepared.requests]
        readings, failure = self._read(requests)
        with self._changed:
            tickets = self._desk.end(failure)
        if failure is None:
            self._filler.note(requests, readings[0].stats)
            deliver(tickets, sweeping.tickets, readings)
        else:
            fail_all(tickets, failure)

    def _read(self, requests: Sequence[Request]) -> tuple[Sequence[R], BaseException | None]:
        try:
            return self._model.read(requests, self._advance), None
        except BaseException as error:
            _forget_locals(error)
            return (), error

    def _advance(self, done: int, parts: int) -> None:
        with self._changed:
            if self._desk.advance(done, parts):
                self._model.cancel()

    def _withdraw(self, ticket: Ticket[R]) -> None:
        with self._changed:
            if self._desk.withdraw(ticket):
                # Under the lock, so that it is this sweep that stops and no later one.
                self._model.cancel()
            self._changed.notify_all()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise StateError("a scheduler does not survive a fork; load the model again in the child process")


def _key(caller: Hashable) -> Hashable:
    return f"thread {threading.get_ident()}" if caller is None else caller


def _forget_locals(error: BaseException) -> None:
    """Whoever keeps the error must not keep the sweep's lanes and memory with it, beyond the model's end."""
    each: BaseException | None = error
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        each = each.__cause__ or each.__context__


def _withdraw_when_submitted(submitting: "asyncio.Future[Ticket[Any]]") -> None:
    if not submitting.cancelled() and submitting.exception() is None:
        submitting.result().cancel()
