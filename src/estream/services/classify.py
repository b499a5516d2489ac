"""Which of some labels follows a prompt."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from estream.errors import OptionError, PromptError
from estream.services.jobs import Job
from estream.services.label_trie import LabelTrie
from estream.services.pairs import first_token
from estream.services.port import Read, Reader
from estream.services.score import finite_or_none
from estream.services.templates import Template
from estream.text.segments import Built, Segment, TextRule, encode_segments
from estream.text.token_bytes import shown_bytes

if TYPE_CHECKING:
    from estream.api.result import SweepStats

Normalise = Literal["sum", "mean", "bytes"]
#: More labels than anyone tells apart; each costs time for every text.
MOST_LABELS = 100_000


@dataclass(frozen=True)
class LabelScore:
    """A label, its log-probability behind the prompt, and its probability among the labels."""

    label: str
    logprob: float
    probability: float

    def to_json(self) -> dict[str, Any]:
        return {"label": self.label, "logprob": finite_or_none(self.logprob), "probability": self.probability}


@dataclass(frozen=True)
class Classification:
    """The likeliest ``label``, its ``probability`` among the labels, all of them in their order, and ``outside``: the
    probability that none of them follows.
    """

    label: str
    probability: float
    labels: tuple[LabelScore, ...] = field(repr=False)
    outside: float
    prompt_tokens: int
    truncated_tokens: int
    stats: "SweepStats" = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "probability": self.probability,
            "labels": [each.to_json() for each in self.labels],
            "outside": self.outside,
            "prompt_tokens": self.prompt_tokens,
            "truncated_tokens": self.truncated_tokens,
        }


@dataclass(frozen=True)
class ClassifyOptions:
    """How texts are classified.

    Args:
        labels: what may follow, whole strings; or ``label_token_ids``, single tokens by their ids.
        label_token_ids: see ``labels``.
        template: the prompt, with ``{text}`` and, where wanted, ``{labels}``. Spaces at its end belong to the labels.
        normalise: a label's log-probability as it is ("sum"), by token ("mean") or by UTF-8 byte ("bytes").
        prior: less its log-probability behind the same prompt without a text (True) or with another, neutral one.
        rule: how texts become ids.

    """

    labels: tuple[str, ...] = ()
    label_token_ids: tuple[int, ...] = ()
    template: str = "{text}"
    normalise: Normalise = "sum"
    prior: bool | str = False
    rule: TextRule = field(default_factory=TextRule)


class Classifier:
    """Labels and template, tokenized once for all texts."""

    def __init__(self, reader: Reader, options: ClassifyOptions) -> None:
        """Raises OptionError where labels, template or normalisation cannot be used."""
        self._prompts, self._options = reader.prompts, options
        self._template = Template(options.template, "text", ("text", "labels"))
        self._template.check(["text"])
        if options.normalise not in get_args(Normalise):
            raise OptionError(f"normalise must be {' or '.join(get_args(Normalise))}, not {options.normalise!r}")
        if bool(options.labels) == bool(options.label_token_ids):
            raise OptionError("give either labels or label_token_ids")
        if len(options.labels or options.label_token_ids) > MOST_LABELS:
            raise OptionError(f"more than {MOST_LABELS} labels")
        if isinstance(options.labels, str) or not all(isinstance(label, str) for label in options.labels):
            raise OptionError("labels must be a list of texts")
        vocabulary = reader.prompts.config.vocabulary
        if bad := [token for token in options.label_token_ids if not 0 <= token < vocabulary]:
            raise OptionError(f"label_token_ids has {bad[0]}, the vocabulary is 0..{vocabulary - 1}")
        bare = self._template.tail.rstrip()
        # What a template ends with alone says where labels begin: their tokens are the same behind every text.
        self._tail = bare if options.labels else self._template.tail
        tokens = [self._label(label, bare) for label in options.labels] or [[token] for token in options.label_token_ids]
        tell = reader.prompts.tokenizer.bytes_of
        self._names = options.labels or tuple(shown_bytes(tell(token)) for token in options.label_token_ids)
        self._trie = LabelTrie.of(tokens, self._names)
        size = {
            "sum": [1] * len(tokens),
            "mean": [len(each) for each in tokens],
            "bytes": [max(len(name.encode()), 1) for name in self._names],
        }
        self._sizes = np.array(size[options.normalise], np.float64)
        self._prior: np.ndarray | None = None

    def _label(self, label: str, bare: str) -> list[int]:
        spaces = self._template.tail[len(bare) :]
        # Whoever chose the labels means their special tokens.
        rule, check = self._options.rule, self._prompts.check
        whole = encode_segments(self._prompts.tokenizer, [Segment(bare + spaces + label)], rule, "a label", check)
        alone = len(encode_segments(self._prompts.tokenizer, [Segment(bare)], rule, "the template", check)) if bare else 0
        return [int(token) for token in whole[alone:]]

    def prior_job(self) -> Job[None] | None:
        """What must be read before all texts; None without a prior."""
        if self._options.prior is False:
            return None
        neutral = self._options.prior if isinstance(self._options.prior, str) else ""
        built = self._built(neutral, "the prompt of the prior")

        def finish(readings: Sequence[Read]) -> None:
            self._prior = self._trie.log_probabilities(readings)

        return Job(self._trie.requests(built.ids), finish)

    def job(self, text: str, which: str) -> Job[Classification]:
        """What to read for a text. Raises PromptError where it is too long or no text."""
        if not isinstance(text, str):
            raise PromptError(f"{which} must be a text, not {type(text).__name__}")
        built = self._built(text, which)

        def finish(readings: Sequence[Read]) -> Classification:
            return self._classification(self._trie.log_probabilities(readings), built, readings[0].stats)

        return Job(self._trie.requests(built.ids), finish)

    def _built(self, text: str, which: str) -> Built:
        values = {"text": text, "labels": ", ".join(self._names)}
        segments = self._template.segments(values, own=("labels",), tail=self._tail)
        built = self._prompts.build(segments, self._options.rule, which, room=self._trie.longest)
        if len(built.ids):
            return built
        return Built(np.array([first_token(self._prompts, which)], np.int32), built.truncated_tokens)

    def _classification(self, logprobs: np.ndarray, built: Built, stats: "SweepStats") -> Classification:
        scores = logprobs if self._prior is None else logprobs - self._prior
        scores = scores / self._sizes
        # A label of probability zero has none here either, whatever its prior.
        scores = np.where(np.isneginf(logprobs), -np.inf, scores)
        best = int(scores.argmax())
        if np.isneginf(scores[best]):
            probabilities = np.full(len(scores), 1 / len(scores))
        else:
            # By addition in the labels' order, whatever their number.
            chances = np.exp(scores - scores[best])
            probabilities = chances / chances.sum()
        labels = tuple(
            LabelScore(name, float(logprob), float(probability))
            for name, logprob, probability in zip(self._names, logprobs, probabilities, strict=True)
        )
        outside = max(0.0, 1.0 - float(np.exp(logprobs).sum()))
        return Classification(
            self._names[best], float(probabilities[best]), labels, outside, len(built.ids), built.truncated_tokens, stats
        )
