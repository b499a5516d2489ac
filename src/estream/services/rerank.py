"""How well documents answer a query, by a model that says yes or no."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from estream.engine.wanted import Among, Request
from estream.errors import OptionError, PromptError
from estream.host.regular_file import read_regular
from estream.host.sizes import KiB
from estream.schema import Record, decode
from estream.services.jobs import Job
from estream.services.port import Read, Reader
from estream.services.templates import LONGEST_TEMPLATE, Template
from estream.text.segments import Segment, TextRule, encode_segments

if TYPE_CHECKING:
    from estream.api.result import SweepStats

#: Bytes of a template file: JSON may write a character with twelve.
LARGEST_TEMPLATE_FILE = 12 * LONGEST_TEMPLATE + 64 * KiB


class RerankTemplate(Record, frozen=True):
    """A reranker's prompt and its two answers, as a JSON file has them.

    ``text`` has ``{query}``, ``{document}`` and, where the model takes one, ``{instruct}``, whose default is ``instruct``.
    ``yes`` and ``no`` are texts of one token each.
    """

    text: Annotated[str, Meta(max_length=LONGEST_TEMPLATE)]
    instruct: Annotated[str, Meta(max_length=LONGEST_TEMPLATE)] = ""
    yes: Annotated[str, Meta(min_length=1, max_length=64)] = "yes"
    no: Annotated[str, Meta(min_length=1, max_length=64)] = "no"


#: As the model cards of Qwen3-Reranker publish it.
QWEN3_RERANKER = RerankTemplate(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {instruct}\n<Query>: {query}\n'
    "<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "Given a web search query, retrieve relevant passages that answer the query",
)
TEMPLATES = {"qwen3-reranker": QWEN3_RERANKER}


@dataclass(frozen=True)
class RankedDocument:
    """A document by its ``index`` among those given, and its ``score``: P(yes) / (P(yes) + P(no))."""

    index: int
    score: float
    document: str = field(repr=False)
    prompt_tokens: int
    truncated_tokens: int

    def to_json(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "score": self.score,
            "document": self.document,
            "prompt_tokens": self.prompt_tokens,
            "truncated_tokens": self.truncated_tokens,
        }


@dataclass(frozen=True)
class Ranking:
    """Documents for one query, best first, equal ones in the order given."""

    results: tuple[RankedDocument, ...]
    stats: "SweepStats" = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        return {"results": [each.to_json() for each in self.results]}


@dataclass(frozen=True)
class RerankOptions:
    """How documents are ranked.

    Args:
        template: the name of a known one, the path of a JSON file, or the template itself.
        instruct: what relevance means; None for the template's default.
        top: so many of the best are told; None for all.
        rule: how texts become ids.

    """

    template: str | Path | RerankTemplate = "qwen3-reranker"
    instruct: str | None = None
    top: int | None = None
    rule: TextRule = field(default_factory=TextRule)


class Reranker:
    """A template whose answers' ids are known."""

    def __init__(self, reader: Reader, options: RerankOptions) -> None:
        """Raises OptionError where the template does not suit this model."""
        self._prompts, self._options = reader.prompts, options
        template = read_template(options.template)
        self._template = Template(template.text, "document", ("instruct", "query", "document"))
        self._template.check(["query", "document"])
        self._instruct = template.instruct if options.instruct is None else options.instruct
        if options.instruct is not None and "{instruct}" not in template.text:
            raise OptionError("the template has no {instruct}, so an instruction cannot be given")
        if options.top is not None and options.top < 1:
            raise OptionError(f"top must be at least 1, not {options.top}")
        self._answers = (self._answer(template.yes), self._answer(template.no))
        if self._answers[0] == self._answers[1]:
            raise OptionError(f"the template's answers {template.yes!r} and {template.no!r} are the same token")

    def _answer(self, text: str) -> int:
        ids = encode_segments(self._prompts.tokenizer, [Segment(text)], TextRule(), "an answer", self._prompts.check)
        if len(ids) != 1:
            raise OptionError(f"the template's answer {text!r} must be one token of this model, and is {len(ids)}")
        return int(ids[0])

    def job(self, query: str, document: str, index: int, which: str) -> Job["tuple[RankedDocument, SweepStats]"]:
        """What to read for one document. Raises PromptError where it is too long or no text."""
        if not isinstance(query, str) or not isinstance(document, str):
            raise PromptError(f"{which}: query and document must be texts")
        values = {"query": query, "document": document, "instruct": self._instruct}
        built = self._prompts.build(self._template.segments(values, own=("instruct",)), self._options.rule, which)

        def finish(readings: Sequence[Read]) -> "tuple[RankedDocument, SweepStats]":
            score = float(readings[0].values["probabilities"][0, 0])
            ranked = RankedDocument(index, score, document, len(built.ids), built.truncated_tokens)
            return ranked, readings[0].stats

        return Job((Request(built.ids, None, Among(self._answers)),), finish)

    def rank_job(self, query: str, documents: Sequence[str], which: str) -> Job[Ranking]:
        """What to read for a query and all of its documents. Raises PromptError as :meth:`job`."""
        jobs = [self.job(query, each, i, f"{which}: document {i}") for i, each in enumerate(documents)]

        def finish(readings: Sequence[Read]) -> Ranking:
            return self.ranking([job.finish([reading]) for job, reading in zip(jobs, readings, strict=True)])

        return Job(tuple(job.requests[0] for job in jobs), finish)

    def ranking(self, found: Sequence["tuple[RankedDocument, SweepStats]"]) -> Ranking:
        """Documents in their order, each with its sweep's figures."""
        best = sorted((document for document, _ in found), key=lambda each: (-each.score, each.index))
        return Ranking(tuple(best[: self._options.top]), found[-1][1])


def read_template(given: str | Path | RerankTemplate) -> RerankTemplate:
    """A template by its name, from a JSON file, or as it is.

    Raises:
        OptionError: there is no such name or file, or it does not hold a template.

    """
    if isinstance(given, RerankTemplate):
        return given
    if str(given) in TEMPLATES:
        return TEMPLATES[str(given)]
    try:
        return decode(read_regular(Path(given), LARGEST_TEMPLATE_FILE), RerankTemplate)
    except FileNotFoundError as error:
        raise OptionError(f"template {str(given)!r} is neither {', '.join(TEMPLATES)} nor a file") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise OptionError(f"{given}: the template cannot be used ({reason})") from error


__all__ = ["RankedDocument", "Ranking", "RerankOptions", "RerankTemplate", "Reranker", "read_template"]
