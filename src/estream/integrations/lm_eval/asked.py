"""Requests of lm-eval as jobs: what is read once for several, and in which order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from estream.engine.wanted import Likeliest, LogProbabilities, Request
from estream.services.jobs import Job
from estream.services.port import Read, Reader
from estream.text.segments import PromptBuilder

#: A continuation's log-probability, and whether each of its tokens is the likeliest.
Answer = tuple[float, bool]


@dataclass(frozen=True, eq=False)
class Asked:
    """A request by its ``index``: int32 ``ids`` [tokens], of which the last ``scored`` are the continuation."""

    index: int
    ids: np.ndarray
    scored: int

    @property
    def context(self) -> bytes:
        return self.ids[: -self.scored].tobytes()

    @property
    def read(self) -> tuple[bytes, int]:
        """Requests of which this is equal are read as one: they differ in the last token alone."""
        return self.ids[:-1].tobytes(), self.scored


@dataclass(frozen=True)
class BoundedReader:
    """A model whose sweeps have at most so many ``tokens``."""

    model: Reader
    tokens: int | None

    @property
    def prompts(self) -> PromptBuilder:
        return self.model.prompts

    @property
    def about(self) -> Mapping[str, Any]:
        return self.model.about

    def fits(self, requests: Sequence[Request]) -> bool:
        total = sum(len(request.prompt) for request in requests)
        return (self.tokens is None or total <= self.tokens) and self.model.fits(requests)

    def read(self, requests: Sequence[Request]) -> Sequence[Read]:
        return self.model.read(requests)


def in_order(asked: Sequence[Asked]) -> Iterator[list[Asked]]:
    """Requests that are read as one, together; the longest first, and those of one context side by side."""
    contexts: dict[bytes, list[Asked]] = {}
    for each in asked:
        contexts.setdefault(each.context, []).append(each)
    for same in sorted(contexts.values(), key=lambda group: -max(len(each.ids) for each in group)):
        reads: dict[tuple[bytes, int], list[Asked]] = {}
        for each in sorted(same, key=lambda each: -len(each.ids)):
            reads.setdefault(each.read, []).append(each)
        yield from reads.values()


def job_of(group: Sequence[Asked]) -> Job[list[tuple[int, Answer]]]:
    """What to read for requests that are read as one; its answer is theirs by index."""
    first = group[0]
    prompt = first.ids[:-1]
    at = range(len(prompt) - first.scored, len(prompt))
    following = np.stack([each.ids[-each.scored :] for each in group], axis=1)  # [scored, requests]
    requests = (Request(prompt, at, LogProbabilities(following)), Request(prompt, at, Likeliest(1)))

    def finish(readings: Sequence[Read]) -> list[tuple[int, Answer]]:
        sums = readings[0].values["log_probabilities"].sum(axis=0, dtype=np.float64)
        greedy = (readings[1].values["ids"] == following).all(axis=0)
        return [(each.index, (float(a), bool(b))) for each, a, b in zip(group, sums, greedy, strict=True)]

    return Job(requests, finish)
