"""Prompts are checked at the door: what reaches the engine can be run."""

import operator
from collections.abc import Sequence

import numpy as np

from estream.engine.batch import Batch
from estream.errors import PromptError
from estream.models.config import ModelConfig
from estream.text.tokenizer import TextTokenizer

#: A text, or token ids.
Prompt = str | Sequence[int] | np.ndarray
#: Wanted positions of one prompt, counted from 0; None for the last one alone.
Positions = Sequence[int] | None


def make_batch(
    prompts: Sequence[Prompt], positions: Sequence[Positions] | None, tokenizer: TextTokenizer, config: ModelConfig
) -> Batch:
    """Tokenize and check prompts and the positions that are wanted of each.

    Raises:
        PromptError: says which prompt, what is wrong with it and what the limit is.

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
        ids.append(_token_ids(tokenizer.encode(prompt) if isinstance(prompt, str) else prompt, which, config))
        if positions is not None:
            chosen.append(_check_positions(positions[i], len(ids[-1]), which))
    return Batch.of(ids, chosen or None)


def _token_ids(prompt: Sequence[int] | np.ndarray, which: str, config: ModelConfig) -> np.ndarray:
    try:
        ids = np.asarray(prompt)
    except ValueError as error:
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
        chosen = [operator.index(position) for position in positions]
    except TypeError as error:
        raise PromptError(f"positions of {which} must be whole numbers") from error
    if not chosen:
        raise PromptError(f"no positions of {which} are asked for; None asks for the last one")
    for position in chosen:
        if not 0 <= position < tokens:
            raise PromptError(f"position {position} is outside {which} of {tokens} tokens")
    return chosen
