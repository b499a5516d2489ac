"""Keywords of the services, for type checkers: what each means stands at the method."""

from typing import TypedDict

from estream.services.classify import Normalise
from estream.services.embed import Pooling
from estream.services.rerank import RerankTemplate


class _Text(TypedDict, total=False):
    allow_special: bool
    truncate: bool


class ScoreKeywords(_Text, total=False):
    """Of ``score``."""

    greedy: bool


class ClassifyKeywords(_Text, total=False):
    """Of ``classify``."""

    label_token_ids: "list[int] | tuple[int, ...]"
    template: str
    normalise: Normalise
    prior: bool | str


class RerankKeywords(_Text, total=False):
    """Of ``rerank``."""

    top: int | None
    template: str | RerankTemplate
    instruct: str | None


class EmbedKeywords(_Text, total=False):
    """Of ``embed``."""

    pooling: Pooling | None
    dimensions: int | None
    prompt: str | None
    prompt_name: str | None
