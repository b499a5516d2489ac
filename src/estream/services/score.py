"""Log-probabilities of texts, and of what may follow a text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from estream.engine.wanted import ALL, Hidden, Likeliest, LogProbabilities, Request
from estream.errors import PromptError
from estream.services.jobs import Job
from estream.services.pairs import Ids, Pair, ids_of, pair_of
from estream.services.port import Read, Reader
from estream.text.segments import TextRule, document
from estream.text.token_bytes import shown_bytes

if TYPE_CHECKING:
    from estream.api.result import SweepStats

#: A text or its ids, or a context and its continuation.
Scored = str | Ids | tuple[str, str] | tuple[Ids, Ids]


def finite_or_none(value: float) -> float | None:
    """JSON has no infinity: a probability of zero is null there."""
    return value if np.isfinite(value) else None


@dataclass(frozen=True)
class TokenScore:
    """A token, its text (``bytes:`` and escapes for a part of a character), its bytes, and its log-probability after all
    before it; None for a text's first token, which nothing stands before.
    """

    id: int
    token: str
    bytes: bytes
    logprob: float | None

    def to_json(self) -> dict[str, Any]:
        logprob = None if self.logprob is None else finite_or_none(self.logprob)
        return {"id": self.id, "token": self.token, "bytes": list(self.bytes), "logprob": logprob}


@dataclass(frozen=True)
class Score:
    """The log-likelihood of a text, or of a continuation: ``logprob`` is the sum over its tokens.

    ``logprob_per_byte`` divides by the UTF-8 bytes of what is scored; both averages are None where nothing is.
    ``greedy``: whether each token was the likeliest; None where it was not asked for.
    """

    logprob: float
    logprob_per_token: float | None
    logprob_per_byte: float | None
    tokens: tuple[TokenScore, ...] = field(repr=False)
    prompt_tokens: int
    truncated_tokens: int
    greedy: bool | None
    stats: "SweepStats" = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        averages = {
            name: None if value is None else finite_or_none(value)
            for name, value in (("logprob_per_token", self.logprob_per_token), ("logprob_per_byte", self.logprob_per_byte))
        }
        return {
            "logprob": finite_or_none(self.logprob),
            **averages,
            "tokens": [token.to_json() for token in self.tokens],
            "prompt_tokens": self.prompt_tokens,
            "truncated_tokens": self.truncated_tokens,
            **({} if self.greedy is None else {"greedy": self.greedy}),
        }


@dataclass(frozen=True)
class ScoreOptions:
    """``rule``: how texts become ids; ``greedy``: also tell whether each token was the likeliest."""

    rule: TextRule = field(default_factory=TextRule)
    greedy: bool = False


def score_job(reader: Reader, given: Scored, options: ScoreOptions, which: str) -> Job[Score]:
    """What to read for a score, and how it is made of that.

    Raises:
        PromptError: it is empty or too long, or no text, ids or pair of them.

    """
    prompts = reader.prompts
    if isinstance(given, tuple) and len(given) == 2 and not any(isinstance(part, int | np.integer) for part in given):
        context, continuation = cast("tuple[str | Ids, str | Ids]", given)
        pair = pair_of(prompts, context, continuation, options.rule, which)
        ids, first = np.concatenate([pair.context, pair.continuation]), len(pair.context)
        return _job(reader, _Asked(ids, first, first, pair.truncated_tokens, _bytes(reader, continuation, pair)), options)
    if isinstance(given, str):
        built = prompts.build([document(given)], options.rule, which, end=True)
        ids, cut = built.ids, built.truncated_tokens
    else:
        ids, cut = ids_of(prompts, cast("Ids", given), which), 0
        if len(ids) > prompts.context:
            raise PromptError(f"{which} has {len(ids)} tokens, the model's context is {prompts.context} tokens")
    if not len(ids):
        raise PromptError(f"{which} is empty")
    size = sum(len(prompts.tokenizer.bytes_of(int(token))) for token in ids[1:])
    return _job(reader, _Asked(ids, 1, 0, cut, size), options)


def _bytes(reader: Reader, continuation: str | Ids, pair: Pair) -> int:
    if isinstance(continuation, str):
        return len(continuation.encode())
    return sum(len(reader.prompts.tokenizer.bytes_of(int(token))) for token in pair.continuation)


@dataclass(frozen=True)
class _Asked:
    """Ids [tokens], of which those from ``first`` on are scored and those from ``shown`` on are told; their bytes."""

    ids: np.ndarray
    first: int
    shown: int
    truncated_tokens: int
    bytes: int


def _job(reader: Reader, asked: _Asked, options: ScoreOptions) -> Job[Score]:
    following = asked.ids[asked.first :]
    if len(following):
        prompt, at = asked.ids[:-1], range(asked.first - 1, len(asked.ids) - 1)
        requests = [Request(prompt, at, LogProbabilities(following[:, None]))]
        if options.greedy:
            requests.append(Request(prompt, at, Likeliest(1)))
    else:
        # Nothing stands behind a single token; it is read for its statistics, without the head.
        requests = [Request(asked.ids, ALL, Hidden())]

    def finish(readings: Sequence[Read]) -> Score:
        found = readings[0].values["log_probabilities"][:, 0] if len(following) else np.zeros(0, np.float32)
        greedy = None
        if options.greedy:
            greedy = bool((readings[1].values["ids"][:, 0] == following).all()) if len(following) else True
        total = float(found.sum(dtype=np.float64))
        return Score(
            total,
            total / len(following) if len(following) else None,
            total / asked.bytes if asked.bytes else None,
            _tokens(reader, asked, found),
            len(asked.ids),
            asked.truncated_tokens,
            greedy,
            readings[0].stats,
        )

    return Job(tuple(requests), finish)


def _tokens(reader: Reader, asked: _Asked, found: np.ndarray) -> tuple[TokenScore, ...]:
    told = []
    for at in range(asked.shown, len(asked.ids)):
        token = int(asked.ids[at])
        data = reader.prompts.tokenizer.bytes_of(token)
        logprob = None if at < asked.first else float(found[at - asked.first])
        told.append(TokenScore(token, shown_bytes(data), data, logprob))
    return tuple(told)


__all__ = ["Score", "ScoreOptions", "Scored", "TokenScore", "finite_or_none", "score_job"]
