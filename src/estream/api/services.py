"""What a model does with texts: scores, labels, ranks and embeddings, each for one text or for many."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack, overload

import numpy as np

from estream.api.result import Prefill, Reading, TopToken
from estream.engine.wanted import Request
from estream.errors import OptionError, PromptError
from estream.services.classify import Classification, Classifier, ClassifyOptions, Normalise
from estream.services.embed import Embedder, Embedding, EmbedOptions, Pooling
from estream.services.jobs import answer
from estream.services.keywords import ClassifyKeywords, EmbedKeywords, RerankKeywords, ScoreKeywords
from estream.services.pairs import Ids
from estream.services.rerank import Ranking, Reranker, RerankOptions, RerankTemplate
from estream.services.score import Score, Scored, ScoreOptions, score_job
from estream.text.segments import PromptBuilder, TextRule

_Documents = Sequence[str]


class TextServices(ABC):
    """Needs a model that reads requests (:class:`estream.services.port.Reader`)."""

    @property
    @abstractmethod
    def prompts(self) -> PromptBuilder: ...

    @property
    @abstractmethod
    def about(self) -> Mapping[str, Any]: ...

    @abstractmethod
    def fits(self, requests: Sequence[Request]) -> bool: ...

    @abstractmethod
    def read(self, requests: Sequence[Request]) -> list[Reading]: ...

    @overload
    def score(
        self, given: str | tuple[str, str] | tuple[Ids, Ids] | Sequence[int] | np.ndarray, **options: Unpack[ScoreKeywords]
    ) -> Score: ...
    @overload
    def score(
        self, given: list[str] | list[tuple[str, str]] | list[tuple[Ids, Ids]] | list[Scored], **options: Unpack[ScoreKeywords]
    ) -> list[Score]: ...
    def score(
        self, given: Any, *, greedy: bool = False, allow_special: bool = False, truncate: bool = False
    ) -> Score | list[Score]:
        """Log-probabilities of a text's tokens, or of a continuation's behind its context.

        Args:
            given: a text or its ids; a tuple of a context and its continuation, both texts or both ids; or a list of such.
            greedy: also tell whether each token was the likeliest.
            allow_special: special tokens that a text spells out are meant; else they are characters.
            truncate: what is too long is shortened: a text at its end, a context at its start.

        Raises:
            PromptError: one is empty, too long or of another kind; the message says which.
            Others: as :meth:`Model.prefill`.

        """
        options = ScoreOptions(TextRule(allow_special, truncate), greedy)
        if _is_one(given):
            return answer(self, [score_job(self, given, options, "the text")])[0]
        return answer(self, [score_job(self, each, options, f"text {i}") for i, each in enumerate(given)])

    @overload
    def classify(self, texts: str, labels: Sequence[str] = ..., **options: Unpack[ClassifyKeywords]) -> Classification: ...
    @overload
    def classify(
        self, texts: list[str] | tuple[str, ...], labels: Sequence[str] = ..., **options: Unpack[ClassifyKeywords]
    ) -> list[Classification]: ...
    def classify(
        self,
        texts: str | Sequence[str],
        labels: Sequence[str] = (),
        *,
        label_token_ids: Sequence[int] = (),
        template: str = "{text}",
        normalise: Normalise = "sum",
        prior: bool | str = False,
        allow_special: bool = False,
        truncate: bool = False,
    ) -> Classification | list[Classification]:
        """Which label follows a text, by the probabilities of all of its tokens.

        Args:
            texts: one text, or many.
            labels: whole strings, no two equal.
            label_token_ids: instead, single tokens by their ids.
            template: the prompt, with ``{text}`` once and, where wanted, ``{labels}``; spaces at its end belong to the labels.
            normalise: compare log-probabilities as they are ("sum"), by token ("mean") or by byte ("bytes").
            prior: less what the label gets without a text (True), or with this neutral one.
            allow_special: special tokens that a text spells out are meant; else they are characters.
            truncate: a text that is too long is shortened at its end.

        Raises:
            OptionError: labels, template or normalisation cannot be used.
            PromptError: a text is too long; the message says which.
            Others: as :meth:`Model.prefill`.

        """
        if isinstance(labels, str):
            raise OptionError("labels must be a list of texts, not one text")
        rule = TextRule(allow_special, truncate)
        options = ClassifyOptions(tuple(labels), tuple(label_token_ids), template, normalise, prior, rule)
        classifier = Classifier(self, options)
        if (job := classifier.prior_job()) is not None:
            answer(self, [job])
        if isinstance(texts, str):
            return answer(self, [classifier.job(texts, "the text")])[0]
        return answer(self, [classifier.job(text, f"text {i}") for i, text in enumerate(texts)])

    @overload
    def rerank(self, query: str, documents: _Documents, **options: Unpack[RerankKeywords]) -> Ranking: ...
    @overload
    def rerank(
        self, query: list[str] | tuple[str, ...], documents: Sequence[_Documents], **options: Unpack[RerankKeywords]
    ) -> list[Ranking]: ...
    def rerank(
        self,
        query: str | Sequence[str],
        documents: _Documents | Sequence[_Documents],
        *,
        top: int | None = None,
        template: str | RerankTemplate = "qwen3-reranker",
        instruct: str | None = None,
        allow_special: bool = False,
        truncate: bool = False,
    ) -> Ranking | list[Ranking]:
        """Documents by how well they answer a query: P(yes) / (P(yes) + P(no)).

        Args:
            query: one query, or many.
            documents: its documents; of many queries, those of each.
            top: so many of the best are told; None for all.
            template: the name of a known one, the path of a JSON file, or a :class:`RerankTemplate`.
            instruct: what relevance means; None for the template's default.
            allow_special: special tokens that a query or document spells out are meant; else they are characters.
            truncate: a document that is too long is shortened at its end.

        Raises:
            OptionError: the template does not suit this model.
            PromptError: a document is too long, or there is none; the message says which.
            Others: as :meth:`Model.prefill`.

        """
        reranker = Reranker(self, RerankOptions(template, instruct, top, TextRule(allow_special, truncate)))
        one = isinstance(query, str)
        queries: Any = [query] if one else query
        lists: Any = [documents] if one else documents
        if len(queries) != len(lists):
            raise PromptError(f"there are {len(queries)} queries, but documents for {len(lists)}")
        jobs = []
        for number, (asked, found) in enumerate(zip(queries, lists, strict=True)):
            of = "" if one else f" of query {number}"
            if isinstance(found, str) or not len(found):
                raise PromptError(f"the documents{of} must be a list of at least one text")
            jobs += [reranker.job(asked, each, i, f"document {i}{of}") for i, each in enumerate(found)]
        answers = iter(answer(self, jobs))
        rankings = [reranker.ranking([next(answers) for _ in found]) for found in lists]
        return rankings[0] if one else rankings

    @overload
    def embed(self, texts: str | Sequence[int] | np.ndarray, **options: Unpack[EmbedKeywords]) -> Embedding: ...
    @overload
    def embed(self, texts: list[str] | tuple[str, ...] | list[Ids], **options: Unpack[EmbedKeywords]) -> list[Embedding]: ...
    def embed(
        self,
        texts: Any,
        *,
        pooling: Pooling | None = None,
        dimensions: int | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        allow_special: bool = False,
        truncate: bool = False,
    ) -> Embedding | list[Embedding]:
        """One vector of length 1 for a text.

        Args:
            texts: a text or its ids, or a list of such.
            pooling: "last" or "mean"; None as the checkpoint says, else the last token.
            dimensions: so many of the first values are kept; None for all.
            prompt: a text before each text.
            prompt_name: instead, one that the checkpoint names.
            allow_special: special tokens that a text spells out are meant; else they are characters.
            truncate: a text that is too long is shortened at its end.

        Raises:
            OptionError: an option does not suit this model.
            PackageError: the checkpoint's own pooling is not known.
            PromptError: a text is empty or too long; the message says which.
            Others: as :meth:`Model.prefill`.

        """
        options = EmbedOptions(pooling, dimensions, prompt, prompt_name, TextRule(allow_special, truncate))
        embedder = Embedder(self, options)
        if _is_one(texts):
            return answer(self, [embedder.job(texts, "the text")])[0]
        return answer(self, [embedder.job(text, f"text {i}") for i, text in enumerate(texts)])

    def top(self, result: Prefill, count: int) -> list[TopToken]:
        """The ``count`` likeliest next tokens, likeliest first.

        Raises:
            OptionError: ``count`` is below 1, or the result holds several positions.

        """
        if count < 1 or result.logits.ndim != 1:
            raise OptionError(f"top needs a count of at least 1 and the logits of one position, not {result.logits.shape}")
        logprobs = result.log_probabilities()
        order = np.argsort(-logprobs, kind="stable")[: min(count, len(logprobs))]
        piece = self.prompts.tokenizer.piece
        return [TopToken(int(i), piece(int(i)), float(logprobs[i])) for i in order]


def _is_one(given: Any) -> bool:
    """Whether this is one text, one sequence of ids or one pair, and no list of such."""
    if isinstance(given, str | tuple) or (isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind in "iu"):
        return True
    if isinstance(given, Iterable) and isinstance(given, Sequence) and len(given):
        return isinstance(given[0], int | np.integer)
    return False
