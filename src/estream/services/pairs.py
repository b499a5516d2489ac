"""A text and what follows it, as ids."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from estream.engine.batch import token_ids
from estream.errors import PromptError
from estream.text.segments import PromptBuilder, Segment, TextRule, document, encode_segments

#: Token ids, as callers give them.
Ids = Sequence[int] | np.ndarray


@dataclass(frozen=True)
class Pair:
    """Ids int32 of a context and of what follows it, neither empty, and how many tokens of the context were left out."""

    context: np.ndarray
    continuation: np.ndarray
    truncated_tokens: int = 0


def pair_of(prompts: PromptBuilder, context: str | Ids, continuation: str | Ids, rule: TextRule, which: str) -> Pair:
    """The ids of a context and its continuation, of which the context may be shortened from its start.

    Texts are split as lm-evaluation-harness splits them (``TemplateLM._encode_pair``): spaces at the end of the context go
    to the continuation; both together are tokenized, and what lies behind as many tokens as the context alone has is the
    continuation. An empty context is the token that texts begin with, else the one they end with.

    Raises:
        PromptError: it is too long, or nothing is left of the continuation.

    """
    if isinstance(context, str) and isinstance(continuation, str):
        before, after = _of_texts(prompts, context, continuation, rule, which)
    elif isinstance(context, str) or isinstance(continuation, str):
        raise PromptError(f"{which}: context and continuation must both be texts or both be token ids")
    else:
        before, after = ids_of(prompts, context, which), ids_of(prompts, continuation, which)
    if not len(after):
        raise PromptError(f"{which}: the continuation is empty, or a part of the context's last token")
    if not len(before):
        before = np.array([first_token(prompts, which)], np.int32)
    # The last token is scored and not read.
    over = len(before) + len(after) - 1 - prompts.context
    if over <= 0:
        return Pair(before, after)
    begin, _ = prompts.tokenizer.around
    kept = len(begin) if before[: len(begin)].tolist() == begin else 0
    if not rule.truncate or over >= len(before) - kept:
        raise PromptError(
            f"{which} has {len(before)} tokens of context and {len(after)} of continuation, the model's context is "
            f"{prompts.context} tokens" + ("" if rule.truncate else "; permission to truncate shortens the context")
        )
    return Pair(np.concatenate([before[:kept], before[kept + over :]]), after, over)


def ids_of(prompts: PromptBuilder, given: Ids, which: str) -> np.ndarray:
    """Token ids as int32 [tokens], which the vocabulary has. Raises PromptError."""
    return token_ids(given, which, prompts.config, part=True)


def _of_texts(
    prompts: PromptBuilder, context: str, continuation: str, rule: TextRule, which: str
) -> tuple[np.ndarray, np.ndarray]:
    if not continuation:
        raise PromptError(f"{which}: the continuation is empty")
    bare = context.rstrip()
    following = Segment(context[len(bare) :] + continuation, content=True)
    if not bare:
        first = first_token(prompts, which)
        rest = encode_segments(prompts.tokenizer, [following], rule, which, prompts.check)
        # A continuation that begins with that token is its own beginning.
        return np.array([first], np.int32), rest[1:] if len(rest) > 1 and rest[0] == first else rest
    alone = prompts.ids([document(bare)], rule, which)
    whole = prompts.ids([document(bare), following], rule, which)
    return alone, whole[len(alone) :]


def first_token(prompts: PromptBuilder, which: str) -> int:
    """The token that a text begins with where nothing stands before it: the beginning of texts, else their end.

    Raises:
        PromptError: the checkpoint names neither.

    """
    for name in ("bos_token", "eos_token"):
        found = prompts.tokenizer.named(name)
        if found is not None:
            return found
    raise PromptError(f"{which} is empty, and the checkpoint names no token that texts begin or end with")
