"""What waiting costs."""

import math

from estream.scheduler.pace import GATHERED_FIRST_S, GATHERED_PART, Pace


def test_before_the_first_sweep_nothing_is_known():
    pace = Pace()
    assert (pace.usual_s, pace.shortest_s, pace.crowd, pace.gather_s) == (math.inf, 0.0, 0, GATHERED_FIRST_S)
    assert pace.wait_s(100) == 1.0


def test_the_last_sweeps_count():
    pace = Pace()
    pace.note(50, 1000, 60.0)
    for seconds in (1.0, 2.0, 3.0, 2.0) * 2:
        pace.note(3, 100, seconds)
    assert (pace.usual_s, pace.shortest_s, pace.crowd, pace.gather_s) == (2.0, 1.0, 3, GATHERED_PART)


def test_a_wait_is_told_by_the_tokens_ahead_and_is_no_shorter_than_a_sweep():
    pace = Pace()
    pace.note(1, 100, 2.0)
    assert (pace.wait_s(1000), pace.wait_s(1)) == (20.0, 2.0)
