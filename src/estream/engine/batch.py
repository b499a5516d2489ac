"""A batch: prompts are checked at the door, then concatenated without padding."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from estream import _native
from estream.errors import PromptError
from estream.host.sizes import round_up
from estream.models.config import ModelConfig
from estream.text.tokenizer import TextTokenizer

#: A text, or token ids.
Prompt = str | Sequence[int] | np.ndarray
#: Wanted positions of one prompt, counted from 0; None for the last one alone.
Positions = Sequence[int] | None


@dataclass(frozen=True)
class BatchShape:
    """What sizes and times of a sweep depend on: the ``lengths`` of its prompts in tokens, and how many positions are
    ``wanted`` in all.
    """

    lengths: tuple[int, ...]
    wanted: int

    @staticmethod
    def of_prompt(tokens: int) -> "BatchShape":
        """One prompt whose last position is wanted."""
        return BatchShape((tokens,), 1)

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def kv_capacity(self) -> int:
        """Rows of keys and values: each prompt's begin at a multiple of the key run."""
        return sum(_kv_rows(n) for n in self.lengths)


def _kv_rows(tokens: int) -> int:
    return round_up(tokens, _native.KEY_RUN)


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
    def shape(self) -> BatchShape:
        return BatchShape(self.lengths, len(self.wanted))

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
    def kv_starts(self) -> np.ndarray:
        """int32 [tokens]: the row of keys and values where the token's prompt begins, a multiple of the key run."""
        rows = [_kv_rows(n) for n in self.lengths]
        return np.repeat(np.cumsum([0, *rows[:-1]]), self.lengths).astype(np.int32)

    @cached_property
    def kv_rows(self) -> np.ndarray:
        """int32 [tokens]: each token's own row of keys and values."""
        return np.asarray(self.kv_starts + self.positions)

    @property
    def kv_capacity(self) -> int:
        return self.shape.kv_capacity

    def split(self, rows: np.ndarray) -> list[np.ndarray]:
        """The part of ``rows`` [wanted, ...] that belongs to each prompt."""
        return np.split(rows, np.cumsum(self.wanted_counts)[:-1])


def make_batch(
    prompts: Sequence[Prompt],
    positions: Sequence[Positions] | None,
    tokenizer: TextTokenizer,
    config: ModelConfig,
    check_scratch: Callable[[int], None],
) -> Batch:
    """Tokenize and check prompts, and the positions that are wanted of each.

    ``check_scratch`` gets the bytes that the tokenizer takes for a text that it must see whole, and may refuse them.

    Raises:
        PromptError: the message says which prompt, what is wrong with it and what the limit is.

    """
    if isinstance(prompts, str | np.ndarray):
        raise PromptError("prompts must be a list of texts or of id sequences; one prompt goes to prefill()")
    if not prompts:
        raise PromptError("there is no prompt")
    if positions is not None and len(positions) != len(prompts):
        raise PromptError(f"there are {len(prompts)} prompts, but positions for {len(positions)}")
    ids: list[np.ndarray] = []
    chosen: list[list[int] | None] = []
    for i, prompt in enumerate(prompts):
        which = "the prompt" if len(prompts) == 1 else f"prompt {i}"
        if isinstance(prompt, str):
            prompt = tokenizer.ids(prompt, config.context, which, check_scratch)
        ids.append(_token_ids(prompt, which, config))
        if positions is not None:
            chosen.append(_check_positions(positions[i], len(ids[-1]), which))
    return Batch.of(ids, chosen or None)


def _token_ids(prompt: Sequence[int] | np.ndarray, which: str, config: ModelConfig) -> np.ndarray:
    try:
        ids = np.asarray(prompt)
    except (ValueError, OverflowError, RecursionError) as error:
        raise PromptError(f"{which} must be text or a flat sequence of whole-number token ids") from error
    if ids.size == 0:
        raise PromptError(f"{which} is empty")
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise PromptError(f"{which} must be text or a flat sequence of whole-number token ids")
    if len(ids) > config.context:
        raise PromptError(f"{which} has {len(ids)} tokens, the model's context is {config.context}")
    outside = (ids < 0) | (ids >= config.vocabulary)
    if outside.any():
        raise PromptError(f"{which} has id {ids[outside][0]}, the vocabulary is 0..{config.vocabulary - 1}")
    return ids.astype(np.int32)


def _check_positions(positions: Positions, tokens: int, which: str) -> list[int] | None:
    if positions is None:
        return None
    try:
        # True and False are whole numbers too: a mask was meant.
        chosen = [_no_flag(operator.index(position), position) for position in positions]
    except TypeError as error:
        raise PromptError(f"positions of {which} must be whole numbers") from error
    if not chosen:
        raise PromptError(f"no positions of {which} are asked for; None asks for the last one")
    for position in chosen:
        if not 0 <= position < tokens:
            raise PromptError(f"position {position} is outside {which} of {tokens} tokens")
    return chosen


def _no_flag(number: int, given: object) -> int:
    if isinstance(given, bool | np.bool_):
        raise TypeError
    return number
