"""What a model says of batches without reading them: whether it can, and for how long it would."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from estream.configurator.estimates import SweepEstimates
from estream.configurator.simulate import SweepEstimate
from estream.engine.batch import Batch, BatchShape, make_batch
from estream.engine.memory import ModelMemory
from estream.engine.sweep_plan import SweepSetup
from estream.engine.wanted import LogProbabilities, Request
from estream.package.package import Package
from estream.scheduler.port import Prepared
from estream.text.tokenizer import TextTokenizer


class BatchCalls(ABC):
    """Calls that read no page."""

    _package: Package
    _tokenizer: TextTokenizer
    _memory: ModelMemory
    _shares_prefixes: bool
    _setup: SweepSetup
    _estimates: SweepEstimates

    @abstractmethod
    def _check_usable(self) -> None: ...

    def _batch(self, requests: Sequence[Request]) -> Batch:
        config, share = self._package.manifest.config, self._shares_prefixes
        return make_batch(requests, self._tokenizer, config, self._memory.check_scratch, share_prefixes=share)

    def prepare(self, requests: Sequence[Request]) -> Prepared:
        """Tokenize requests, and check all that can be refused before a sweep. Raises as :meth:`Model.read` does."""
        self._check_usable()
        batch = self._batch(requests)
        self._memory.check(batch.shape)
        kept = tuple(_kept(request, batch.prompt_ids(i)) for i, request in enumerate(requests))
        return Prepared(kept, batch.prompt_tokens)

    def fits(self, requests: Sequence[Request]) -> bool:
        """Whether one sweep reads these requests well: within the budget, and leaving all pages in memory where they are."""
        shape = self._batch(requests).shape
        return self._memory.fits(shape) and self._memory.keeps_pages(self._setup.arena, shape)

    def room_for(self, requests: Sequence[Request]) -> BatchShape | None:
        """What one sweep over these requests depends on; None where the budget is below its floor. Raises PromptError."""
        shape = self._batch(requests).shape
        return shape if self._memory.fits(shape) else None

    def expect(self, shape: BatchShape) -> SweepEstimate | None:
        """Estimate a sweep, in some hundredths of a second; None where this machine was not measured for the package, or
        where the budget is below the floor.
        """
        return self._estimates.of_next(shape) if self._memory.fits(shape) else None


def _kept(request: Request, ids: np.ndarray) -> Request:
    """The request with nothing in it that its caller may change."""
    positions, wanted = request.positions, request.wanted
    if positions is not None and not isinstance(positions, str):
        positions = tuple(positions)
    if isinstance(wanted, LogProbabilities):
        wanted = LogProbabilities(np.array(wanted.ids))
    return Request(ids, positions, wanted)
