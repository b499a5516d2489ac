"""Sums that grow although no graph may write what it reads."""

import numpy as np

from estream.devices.qnn.residual import Deltas

ROWS, HIDDEN = 4, 2


def test_each_group_adds_up_and_no_sum_is_written_where_it_is_read():
    zeros = np.zeros((ROWS, HIDDEN))
    deltas = Deltas(np.full((3, ROWS, HIDDEN), 99.0), zeros, ROWS)
    expected = [0.0, 0.0]
    for group, added in ((0, 1.0), (1, 2.0), (0, 3.0), (0, 4.0), (1, 5.0)):
        before, after = deltas.sum(group), deltas.next()
        other = deltas.sum(1 - group)
        assert not np.shares_memory(before, after)
        assert not np.shares_memory(other, after)
        after[...] = before + added
        deltas.advance(group)
        expected[group] += added
        assert [float(deltas.sum(g)[0, 0]) for g in (0, 1)] == expected
    assert deltas.rows(ROWS + 1)[0, 0] == 7.0
    assert len(deltas.rows(ROWS + 1)) == ROWS - 1
    deltas.clear()
    assert not deltas.sum(0).any()
    assert not zeros.any()
