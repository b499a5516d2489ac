"""Reduces the head while its pages pass: each takes a slice of the vocabulary, for some rows at a time."""

import numpy as np

from estream import _native
from estream.engine.head import HeadArrays, HeadPlan


class HeadReduction:
    """Takes the logits of one sweep, slice by slice in rising order, and hidden states. Nothing depends on how many rows come
    at a time.
    """

    def __init__(self, plan: HeadPlan, arrays: HeadArrays, native: "_native.CpuDevice") -> None:
        self.plan = plan
        self._arrays = arrays
        self._native = native
        arrays.totals[:, 0] = -np.inf
        arrays.totals[:, 1] = 0.0
        arrays.likeliest_ids.fill(0)
        arrays.likeliest.fill(-np.inf)
        arrays.means.fill(0.0)

    def take(self, row: int, first: int, logits: np.ndarray) -> None:
        """Take logits float32 [n, m] of rows ``row`` to ``row`` + n of the head, of the ids from ``first`` on."""
        arrays, plan, (n, ids) = self._arrays, self.plan, logits.shape
        end = row + n
        if (totals := min(end, plan.shape.totals) - row) > 0:
            self._native.softmax_totals(logits[:totals], arrays.totals[row : row + totals])
        for group in plan.logits:
            for at in range(*group.between(row, end)):
                arrays.logits[at, first : first + ids] = logits[group.rows[at] - row]
        for group in plan.likeliest:
            begin, stop = group.between(row, end)
            rows = group.rows[begin:stop] - np.int32(row)
            own = group.part(arrays.likeliest_ids, begin, stop), group.part(arrays.likeliest, begin, stop)
            self._native.likeliest(logits, rows, first, *own)
        for group in plan.picked:
            begin, stop = group.between(row, end)
            wanted = group.ids[begin:stop] - first
            which = np.nonzero((wanted >= 0) & (wanted < ids))
            group.part(arrays.picked, begin, stop)[which] = logits[group.rows[begin:stop][which[0]] - row, wanted[which]]

    def take_hidden(self, first: int, normed: np.ndarray) -> None:
        """Take what the head multiplies, float32 [n, hidden], of the rows ``plan.hidden_rows`` from the ``first`` on."""
        end = first + len(normed)
        for group in self.plan.hidden:
            begin, stop = group.between(first, end)
            self._arrays.hidden[begin:stop] = normed[group.rows[begin:stop] - first]
        for group in self.plan.means:
            # Row after row, so that a sum does not depend on which rows come at a time.
            for at in range(*group.between(first, end)):
                self._arrays.means[self.plan.mean_owners[at]] += normed[group.rows[at] - first]
