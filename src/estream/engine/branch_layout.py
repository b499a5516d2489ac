"""Where branches of prompts keep what continues them: keys and values in blocks, and the states of linear attention."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from estream import _native
from estream.engine.prefixes import PrefixTree
from estream.host.sizes import round_up


def key_rows(start: int, end: int) -> int:
    """Rows of keys and values of a branch: its blocks count from the prompt's start, so it has the whole of the first one."""
    return round_up(end - _first_key(start), _native.KEY_RUN)


def _first_key(start: int) -> int:
    """The prompt's position at which the first block of a branch begins."""
    return start // _native.KEY_BLOCK * _native.KEY_BLOCK


@dataclass(frozen=True)
class KeyLayout:
    """Keys and values of a batch; all int32.

    ``rows`` [tokens] are the tokens' own rows. ``blocks`` hold for each branch the rows where the blocks of all keys before
    its end begin, its own and those that it shares; ``sequences`` [tokens] say where the token's branch begins in them.
    ``copied`` tokens, rising, are stored once more, in the rows ``copies``: the beginning of a branch's first block.
    """

    rows: np.ndarray
    blocks: np.ndarray
    sequences: np.ndarray
    copied: np.ndarray
    copies: np.ndarray

    @staticmethod
    def of(tree: PrefixTree) -> "KeyLayout":
        branches = tree.branches
        counts = [branch.tokens for branch in branches]
        first_token = tree.first_rows
        base = np.cumsum([0, *(key_rows(branch.start, branch.end) for branch in branches)])
        rows: list[np.ndarray] = []
        tables: list[np.ndarray] = []
        copied, copies = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
        for index, branch in enumerate(branches):
            begin = _first_key(branch.start)
            rows.append(base[index] + np.arange(branch.start, branch.end) - begin)
            own = base[index] + np.arange(0, branch.end - begin, _native.KEY_BLOCK)
            shared = tables[branch.parent][: begin // _native.KEY_BLOCK] if branch.parent >= 0 else own[:0]
            tables.append(np.concatenate([shared, own]))
            above, end = branch.parent, branch.start
            while end > begin:
                parent = branches[above]
                positions = np.arange(max(parent.start, begin), end)
                copied.append(first_token[above] + positions - parent.start)
                copies.append(base[index] + positions - begin)
                above, end = parent.parent, parent.start
        order = np.argsort(np.concatenate(copied), kind="stable")
        starts = np.cumsum([0, *(len(table) for table in tables[:-1])])
        return KeyLayout(
            np.concatenate(rows).astype(np.int32),
            np.concatenate(tables).astype(np.int32),
            np.repeat(starts, counts).astype(np.int32),
            np.concatenate(copied)[order].astype(np.int32),
            np.concatenate(copies)[order].astype(np.int32),
        )


@dataclass(frozen=True)
class StateLayout:
    """Where linear attention keeps its state for branches to come: ``saved`` maps the end of a branch, a row of the batch, to
    the place of its state, ``restored`` the first row of a branch that does not follow its parent to the place of that.
    """

    places: int
    saved: dict[int, int]
    restored: dict[int, int]

    @staticmethod
    def of(tree: PrefixTree) -> "StateLayout":
        branches = tree.branches
        children = np.bincount([branch.parent for branch in branches if branch.parent >= 0], minlength=len(branches))
        saved, restored = dict[int, int](), dict[int, int]()
        # A state is kept while branches wait for it, so as many as are nested at once need a place.
        level, row, most = [0] * len(branches), 0, 0
        for index, branch in enumerate(branches):
            parent = branch.parent
            if parent >= 0:
                level[index] = level[parent] + (children[parent] > 1)
                if index > parent + 1:
                    restored[row] = level[parent]
            row += branch.tokens
            if children[index] > 1:
                saved[row] = level[index]
                most = max(most, level[index] + 1)
        return StateLayout(most, saved, restored)

    def pieces(self, first: int, end: int) -> list[tuple[int, int]]:
        """Rows [first, end), cut where a state is kept or taken back."""
        begin, stop = np.searchsorted(self._cuts, [first + 1, end])
        inside = self._cuts[begin:stop].tolist()
        return list(zip([first, *inside], [*inside, end], strict=True))

    @cached_property
    def _cuts(self) -> np.ndarray:
        return np.array(sorted({*self.saved, *self.restored}), np.int64)
