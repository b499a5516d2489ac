"""One vector for a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import numpy as np
from msgspec import Meta, Struct

from estream.engine.wanted import ALL, Hidden, Request
from estream.errors import OptionError, PackageError, PromptError
from estream.package.about import MODULES, POOLING, SENTENCE_TRANSFORMERS
from estream.schema import SchemaError, from_plain
from estream.services.jobs import Job
from estream.services.pairs import Ids, ids_of
from estream.services.port import Read, Reader
from estream.text.segments import Segment, TextRule, document

if TYPE_CHECKING:
    from estream.api.result import SweepStats

Pooling = Literal["last", "mean"]
_MODULES = ("Transformer", "Pooling", "Normalize")
_OTHERS = ("cls_token", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens")


@dataclass(frozen=True)
class Embedding:
    """``vector`` float32 [dimensions], of length 1."""

    vector: np.ndarray = field(repr=False)
    prompt_tokens: int
    truncated_tokens: int
    stats: "SweepStats" = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "vector": self.vector.tolist(),
            "prompt_tokens": self.prompt_tokens,
            "truncated_tokens": self.truncated_tokens,
        }


@dataclass(frozen=True)
class EmbedOptions:
    """How texts become vectors.

    Args:
        pooling: "last" for the last token's hidden state, "mean" for the mean of all; None as the checkpoint says, else last.
        dimensions: so many of the first values are kept, then brought to length 1 again; None for all.
        prompt: a text before each text; or with ``prompt_name`` one that the checkpoint names, such as "query".
        prompt_name: see ``prompt``.
        rule: how texts become ids.

    """

    pooling: Pooling | None = None
    dimensions: int | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    rule: TextRule = field(default_factory=TextRule)


class _Pooling(Struct):
    """``1_Pooling/config.json`` as sentence-transformers writes it; other keys are others' matter."""

    pooling_mode_lasttoken: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_cls_token: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    include_prompt: bool = True


class _Prompts(Struct):
    """``config_sentence_transformers.json``, as far as it is used."""

    prompts: dict[Annotated[str, Meta(max_length=256)], Annotated[str, Meta(max_length=65_536)]] = {}
    default_prompt_name: str | None = None


class Embedder:
    """Options held against what came with the checkpoint."""

    def __init__(self, reader: Reader, options: EmbedOptions) -> None:
        """Raises OptionError where an option does not suit this model, PackageError where the checkpoint's own do not."""
        self._prompts, self._options = reader.prompts, options
        if options.pooling not in (None, *get_args(Pooling)):
            raise OptionError(f"pooling must be {' or '.join(get_args(Pooling))}, not {options.pooling!r}")
        hidden = reader.prompts.config.hidden
        if options.dimensions is not None and not 1 <= options.dimensions <= hidden:
            raise OptionError(f"dimensions must be 1 to {hidden}, this model's hidden state, not {options.dimensions}")
        self._mean = (options.pooling or pooling_of(reader.about)) == "mean"
        self._before = self._prompt(reader.about)

    def _prompt(self, about: Mapping[str, Any]) -> str:
        if self._options.prompt is not None:
            return self._options.prompt
        known = _read(about, SENTENCE_TRANSFORMERS, _Prompts)
        name = self._options.prompt_name or known.default_prompt_name
        if name is None:
            return ""
        if name not in known.prompts:
            there = ", ".join(sorted(known.prompts)) or "none"
            raise OptionError(f"the checkpoint names no prompt {name!r}; there are: {there}")
        return str(known.prompts[name])

    def job(self, text: str | Ids, which: str) -> Job[Embedding]:
        """What to read for a text. Raises PromptError where it is empty, too long, or neither text nor ids."""
        if isinstance(text, str):
            parts = [Segment(self._before), document(text)]
            built = self._prompts.build(parts, self._options.rule, which, end=True)
            ids, cut = built.ids, built.truncated_tokens
        else:
            ids, cut = ids_of(self._prompts, text, which), 0
        if not len(ids):
            raise PromptError(f"{which} is empty")

        def finish(readings: Sequence[Read]) -> Embedding:
            found = readings[0].values["hidden"].reshape(-1)
            return Embedding(unit(found, self._options.dimensions), len(ids), cut, readings[0].stats)

        wanted = Request(ids, ALL, Hidden(mean=True)) if self._mean else Request(ids, None, Hidden())
        return Job((wanted,), finish)


def unit(values: np.ndarray, dimensions: int | None) -> np.ndarray:
    """The first ``dimensions`` values at length 1, float32; zeros stay zeros."""
    kept = values[:dimensions].astype(np.float64)
    length = np.sqrt((kept * kept).sum())
    return np.asarray((kept / length if length else kept).astype(np.float32))


def pooling_of(about: Mapping[str, Any]) -> Pooling:
    """What the checkpoint's files say; the last token where they say nothing.

    Raises:
        PackageError: they say something that is not known.

    """
    modules = about.get(MODULES) or []
    for module in modules if isinstance(modules, list) else ():
        kind = str(module.get("type")).rpartition(".")[2] if isinstance(module, dict) else "no object"
        if kind not in _MODULES:
            known = ", ".join(_MODULES)
            raise PackageError(f"{MODULES} has a module {kind!r}; known are {known}: choose a pooling to leave it out")
    if not about.get(POOLING):
        return "last"
    found = _read(about, POOLING, _Pooling)
    if bad := [name for name in _OTHERS if getattr(found, f"pooling_mode_{name}")]:
        raise PackageError(f"pooling.json asks for pooling_mode_{bad[0]}; known are lasttoken and mean_tokens: choose one")
    if not found.include_prompt and found.pooling_mode_mean_tokens:
        raise PackageError("pooling.json leaves the prompt out of the mean, which is not known; choose a pooling")
    if found.pooling_mode_mean_tokens == found.pooling_mode_lasttoken:
        raise PackageError("pooling.json must ask for one of lasttoken and mean_tokens; choose one")
    return "mean" if found.pooling_mode_mean_tokens else "last"


def _read(about: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    try:
        return from_plain(about.get(name) or {}, kind)
    except SchemaError as error:
        raise PackageError(f"{name}: {error}; convert the model again") from error
