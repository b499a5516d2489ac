"""estream: prefill of Mixture-of-Experts models many times larger than the memory it may use."""

import importlib
from typing import TYPE_CHECKING, Any

from estream import errors
from estream.errors import EstreamError

if TYPE_CHECKING:
    from estream.api.load import load
    from estream.api.model import Model
    from estream.api.plan import Plan, plan, tune
    from estream.api.result import Prefill, Reading, TopToken
    from estream.conversion.convert import ConvertOptions, convert
    from estream.engine.wanted import ALL, Among, Hidden, Likeliest, Logits, LogProbabilities, Request
    from estream.host.version import VERSION as __version__  # noqa: N811
    from estream.scheduler.scheduler import Scheduler
    from estream.scheduler.ticket import Ticket
    from estream.services.classify import Classification
    from estream.services.embed import Embedding
    from estream.services.rerank import Ranking, RerankTemplate
    from estream.services.score import Score

# Imported at first use: the command line starts before them, so that an interrupt meanwhile ends in one line.
_MODULES = {
    "ALL": "engine.wanted",
    "Among": "engine.wanted",
    "Classification": "services.classify",
    "ConvertOptions": "conversion.convert",
    "Embedding": "services.embed",
    "Hidden": "engine.wanted",
    "Likeliest": "engine.wanted",
    "LogProbabilities": "engine.wanted",
    "Logits": "engine.wanted",
    "Model": "api.model",
    "Plan": "api.plan",
    "Prefill": "api.result",
    "Ranking": "services.rerank",
    "Reading": "api.result",
    "Request": "engine.wanted",
    "RerankTemplate": "services.rerank",
    "Score": "services.score",
    "Scheduler": "scheduler.scheduler",
    "Ticket": "scheduler.ticket",
    "TopToken": "api.result",
    "convert": "conversion.convert",
    "load": "api.load",
    "plan": "api.plan",
    "tune": "api.plan",
}

__all__ = [
    "ALL",
    "Among",
    "Classification",
    "ConvertOptions",
    "Embedding",
    "EstreamError",
    "Hidden",
    "Likeliest",
    "LogProbabilities",
    "Logits",
    "Model",
    "Plan",
    "Prefill",
    "Ranking",
    "Reading",
    "Request",
    "RerankTemplate",
    "Scheduler",
    "Score",
    "Ticket",
    "TopToken",
    "__version__",
    "convert",
    "errors",
    "load",
    "plan",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value = importlib.import_module("estream.host.version").VERSION
    elif name in _MODULES:
        value = getattr(importlib.import_module(f"estream.{_MODULES[name]}"), name)
    else:
        raise AttributeError(f"module 'estream' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
