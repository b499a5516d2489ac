"""What the MLPs of a layer add to the residual: sums that grow, though no graph may write what it reads."""

import numpy as np


class Deltas:
    """One sum of [T, hidden] for each group of rows. A graph reads a group's sum and writes the next into a free buffer."""

    def __init__(self, buffers: np.ndarray, zeros: np.ndarray, rows: int) -> None:
        """``buffers`` [groups + 1, at least ``rows``, hidden]; ``zeros`` stands for sums of nothing."""
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
        """The sums of rows of the batch from ``first`` on, within its group."""
        group, within = divmod(first, self._rows)
        return self.sum(group)[within:] if group in self._of else self._zeros

    def next(self) -> np.ndarray:
        """Where the next sum of any one group goes."""
        return np.asarray(self._buffers[self._free[-1]])

    def advance(self, group: int) -> None:
        """The group's next sum has been written."""
        written = self._free.pop()
        if group in self._of:
            self._free.append(self._of[group])
        self._of[group] = written
