"""A batch of prompts, concatenated without padding, and the rows whose logits are wanted."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from estream import _native
from estream.units import round_up


@dataclass(frozen=True)
class Batch:
    """``ids`` int32 [tokens] of all prompts one after another, ``lengths`` of each; logits are wanted at each last token."""

    ids: np.ndarray
    lengths: tuple[int, ...]

    @staticmethod
    def of(prompts: Sequence[Sequence[int]]) -> "Batch":
        return Batch(np.concatenate([np.asarray(p, np.int32) for p in prompts]), tuple(len(p) for p in prompts))

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @cached_property
    def wanted(self) -> np.ndarray:
        """int32 [prompts]: the row of each prompt's last token."""
        return (np.cumsum(self.lengths) - 1).astype(np.int32)

    @cached_property
    def positions(self) -> np.ndarray:
        """int32 [tokens]: each token's position in its own prompt."""
        return np.concatenate([np.arange(n, dtype=np.int32) for n in self.lengths])

    @cached_property
    def bases(self) -> np.ndarray:
        """int32 [tokens]: the row of keys and values where the token's prompt begins, a multiple of the key run."""
        return np.repeat(np.cumsum([0, *self._padded[:-1]]), self.lengths).astype(np.int32)

    @cached_property
    def kv_rows(self) -> np.ndarray:
        """int32 [tokens]: each token's own row of keys and values."""
        return self.bases + self.positions

    @property
    def kv_capacity(self) -> int:
        return sum(self._padded)

    @property
    def _padded(self) -> list[int]:
        return [round_up(n, _native.KEY_RUN) for n in self.lengths]


def kv_rows_for(tokens: int, prompts: int) -> int:
    """Rows of keys and values that any split of ``tokens`` into ``prompts`` may need."""
    return round_up(tokens, _native.KEY_RUN) + (prompts - 1) * _native.KEY_RUN
