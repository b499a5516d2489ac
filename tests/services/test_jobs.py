"""Jobs are put into sweeps as memory allows, longest first, and answered in their order."""

import numpy as np
import pytest

from estream.engine.wanted import Request
from estream.services.jobs import Job, answer, answer_in_order


class _Reader:
    """Reads at most ``most`` tokens in a sweep; a reading is its prompt's length."""

    def __init__(self, most: int) -> None:
        self.most, self.sweeps = most, []

    def fits(self, requests) -> bool:
        return sum(len(request.prompt) for request in requests) <= self.most

    def read(self, requests):
        self.sweeps.append([len(request.prompt) for request in requests])
        return [len(request.prompt) for request in requests]


def job(*lengths: int) -> Job:
    return Job(tuple(Request(np.zeros(n, np.int32)) for n in lengths), list)


def test_answers_come_in_the_order_of_the_jobs_and_the_longest_are_read_first():
    reader = _Reader(100)
    lengths = [5, 90, 10, 40, 40, 3]
    assert answer(reader, [job(n) for n in lengths]) == [[n] for n in lengths]
    assert reader.sweeps[0] == [90]
    assert [n for sweep in reader.sweeps for n in sweep] == sorted(lengths, reverse=True)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 64, 1000])
def test_sweeps_are_nearly_full(count: int):
    reader = _Reader(400)
    found = [each for answers in answer_in_order(reader, (job(10) for _ in range(count))) for each in answers]
    assert len(found) == count
    assert all(sum(sweep) <= 400 for sweep in reader.sweeps)
    assert len(reader.sweeps) <= -(-count * 10 // 360) + 1


def test_jobs_are_taken_when_they_are_needed():
    taken = []

    def jobs():
        for n in range(1000):
            taken.append(n)
            yield job(10)

    next(answer_in_order(_Reader(100), jobs()))
    assert len(taken) < 50


def test_a_job_that_is_larger_than_a_sweep_takes_several():
    reader = _Reader(100)
    assert answer(reader, [job(60, 50, 40), job(10)]) == [[60, 50, 40], [10]]
    assert reader.sweeps[0] == [60]
    # What no sweep may read is asked for all the same, and refused there.
    assert answer(reader, [job(500)]) == [[500]]
