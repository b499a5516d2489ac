"""Reading ahead and writing behind: order, bounds, and errors from either side."""

import random
import threading
import time

import pytest
from pipelines import naps, threads_left

from estream.host.read_ahead import LastResult, Limits, ReadAhead, WriteBehind


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert threads_left() == []


def test_order_is_kept_and_what_is_ahead_is_bounded():
    rng, nap = random.Random(1), naps(2)
    lock, held, most, written = threading.Lock(), 0, 0, []

    def read(job: int) -> int:
        nonlocal held, most
        with lock:
            held += job
            most = max(most, held)
        nap()
        return job * job

    def write(job: int, result: int) -> None:
        nap()
        written.append((job, result))

    jobs = [rng.randrange(1, 30) for _ in range(200)]
    with ReadAhead(jobs, read, lambda job: job, Limits(4, 50)) as ahead, WriteBehind(write) as out:
        for job, result in ahead:
            with lock:
                held -= job
            nap()
            out.put(job, result)
    assert written == [(job, job * job) for job in jobs]
    # What is ahead, and what the caller has in hand.
    assert max(jobs) < most <= 50 + max(jobs)
    with ReadAhead([100, 200, 1], lambda job: -job, lambda job: job, Limits(2, 10)) as ahead:
        assert list(ahead) == [(100, -100), (200, -200), (1, -1)]


def fail_at(number: int):
    def work(job: int, _: int = 0) -> int:
        if job == number:
            raise ValueError(f"job {job}")
        return job

    return work


def test_an_error_of_either_side_reaches_the_caller():
    written: list[int] = []
    with pytest.raises(ValueError, match="job 7"), ReadAhead(range(20), fail_at(7), lambda _: 1, Limits(3, 9)) as ahead:
        written.extend(job for job, _ in ahead)
    assert written == list(range(7))

    nap = naps(3)

    def write_all(last: int) -> None:
        with WriteBehind(fail_at(5)) as out:
            for job in range(last + 1):
                out.put(job, 0)
                nap()

    for last in (5, 40):  # when the block ends, and before
        with pytest.raises(ValueError, match="job 5"):
            write_all(last)


def test_an_error_of_the_caller_ends_both_sides_and_nothing_more_is_written():
    written: list[int] = []

    def write(job: int, _: int) -> None:
        time.sleep(0.02)
        written.append(job)

    def work() -> None:
        with ReadAhead(range(100), fail_at(-1), lambda _: 1, Limits(3, 9)) as ahead, WriteBehind(write) as out:
            for job, _ in ahead:
                out.put(job, 0)
                if job == 4:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert written == list(range(len(written)))
    assert len(written) < 5


def test_the_last_result_is_read_once():
    read: list[str] = []
    last = LastResult(lambda job: read.append(job) or job)
    assert [last(job) for job in "aabbba"] == list("aabbba")
    assert read == ["a", "b", "a"]
