"""Many threads that ask one scheduler, and change their minds at random."""

import random
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError as WithdrawnError
from dataclasses import dataclass, field

import numpy as np

from estream.api.model import Model
from estream.api.result import Reading
from estream.engine.wanted import Request
from estream.errors import QueueFullError
from estream.scheduler.scheduler import Scheduler

#: No answer takes longer.
LONG_S = 600.0


@dataclass
class Outcome:
    """What became of the requests. ``wrong`` names those whose answer was another one than alone."""

    answered: int = 0
    cancelled: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    peak_bytes: int = 0


def ask(model: Model, requests: Sequence[Request], count: int, threads: int, seed: int = 0) -> Outcome:
    """Ask ``count`` times from ``threads`` threads for some of the ``requests``; one in four is withdrawn at some moment."""
    alone = [model.read([request])[0] for request in requests]
    outcome, lock = Outcome(), threading.Lock()

    def work(number: int, share: int) -> None:
        rng = random.Random(seed * 1000 + number)
        for _ in range(share):
            which = [rng.randrange(len(requests)) for _ in range(rng.choice((1, 1, 1, 3)))]
            deadline = rng.choice((None, None, 0.05, 1.0))
            try:
                ticket = scheduler.submit([requests[i] for i in which], deadline=deadline)
            except QueueFullError as error:
                with lock:
                    outcome.refused += 1
                pause.wait(min(error.wait_s, 0.2))
                continue
            withdrawn = rng.random() < 0.25
            if withdrawn:
                pause.wait(rng.choice((0.0, 0.001, 0.01, 0.05)))
                withdrawn = ticket.cancel()
            try:
                readings = ticket.result(LONG_S)
            except WithdrawnError:
                readings = None
            with lock:
                _judge(outcome, which, withdrawn, readings, alone)

    pause = threading.Event()
    with Scheduler(model, max_queue=2 * threads) as scheduler:
        shares = [count // threads + (i < count % threads) for i in range(threads)]
        callers = [threading.Thread(target=work, args=each) for each in enumerate(shares)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    return outcome


def _judge(
    outcome: Outcome, which: Sequence[int], withdrawn: bool, readings: list[Reading] | None, alone: Sequence[Reading]
) -> None:
    if withdrawn or readings is None:
        outcome.cancelled += 1
        if readings is not None or not withdrawn:
            outcome.wrong.append(f"requests {which}: withdrawn {withdrawn}, but answered {readings is not None}")
        return
    outcome.answered += 1
    for i, reading in zip(which, readings, strict=True):
        outcome.peak_bytes = max(outcome.peak_bytes, reading.stats.peak_rss_bytes)
        same = all(np.array_equal(value, reading.values[name]) for name, value in alone[i].values.items())
        if not same or reading.values.keys() != alone[i].values.keys():
            outcome.wrong.append(f"request {i}: another answer than alone")
