"""A batch: prompts are checked at the door, then concatenated without padding, what they begin with alike once."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from estream.engine.branch_layout import KeyLayout, StateLayout, key_rows
from estream.engine.head import HeadPlan, HeadShape
from estream.engine.head_plan import plan_head
from estream.engine.prefixes import PrefixTree
from estream.engine.wanted import ALL, Logits, Positions, Prompt, Request, Wanted, check_wanted
from estream.errors import PromptError
from estream.models.config import ModelConfig
from estream.text.tokenizer import TextTokenizer


@dataclass(frozen=True)
class BatchShape:
    """What sizes and times of a sweep depend on: the ``lengths`` of its branches in tokens, which are prompts where none
    begin alike, and how many positions are ``wanted`` in all; ``reduced`` says what of them, None for the logits.

    ``starts`` are the positions at which branches begin, empty where all begin at 0; ``states`` counts the states of linear
    attention that are kept for branches.
    """

    lengths: tuple[int, ...]
    wanted: int
    reduced: HeadShape | None = None
    starts: tuple[int, ...] = ()
    states: int = 0

    @staticmethod
    def of_prompt(tokens: int) -> "BatchShape":
        """One prompt whose last position is wanted."""
        return BatchShape((tokens,), 1)

    @property
    def tokens(self) -> int:
        """Tokens that are computed."""
        return sum(self.lengths)

    @property
    def head(self) -> HeadShape:
        """What the head leaves."""
        return self.reduced or HeadShape.of_logits(self.wanted)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The positions (start, end) of each branch."""
        starts = self.starts or (0,) * len(self.lengths)
        return [(start, start + n) for start, n in zip(starts, self.lengths, strict=True)]

    @property
    def kv_capacity(self) -> int:
        """Rows of keys and values."""
        return sum(key_rows(start, end) for start, end in self.spans)


@dataclass(frozen=True)
class Batch:
    """``ids`` int32 [tokens] of all branches of the ``tree`` one after another, ``prompt_counts``, the tokens of each prompt,
    and ``wanted`` int32: the rows that the last layer goes on with, each once, in the order of the head's rows, and what the
    ``head`` makes of them.
    """

    ids: np.ndarray
    tree: PrefixTree
    prompt_counts: tuple[int, ...]
    wanted: np.ndarray
    head: HeadPlan

    @staticmethod
    def of(
        prompts: Sequence[Sequence[int] | np.ndarray],
        positions: Sequence[Sequence[int] | None] | None = None,
        wanted: Sequence[Wanted] | None = None,
        sides: Sequence[int] | None = None,
    ) -> "Batch":
        """Join prompts of token ids.

        Args:
            prompts: the ids.
            positions: those that matter of each prompt; None for its last.
            wanted: what is wanted of them; the logits where it is not given.
            sides: prompts with the same number compute what they begin with once; None for no sharing.

        """
        ids = [np.asarray(p, np.int32) for p in prompts]
        tree = PrefixTree.apart(ids) if sides is None else PrefixTree.of(ids, sides)
        chosen = [None] * len(ids) if positions is None else positions
        rows = [
            _rows_of(tree, last, np.asarray([len(p) - 1] if at is None else at))
            for p, last, at in zip(ids, tree.last, chosen, strict=True)
        ]
        joined = np.concatenate([ids[branch.prompt][branch.start : branch.end] for branch in tree.branches])
        return Batch(joined, tree, tuple(map(len, ids)), *plan_head(rows, wanted or [Logits()] * len(ids)))

    @property
    def shape(self) -> BatchShape:
        starts = tuple(branch.start for branch in self.tree.branches)
        return BatchShape(
            self.lengths, len(self.wanted), self.head.shape, starts if any(starts) else (), self.state_layout.places
        )

    @property
    def tokens(self) -> int:
        """Tokens that are computed."""
        return len(self.ids)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(self.prompt_counts)

    def prompt_ids(self, prompt: int) -> np.ndarray:
        """int32 [tokens]: the ids of one prompt, a copy."""
        rows = self.tree.first_rows
        path = self.tree.path(self.tree.last[prompt])
        return np.concatenate([self.ids[rows[i] : rows[i] + self.tree.branches[i].tokens] for i in path])

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The tokens of each branch."""
        return tuple(branch.tokens for branch in self.tree.branches)

    @cached_property
    def positions(self) -> np.ndarray:
        """int32 [tokens]: each token's position in its own prompt."""
        return np.concatenate([np.arange(branch.start, branch.end, dtype=np.int32) for branch in self.tree.branches])

    @cached_property
    def prompt_lengths(self) -> np.ndarray:
        """int32 [tokens]: the length of each token's own prompt, of one of those that share it."""
        return np.repeat(np.array([self.prompt_counts[b.prompt] for b in self.tree.branches], np.int32), self.lengths)

    @cached_property
    def key_layout(self) -> KeyLayout:
        """Where keys and values lie."""
        return KeyLayout.of(self.tree)

    @cached_property
    def state_layout(self) -> StateLayout:
        """Which states of linear attention are kept."""
        return StateLayout.of(self.tree)

    @cached_property
    def kv_capacity(self) -> int:
        """Rows of keys and values."""
        return self.shape.kv_capacity


def _rows_of(tree: PrefixTree, last: int, positions: np.ndarray) -> np.ndarray:
    """The rows of the batch, int32, that hold these positions of the prompt that ends in the branch ``last``."""
    path = tree.path(last)
    which = np.searchsorted([tree.branches[i].start for i in path], positions, side="right") - 1
    first_rows = np.array([tree.first_rows[i] - tree.branches[i].start for i in path])
    return np.asarray(first_rows[which] + positions, np.int32)


def make_batch(
    requests: Sequence[Request],
    tokenizer: TextTokenizer,
    config: ModelConfig,
    check_scratch: Callable[[int], None],
    *,
    share_prefixes: bool,
) -> Batch:
    """Tokenize and check prompts, and what is wanted of each.

    ``check_scratch`` gets the bytes that the tokenizer takes for a text that it must see whole, and may refuse them. With
    ``share_prefixes`` what prompts begin with alike is computed once.

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
        ids.append(token_ids(prompt, which, config))
        chosen.append(_check_positions(request.positions, len(ids[-1]), which))
        count = 1 if chosen[-1] is None else len(chosen[-1])
        wanted.append(check_wanted(request.wanted, count, config.vocabulary, which))
    return Batch.of(ids, chosen, wanted, [_side(len(each), config) for each in ids] if share_prefixes else None)


def _side(tokens: int, config: ModelConfig) -> int:
    """LongRoPE rotates the keys of prompts beyond the original context in another way, from the first token on."""
    rope = config.attention.rope
    return int(rope.scaling == "longrope" and tokens > rope.original_context)


def token_ids(given: Prompt, which: str, config: ModelConfig, *, part: bool = False) -> np.ndarray:
    """Ids int32 [tokens] that the vocabulary has; a ``part`` of a prompt may be empty, or longer than the context.

    Raises:
        PromptError: they are none; the message calls them ``which``.

    """
    try:
        ids = np.asarray(given)
    except (ValueError, OverflowError, RecursionError) as error:
        raise PromptError(f"{which} must be text or a flat sequence of whole-number token ids") from error
    if ids.size == 0 and not part:
        raise PromptError(f"{which} is empty")
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise PromptError(f"{which} must be text or a flat sequence of whole-number token ids")
    if len(ids) > config.context and not part:
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
