"""A batch of prompts, concatenated without padding, and the positions whose logits are wanted."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from estream import _native
from estream.host.sizes import round_up


@dataclass(frozen=True)
class Batch:
    """``ids`` int32 [tokens] of all prompts one after another, their ``lengths``, and ``wanted`` int32: the rows whose logits
    are computed, ``wanted_counts`` of each prompt.
    """

    ids: np.ndarray
    lengths: tuple[int, ...]
    wanted: np.ndarray
    wanted_counts: tuple[int, ...]

    @staticmethod
    def of(prompts: Sequence[Sequence[int] | np.ndarray], positions: Sequence[Sequence[int] | None] | None = None) -> "Batch":
        """Join prompts; ``positions`` gives the wanted ones of each prompt, None its last."""
        lengths = tuple(len(p) for p in prompts)
        starts = np.cumsum([0, *lengths[:-1]])
        chosen = [None] * len(lengths) if positions is None else positions
        wanted = [
            start + np.asarray([n - 1] if at is None else at, np.int32)
            for start, n, at in zip(starts, lengths, chosen, strict=True)
        ]
        return Batch(
            np.concatenate([np.asarray(p, np.int32) for p in prompts]),
            lengths,
            np.concatenate(wanted).astype(np.int32),
            tuple(len(rows) for rows in wanted),
        )

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @cached_property
    def positions(self) -> np.ndarray:
        """int32 [tokens]: each token's position in its own prompt."""
        return np.concatenate([np.arange(n, dtype=np.int32) for n in self.lengths])

    @cached_property
    def prompt_lengths(self) -> np.ndarray:
        """int32 [tokens]: the length of each token's own prompt."""
        return np.repeat(np.asarray(self.lengths, np.int32), self.lengths)

    @cached_property
    def bases(self) -> np.ndarray:
        """int32 [tokens]: the row of keys and values where the token's prompt begins, a multiple of the key run."""
        return np.repeat(np.cumsum([0, *self._padded[:-1]]), self.lengths).astype(np.int32)

    @cached_property
    def kv_rows(self) -> np.ndarray:
        """int32 [tokens]: each token's own row of keys and values."""
        return np.asarray(self.bases + self.positions)

    @property
    def kv_capacity(self) -> int:
        return sum(self._padded)

    @property
    def _padded(self) -> list[int]:
        return [round_up(n, _native.KEY_RUN) for n in self.lengths]
