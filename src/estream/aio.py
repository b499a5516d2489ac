"""Awaitable twins of the services: ``await estream.aio.score(model, ...)``. A thread works, the event loop goes on.

Cancelling the task stops the sweep that it waits for, and begins no further one.
"""

import asyncio
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from estream.api.model import Model
from estream.api.result import Reading
from estream.api.services import TextServices
from estream.engine.wanted import Request
from estream.errors import CancelledError
from estream.text.segments import PromptBuilder

T = TypeVar("T")
#: How often a sweep is told to stop, in seconds: one that has not begun yet does not hear it.
_AGAIN_S = 0.02
_TURNS: "weakref.WeakKeyDictionary[Model, threading.Lock]" = weakref.WeakKeyDictionary()


class _Turn(TextServices):
    """A model for one task, whose sweeps wait for those of other tasks."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._turn = _TURNS.setdefault(model, threading.Lock())
        self._lock = threading.Lock()
        self._cancelled = self._reading = False

    @property
    def prompts(self) -> PromptBuilder:
        return self._model.prompts

    @property
    def about(self) -> Mapping[str, Any]:
        return self._model.about

    def fits(self, requests: Sequence[Request]) -> bool:
        return self._model.fits(requests)

    def read(self, requests: Sequence[Request]) -> list[Reading]:
        with self._turn:
            with self._lock:
                if self._cancelled:
                    raise CancelledError("the task that asked was cancelled")
                self._reading = True
            try:
                return self._model.read(requests)
            finally:
                with self._lock:
                    self._reading = False

    def cancel(self) -> None:
        """Stop this task's own sweep, if one runs."""
        with self._lock:
            self._cancelled = True
            if self._reading:
                self._model.cancel()


async def _offload(model: Model, call: Callable[[_Turn], T]) -> T:
    turn = _Turn(model)
    work = asyncio.ensure_future(asyncio.to_thread(call, turn))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            turn.cancel()
            await asyncio.wait([work], timeout=_AGAIN_S)
        work.exception()
        raise


async def score(model: Model, given: Any, **options: Any) -> Any:
    """As :meth:`Model.score`."""
    return await _offload(model, lambda turn: turn.score(given, **options))


async def classify(model: Model, texts: Any, labels: Sequence[str] = (), **options: Any) -> Any:
    """As :meth:`Model.classify`."""
    return await _offload(model, lambda turn: turn.classify(texts, labels, **options))


async def rerank(model: Model, query: Any, documents: Any, **options: Any) -> Any:
    """As :meth:`Model.rerank`."""
    return await _offload(model, lambda turn: turn.rerank(query, documents, **options))


async def embed(model: Model, texts: Any, **options: Any) -> Any:
    """As :meth:`Model.embed`."""
    return await _offload(model, lambda turn: turn.embed(texts, **options))


__all__ = ["classify", "embed", "rerank", "score"]
