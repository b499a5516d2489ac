"""Prompts that begin alike: their common tokens are computed once, as a tree of any depth."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

#: A shorter common beginning is computed for each prompt.
SHORTEST_SHARED = 16


@dataclass(frozen=True)
class Branch:
    """Tokens ``start`` to ``end`` of ``prompt`` and of all prompts that share them; they continue the branch ``parent``, -1
    for none, which ends at ``start``.
    """

    parent: int
    start: int
    end: int
    prompt: int

    @property
    def tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class PrefixTree:
    """``branches`` lie in the order of their computation: behind each come those that continue it. ``last`` holds for each
    prompt the branch that it ends in.
    """

    branches: tuple[Branch, ...]
    last: tuple[int, ...]

    @cached_property
    def first_rows(self) -> np.ndarray:
        """Where each branch begins, were they computed one after another."""
        return np.cumsum([0, *(branch.tokens for branch in self.branches[:-1])])

    @staticmethod
    def apart(prompts: Sequence[np.ndarray]) -> "PrefixTree":
        """Nothing is shared."""
        return PrefixTree(tuple(Branch(-1, 0, len(p), i) for i, p in enumerate(prompts)), tuple(range(len(prompts))))

    @staticmethod
    def of(prompts: Sequence[np.ndarray], sides: Sequence[int]) -> "PrefixTree":
        """What prompts, int32 [tokens] each, of the same of the ``sides`` have in common.

        Sorted prompts that share a beginning lie side by side, so it is enough to compare neighbours.
        """
        # Big-endian ids sort as bytes in the order of their values.
        keys = [(side, p.astype(">i4").tobytes()) for p, side in zip(prompts, sides, strict=True)]
        order = sorted(range(len(prompts)), key=keys.__getitem__)
        common = np.zeros(len(order), np.int64)  # with the prompt before
        for place in range(1, len(order)):
            one, other = order[place - 1], order[place]
            if sides[one] == sides[other]:
                common[place] = _common(prompts[one], prompts[other])
        return _Growing(prompts, order, common).grow()

    def path(self, branch: int) -> list[int]:
        """The branches from the prompt's first token to this one."""
        found = []
        while branch >= 0:
            found.append(branch)
            branch = self.branches[branch].parent
        return found[::-1]


def _common(one: np.ndarray, other: np.ndarray) -> int:
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


class _Growing:
    """A tree that grows from sorted prompts: ``common[i]`` tokens of ``order[i]`` are those of ``order[i - 1]``."""

    def __init__(self, prompts: Sequence[np.ndarray], order: Sequence[int], common: np.ndarray) -> None:
        self._prompts, self._order, self._common = prompts, order, common
        self._branches: list[Branch] = []
        self._last = [-1] * len(order)

    def grow(self) -> PrefixTree:
        # Prompts [first, end) of the order continue a branch; the one on top is next, so each comes behind its parent.
        waiting = [(0, len(self._order), -1)]
        while waiting:
            first, end, parent = waiting.pop()
            depth = self._branches[parent].end if parent >= 0 else 0
            # Neighbours that share too little to be worth a branch part here.
            cuts = np.flatnonzero(self._common[first + 1 : end] < depth + SHORTEST_SHARED) + first + 1
            groups = list(zip([first, *cuts.tolist()], [*cuts.tolist(), end], strict=True))
            if len(groups) == 1 and end - first > 1:
                shared = int(self._common[first + 1 : end].min())
                waiting.append((first, end, self._add(parent, depth, shared, self._order[first])))
            elif len(groups) == 1:
                self._finish(first, parent, depth)
            else:
                waiting.extend((begin, stop, parent) for begin, stop in reversed(groups))
        return PrefixTree(tuple(self._branches), tuple(self._last))

    def _finish(self, place: int, parent: int, depth: int) -> None:
        """One prompt alone: what is left of it, if anything."""
        prompt = self._order[place]
        length = len(self._prompts[prompt])
        self._last[prompt] = parent if length == depth else self._add(parent, depth, length, prompt)

    def _add(self, parent: int, start: int, end: int, prompt: int) -> int:
        self._branches.append(Branch(parent, start, end, prompt))
        return len(self._branches) - 1
