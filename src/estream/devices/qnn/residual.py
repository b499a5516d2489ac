"""What the MLPs of a layer add to the residual: sums that grow, although no graph may write what it reads."""

import numpy as np


class Deltas:
    """One sum of [T, hidden] for each group of rows. A graph reads a group's sum and writes the next into a free buffer."""

    def __init__(self, buffers: np.ndarray, zeros: np.ndarray, rows: int) -> None:
        """Make a sum of zero for each group.

        Args:
            buffers: float16 [groups + 1, ``rows`` or more, hidden].
            zeros: float16 [``rows`` or more, hidden], the sum of nothing.
            rows: of a group.

        """
        self._buffers, self._zeros, self._rows = buffers, zeros, rows
        self.clear()

    def clear(self) -> None:
        """All sums are zero."""
        self._free = list(range(len(self._buffers)))
        self._of: dict[int, int] = {}

    def sum(self, group: int) -> np.ndarray:
        """A group's sum so far."""
        return np.asarray(self._buffers[self._of[group]] if group in self._of else self._zeros)

    def rows(self, first: int) -> np.ndarray:
        """The sums from row ``first`` of the batch on, up to the end of its group."""
        group, within = divmod(first, self._rows)
        return self.sum(group)[within:] if group in self._of else self._zeros

    def next(self) -> np.ndarray:
        """The buffer that takes the next sum of a group. Call :meth:`advance` when it is written."""
        return np.asarray(self._buffers[self._free[-1]])

    def advance(self, group: int) -> None:
        """The group's next sum has been written."""
        written = self._free.pop()
        if group in self._of:
            self._free.append(self._of[group])
        self._of[group] = written
