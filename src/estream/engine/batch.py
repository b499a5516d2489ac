"""A batch: prompts are checked at the door, then concatenated without padding."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from estream import _native
from estream.engine.head import HeadPlan, HeadShape
from estream.engine.head_plan import plan_head
from estream.engine.wanted import ALL, Logits, Positions, Prompt, Request, Wanted, check_wanted
from estream.errors import PromptError
from estream.host.sizes import round_up
from estream.models.config import ModelConfig
from estream.text.tokenizer import TextTokenizer


@dataclass(frozen=True)
class BatchShape:
    """What sizes and times of a sweep depend on: the ``lengths`` of its prompts in tokens, and how many positions are
    ``wanted`` in all; ``reduced`` says what of them, None for the logits.
    """

    lengths: tuple[int, ...]
    wanted: int
    reduced: HeadShape | None = None

    @staticmethod
    def of_prompt(tokens: int) -> "BatchShape":
        """One prompt whose last position is wanted."""
        return BatchShape((tokens,), 1)

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def head(self) -> HeadShape:
        """What the head leaves."""
        return self.reduced or HeadShape.of_logits(self.wanted)

    @property
    def kv_capacity(self) -> int:
        """Rows of keys and values: each prompt's begin at a multiple of the key run."""
        return sum(_kv_rows(n) for n in self.lengths)


def _kv_rows(tokens: int) -> int:
    return round_up(tokens, _native.KEY_RUN)


@dataclass(frozen=True)
class Batch:
    """``ids`` int32 [tokens] of all prompts one after another, their ``lengths``, and ``wanted`` int32: the rows that the last
    layer goes on with, each once, in the order of the head's rows, and what the ``head`` makes of them.
    """

    ids: np.ndarray
    lengths: tuple[int, ...]
    wanted: np.ndarray
    head: HeadPlan

    @staticmethod
    def of(
        prompts: Sequence[Sequence[int] | np.ndarray],
        positions: Sequence[Sequence[int] | None] | None = None,
        wanted: Sequence[Wanted] | None = None,
    ) -> "Batch":
        """Join prompts of token ids; of each, ``positions`` are those that matter, None its last, and ``wanted`` says what of
        them, the logits where it is not given.
        """
        lengths = tuple(len(p) for p in prompts)
        starts = np.cumsum([0, *lengths[:-1]])
        chosen = [None] * len(lengths) if positions is None else positions
        rows = [
            (start + np.asarray([n - 1] if at is None else at)).astype(np.int32)
            for start, n, at in zip(starts, lengths, chosen, strict=True)
        ]
        ids = np.concatenate([np.asarray(p, np.int32) for p in prompts])
        return Batch(ids, lengths, *plan_head(rows, wanted or [Logits()] * len(lengths)))

    @property
    def shape(self) -> BatchShape:
        return BatchShape(self.lengths, len(self.wanted), self.head.shape)

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


def make_batch(
    requests: Sequence[Request], tokenizer: TextTokenizer, config: ModelConfig, check_scratch: Callable[[int], None]
) -> Batch:
    """Tokenize and check prompts, and what is wanted of each.

    ``check_scratch`` gets the bytes that the tokenizer takes for a text that it must see whole, and may refuse them.

    Raises:
        PromptError: the message says which prompt, what is wrong with it and what the limit is.

    """
    if not requests:
        raise PromptError("there is no prompt")
    ids: list[np.ndarray] = []
    chosen: list[Sequence[int] | None] = []
    wanted: list[Wanted] = []
    for i, request in enumerate(requests):
        which = "the prompt" if len(requests) == 1 else f"prompt {i}"
        prompt = request.prompt
        if isinstance(prompt, str):
            prompt = tokenizer.ids(prompt, config.context, which, check_scratch)
        ids.append(_token_ids(prompt, which, config))
        chosen.append(_check_positions(request.positions, len(ids[-1]), which))
        count = 1 if chosen[-1] is None else len(chosen[-1])
        wanted.append(check_wanted(request.wanted, count, config.vocabulary, which))
    return Batch.of(ids, chosen, wanted)


def _token_ids(prompt: Prompt, which: str, config: ModelConfig) -> np.ndarray:
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


def _check_positions(positions: Positions | str, tokens: int, which: str) -> Sequence[int] | None:
    if positions is None:
        return None
    if isinstance(positions, str):
        if positions != ALL:
            raise PromptError(f"positions of {which} must be whole numbers, {ALL!r} or None, found {positions!r}")
        return range(tokens)
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
