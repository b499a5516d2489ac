"""Plans the head of a batch: rows that need the same pages side by side, positions of which the same is wanted together."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from estream.engine.head import Asked, Group, HeadPlan, HeadShape
from estream.engine.wanted import Among, Hidden, Likeliest, Logits, LogProbabilities, Wanted

#: How much of the head a row needs, the least first: nothing, some ids, every logit, and what softmax divides by.
_NOTHING, _SOME, _LOGITS, _TOTAL = range(4)


def plan_head(batch_rows: Sequence[np.ndarray], wanted: Sequence[Wanted]) -> tuple[np.ndarray, HeadPlan]:
    """Plan the head for requests of which each wants something of some rows of the batch, int32 [positions].

    Returns:
        The wanted rows of the batch in the order of the head's rows, int32, each once; and the plan.

    """
    unique, inverse = np.unique(np.concatenate(batch_rows), return_inverse=True)
    asked = np.split(inverse.astype(np.int32), np.cumsum([len(rows) for rows in batch_rows])[:-1])
    needs = _Needs.of(asked, wanted, len(unique))
    rank = np.empty(len(unique), np.int32)
    rank[needs.order] = np.arange(len(unique), dtype=np.int32)
    return unique[needs.order].astype(np.int32), _plan(asked, wanted, rank, needs)


@dataclass(frozen=True)
class _Needs:
    """In which ``order`` the unique rows lie in the head, which pages these ``spans`` of them need, and the ``totals`` of rows
    that come first.
    """

    order: np.ndarray
    spans: tuple[tuple[int, int, np.ndarray | None], ...]
    totals: int

    @staticmethod
    def of(asked: Sequence[np.ndarray], wanted: Sequence[Wanted], count: int) -> "_Needs":
        level, classes, ids = _needed(asked, wanted, count)
        order = np.lexsort((classes, -level))
        whole, some = int((level >= _LOGITS).sum()), int((level >= _SOME).sum())
        spans: list[tuple[int, int, np.ndarray | None]] = [(0, whole, None)] if whole else []
        inside = classes[order[whole:some]]
        cuts = [0, *(np.flatnonzero(np.diff(inside)) + 1).tolist(), len(inside)]
        for begin, end in pairwise(cuts):
            if begin < end:
                spans.append((whole + begin, whole + end, np.array(sorted(ids[inside[begin]]), np.int32)))
        return _Needs(order, tuple(spans), int((level == _TOTAL).sum()))

    @property
    def ids(self) -> frozenset[int] | None:
        """Whose pages are read; None for all."""
        if any(ids is None for _, _, ids in self.spans):
            return None
        return frozenset(each for _, _, ids in self.spans if ids is not None for each in ids.tolist())


def _needed(
    asked: Sequence[np.ndarray], wanted: Sequence[Wanted], count: int
) -> tuple[np.ndarray, np.ndarray, list[frozenset[int]]]:
    """How much of the head each row needs, its class among rows that need some ids, and the ids of each class."""
    level, classes = np.zeros(count, np.int8), np.zeros(count, np.int32)
    ids: list[frozenset[int]] = [frozenset()]
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    for rows, each in zip(asked, wanted, strict=True):
        match each:
            case Hidden():
                continue
            case Among():
                needs = _SOME
                before = classes[rows]
                for old in np.unique(before).tolist():
                    if (old, each.ids) not in known:
                        known[old, each.ids] = len(ids)
                        ids.append(ids[old] | frozenset(each.ids))
                    classes[rows[before == old]] = known[old, each.ids]
            case Logits():
                needs = _LOGITS
            case _:
                needs = _TOTAL
        level[rows] = np.maximum(level[rows], needs)
    classes[level != _SOME] = 0
    return level, classes, ids


def _plan(asked: Sequence[np.ndarray], wanted: Sequence[Wanted], rank: np.ndarray, needs: _Needs) -> HeadPlan:
    hidden = [rows for rows, each in zip(asked, wanted, strict=True) if isinstance(each, Hidden)]
    of_hidden = np.unique(np.concatenate(hidden)) if hidden else np.empty(0, np.int32)
    makers: defaultdict[tuple[str, int], _GroupMaker] = defaultdict(_GroupMaker)
    members = []
    for rows, each in zip(asked, wanted, strict=True):
        kind, width, ids = _group_of(each, len(rows))
        own = np.searchsorted(of_hidden, rows).astype(np.int32) if isinstance(each, Hidden) else rank[rows]
        members.append((kind, width, makers[kind, width].add(own, ids)))
    groups: dict[tuple[str, int], Group] = {}
    ends: defaultdict[str, int] = defaultdict(int)
    for (kind, width), maker in makers.items():
        groups[kind, width] = maker.group(width, ends[kind])
        ends[kind] += len(groups[kind, width].rows) * (width or 1)
    means = makers["means", 0].owners() if ("means", 0) in makers else np.empty(0, np.int32)
    shape = HeadShape(
        rows=max((end for _, end, _ in needs.spans), default=0),
        totals=needs.totals,
        logits=ends["logits"],
        likeliest=ends["likeliest"],
        picked=ends["picked"],
        hidden=ends["hidden"],
        means=len(makers["means", 0].lengths) if ("means", 0) in makers else 0,
        ids=needs.ids,
    )

    def of_kind(name: str) -> tuple[Group, ...]:
        return tuple(group for (kind, _), group in groups.items() if kind == name)

    return HeadPlan(
        shape=shape,
        spans=needs.spans,
        logits=of_kind("logits"),
        likeliest=of_kind("likeliest"),
        picked=of_kind("picked"),
        hidden=of_kind("hidden"),
        means=of_kind("means"),
        mean_owners=means,
        hidden_rows=rank[of_hidden],
        asked=tuple(
            Asked(each, groups[kind, width], begin, begin + len(rows))
            for each, rows, (kind, width, begin) in zip(wanted, asked, members, strict=True)
        ),
    )


def _group_of(wanted: Wanted, positions: int) -> tuple[str, int, np.ndarray]:
    """The array that an answer comes from, its values for each position, and the ids [positions, values] that are picked."""
    nothing = np.empty((positions, 0), np.int32)
    match wanted:
        case Likeliest(count):
            return "likeliest", count, nothing
        case LogProbabilities(ids):
            return "picked", ids.shape[1], ids
        case Among(ids):
            return "picked", len(ids), np.broadcast_to(np.array(ids, np.int32), (positions, len(ids)))
        case Hidden(mean):
            return ("means" if mean else "hidden"), 0, nothing
    return "logits", 0, nothing


class _GroupMaker:
    """Collects the positions of a :class:`Group`."""

    def __init__(self) -> None:
        self._rows: list[np.ndarray] = []
        self._ids: list[np.ndarray] = []
        self._count = 0
        self.lengths: list[int] = []

    def add(self, rows: np.ndarray, ids: np.ndarray) -> int:
        """Add the positions of one request; returns how many there were before."""
        before = self._count
        self._count += len(rows)
        self._rows.append(rows)
        self._ids.append(ids)
        self.lengths.append(len(rows))
        return before

    @property
    def _order(self) -> np.ndarray:
        return np.argsort(np.concatenate(self._rows), kind="stable")

    def owners(self) -> np.ndarray:
        """Which request each position of the group belongs to."""
        return np.asarray(np.repeat(np.arange(len(self.lengths), dtype=np.int32), self.lengths)[self._order])

    def group(self, width: int, at: int) -> Group:
        order = self._order
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        ids = np.concatenate(self._ids)[order]
        return Group(np.concatenate(self._rows)[order], places, ids, width, at)
