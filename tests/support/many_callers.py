"""Many threads that ask one scheduler, and change their minds at random.

python tests/support/many_callers.py PKG --requests 10000 --threads 50 --memory 160MiB
"""

import argparse
import json
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError as WithdrawnError
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import estream
from estream.api.model import Model
from estream.api.result import Reading
from estream.engine.wanted import ALL, Among, Hidden, Likeliest, Logits, LogProbabilities, Request, Wanted
from estream.errors import QueueFullError
from estream.host import limits
from estream.scheduler.scheduler import Scheduler

#: No answer takes longer.
LONG_S = 600.0


@dataclass
class Outcome:
    """What became of the requests. ``wrong`` names those whose answer was another one than alone."""

    answered: int = 0
    cancelled: int = 0
    refused: int = 0
    sweeps: set[float] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


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
        outcome.sweeps.add(reading.stats.ttft_s)
        same = all(np.array_equal(value, reading.values[name]) for name, value in alone[i].values.items())
        if not same or reading.values.keys() != alone[i].values.keys():
            outcome.wrong.append(f"request {i}: another answer than alone")


def tasks() -> int:
    """Threads of this process, native ones too."""
    return len(list(Path("/proc/self/task").iterdir()))


def tasks_once_at_most(count: int) -> int:
    """Threads once no more are left, or after a while: the system counts one that was joined for some moments more."""
    end = time.monotonic() + 20
    while tasks() > count and time.monotonic() < end:
        time.sleep(0.001)
    return tasks()


def varied(vocabulary: int, count: int, seed: int = 0) -> list[Request]:
    """Requests of all kinds; some begin alike."""
    rng = np.random.default_rng(seed)
    beginning = rng.integers(0, vocabulary, 40).tolist()
    found = []
    for number in range(count):
        prompt = [*(beginning if number % 3 == 0 else []), *rng.integers(0, vocabulary, rng.integers(1, 120)).tolist()]
        kinds: list[tuple[Wanted, str | None]] = [
            (Logits(), None),
            (Likeliest(3), ALL),
            (LogProbabilities(rng.integers(0, vocabulary, (len(prompt), 1))), ALL),
            (Among((7, 3, 900)), None),
            (Hidden(mean=True), ALL),
        ]
        wanted, positions = kinds[number % len(kinds)]
        found.append(Request(prompt, positions, wanted))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=50)
    parser.add_argument("--memory", default="160MiB")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    before = tasks()
    with estream.load(args.package, memory=args.memory) as model:
        requests = varied(model.package.manifest.config.vocabulary, 60, args.seed)
        begin = time.perf_counter()
        outcome = ask(model, requests, args.requests, args.threads, args.seed)
        facts = {
            "seconds": round(time.perf_counter() - begin, 1),
            "asked": args.requests,
            "answered": outcome.answered,
            "cancelled": outcome.cancelled,
            "refused": outcome.refused,
            "sweeps": len(outcome.sweeps),
            "wrong": outcome.wrong[:5],
            "peak_bytes": limits.peak_resident_bytes(),
            "budget_bytes": model.budget_bytes,
        }
    print(json.dumps(facts | {"threads_left": tasks_once_at_most(before) - before}))


if __name__ == "__main__":
    main()
