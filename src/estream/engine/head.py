"""What the head leaves of a batch: which rows it multiplies, which of its pages that takes, and where the answers lie."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from estream.engine.finite import is_finite
from estream.engine.wanted import Among, Hidden, Likeliest, Logits, LogProbabilities, Wanted


class Take(Protocol):
    """Takes an array of a sweep from the arena: a :class:`~estream.engine.activations.Carver`."""

    def __call__(self, dtype: type[np.generic], *shape: int) -> np.ndarray: ...


@dataclass(frozen=True)
class HeadShape:
    """What the arrays of the head depend on.

    ``rows`` are multiplied by head pages, the first ``totals`` of them get a softmax over the vocabulary. ``logits`` counts
    positions, ``likeliest`` and ``picked`` values, ``hidden`` positions, ``means`` prompts. ``ids`` are those whose pages are
    read; None for all.
    """

    rows: int
    totals: int = 0
    logits: int = 0
    likeliest: int = 0
    picked: int = 0
    hidden: int = 0
    means: int = 0
    ids: frozenset[int] | None = None

    @staticmethod
    def of_logits(rows: int) -> "HeadShape":
        """The logits of so many rows."""
        return HeadShape(rows, logits=rows)

    def reads(self, first: int, count: int) -> bool:
        """Whether the page of ids [first, first + count) is needed."""
        return self.ids is None or any(first <= each < first + count for each in self.ids)


@dataclass(frozen=True)
class HeadArrays:
    """The answers of one sweep, position after position of each :class:`Group`; they lie in the arena until the next one."""

    logits: np.ndarray  # float32 [logits, vocabulary]
    totals: np.ndarray  # float64 [totals, 2], see _native.CpuDevice.softmax_totals
    likeliest_ids: np.ndarray  # int32 [likeliest]
    likeliest: np.ndarray  # float32 [likeliest], logits
    picked: np.ndarray  # float32 [picked], logits
    hidden: np.ndarray  # float32 [hidden, hidden size]
    means: np.ndarray  # float64 [means, hidden size], sums

    @staticmethod
    def carve(take: Take, shape: HeadShape, vocabulary: int, hidden: int) -> "HeadArrays":
        return HeadArrays(
            logits=take(np.float32, shape.logits, vocabulary),
            totals=take(np.float64, shape.totals, 2),
            likeliest_ids=take(np.int32, shape.likeliest),
            likeliest=take(np.float32, shape.likeliest),
            picked=take(np.float32, shape.picked),
            hidden=take(np.float32, shape.hidden, hidden),
            means=take(np.float64, shape.means, hidden),
        )


@dataclass(frozen=True)
class Group:
    """Positions of which the same is wanted, with ``width`` values each, from value ``at`` of their array on.

    ``rows`` int32 [n] are the rows of the head, rising, for hidden ones of ``HeadPlan.hidden_rows``; ``ids`` int32 [n, width]
    what is picked of each. The position that was asked for as the i-th lies at ``places[i]``.
    """

    rows: np.ndarray
    places: np.ndarray
    ids: np.ndarray
    width: int
    at: int

    def part(self, values: np.ndarray, begin: int = 0, end: int | None = None) -> np.ndarray:
        """[n, width] of an array of values; or positions ``begin`` to ``end`` of it."""
        own = values[self.at : self.at + len(self.rows) * self.width].reshape(-1, self.width)
        return own[begin:end]

    def between(self, first: int, end: int) -> tuple[int, int]:
        """The positions whose rows lie in [first, end)."""
        begin, stop = np.searchsorted(self.rows, [first, end])
        return int(begin), int(stop)


@dataclass(frozen=True)
class Asked:
    """Where the answer of one request lies: positions ``begin`` to ``end`` of a group as they were asked for."""

    wanted: Wanted
    group: Group
    begin: int
    end: int

    @property
    def places(self) -> np.ndarray:
        return self.group.places[self.begin : self.end]


@dataclass(frozen=True)
class HeadPlan:
    """The head of one batch. Rows of the head are the batch's wanted rows, those that need the same pages side by side.

    ``spans`` are (first, end, ids) of such rows, ids None for all pages; rows behind the last one need none. ``hidden_rows``
    int32 are the rows of the head whose hidden state is wanted, in the order of the batch. Of ``means`` each position adds to
    the sum of its prompt, ``mean_owners`` int32 [n].
    """

    shape: HeadShape
    spans: tuple[tuple[int, int, np.ndarray | None], ...]
    logits: tuple[Group, ...]
    likeliest: tuple[Group, ...]
    picked: tuple[Group, ...]
    hidden: tuple[Group, ...]
    means: tuple[Group, ...]
    mean_owners: np.ndarray
    hidden_rows: np.ndarray
    asked: tuple[Asked, ...]

    def ranges(self, first: int, count: int) -> list[tuple[int, int]]:
        """The rows that need the page of ids [first, first + count), as few ranges as possible."""
        found: list[tuple[int, int]] = []
        for begin, end, ids in self.spans:
            if ids is None or np.searchsorted(ids, first) < np.searchsorted(ids, first + count):
                if found and found[-1][1] == begin:
                    begin = found.pop()[0]
                found.append((begin, end))
        return found

    def strange_row(self, arrays: HeadArrays) -> int | None:
        """The first row of some answer that is no finite number; None where all are."""
        for rows in (arrays.logits, arrays.totals, arrays.hidden, arrays.means):
            if not is_finite(rows):
                return next(number for number, row in enumerate(rows) if not is_finite(row[None]))
        for group in self.picked:
            strange = ~np.isfinite(group.part(arrays.picked)).all(axis=1)
            if strange.any():
                return int(group.rows[strange.argmax()])
        return None

    def answers(self, arrays: HeadArrays) -> list[dict[str, np.ndarray]]:
        """The answer of each request, by the names that :mod:`~estream.engine.wanted` gives, in memory of their own."""
        return [self._answer(each, arrays) for each in self.asked]

    def _answer(self, asked: Asked, arrays: HeadArrays) -> dict[str, np.ndarray]:
        group, places = asked.group, asked.places
        match asked.wanted:
            case Logits():
                return {"logits": arrays.logits[places]}
            case Likeliest():
                logits = group.part(arrays.likeliest)[places]
                found = self._log_probabilities(group.rows[places], logits, arrays)
                return {"ids": group.part(arrays.likeliest_ids)[places], "log_probabilities": found}
            case LogProbabilities():
                logits = group.part(arrays.picked)[places]
                return {"log_probabilities": self._log_probabilities(group.rows[places], logits, arrays)}
            case Among():
                logits = group.part(arrays.picked)[places]
                shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
                return {"logits": logits, "probabilities": (shifted / shifted.sum(axis=1, keepdims=True)).astype(np.float32)}
            case Hidden(mean=True):
                owner = self.mean_owners[places[0]]
                return {"hidden": (arrays.means[owner] / len(places)).astype(np.float32)}
        return {"hidden": arrays.hidden[places]}

    def _log_probabilities(self, rows: np.ndarray, logits: np.ndarray, arrays: HeadArrays) -> np.ndarray:
        largest, total = arrays.totals[rows, :1], arrays.totals[rows, 1:]
        return np.asarray(logits - largest - np.log(total), np.float32)
