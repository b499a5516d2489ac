"""What the services need of a model."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from estream.engine.wanted import Request
from estream.text.segments import PromptBuilder

if TYPE_CHECKING:
    from estream.api.result import SweepStats


class Read(Protocol):
    """What a request gave (:class:`estream.Reading`)."""

    @property
    def values(self) -> Mapping[str, np.ndarray]: ...

    @property
    def stats(self) -> "SweepStats": ...


class Reader(Protocol):
    """A model that reads requests, and makes prompts of texts."""

    @property
    def prompts(self) -> PromptBuilder: ...

    @property
    def about(self) -> Mapping[str, Any]:
        """JSON files that came with the checkpoint, by their plain names; an empty object stands for an absent one."""
        ...

    def fits(self, requests: Sequence[Request]) -> bool:
        """Whether one sweep may read these requests together."""
        ...

    def read(self, requests: Sequence[Request]) -> Sequence[Read]:
        """Read them in one sweep."""
        ...
