"""Estimates of the sweeps that have run, and whether they came true."""

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from estream.configurator import store
from estream.configurator.configure import ChosenConfiguration
from estream.configurator.simulate import SweepEstimate
from estream.configurator.upkeep import noted
from estream.engine.batch import BatchShape
from estream.host.busy import Counters, between, count

#: Shorter sweeps are not estimated: that would cost a noticeable part of them.
_SHORTEST_S = 1.0
#: Shapes whose estimate is kept, and sweeps that wait to be judged.
_KEPT, _WAITING = 64, 16

#: Gives the TTFT in seconds that the configurator expects, None where it cannot tell.
Estimate = Callable[[], float | None]


class SweepEstimates:
    """Estimates sweeps when somebody asks for the figure, or when the model is closed: never while a caller waits.

    Whether they came true is remembered beside the profile, for the loads to come.
    """

    def __init__(self, chosen: ChosenConfiguration, path: Path, now: Callable[[], float] = time.time) -> None:
        """Sweeps read from the disk that holds ``path``."""
        self._chosen, self._path, self._now = chosen, path, now
        self._lock = threading.Lock()
        self._waiting: deque[tuple[BatchShape, float, frozenset[int], bool]] = deque(maxlen=_WAITING)
        self._before: Counters | None = None
        self._deviated = False
        self._estimated = lru_cache(maxsize=_KEPT)(self._estimate)

    def begin(self) -> None:
        """A sweep begins: what others do from now on is beside it."""
        if self._chosen.simulator is not None:
            self._before = count(self._path)

    def of_sweep(self, shape: BatchShape, ttft_s: float, resident: frozenset[int]) -> Estimate:
        """Take note of a sweep that has ended, and of the pages that it did not read; returns what estimates it."""
        if self._chosen.simulator is None or ttft_s < _SHORTEST_S:
            return _unknown
        busy = self._before is not None and between(self._before, count(self._path)).busy
        self._waiting.append((shape, ttft_s, resident, busy))

        def estimate() -> float | None:
            self.judge()
            return self._estimated(shape, resident)

        return estimate

    def of_next(self, shape: BatchShape) -> SweepEstimate | None:
        """A sweep to come, with all pinned pages in the arena; None where this machine was not measured."""
        simulator = self._chosen.simulator
        return None if simulator is None else simulator.estimate(self._chosen.configuration, shape, repeated=True)

    def judge(self) -> None:
        """Compare the sweeps so far with their estimates, in their order, and remember a run that were all slower or faster."""
        with self._lock:
            if not self._waiting:
                return
            known = upkeep = store.find_upkeep(self._chosen.key)
            while self._waiting:
                shape, ttft_s, resident, busy = self._waiting.popleft()
                ratio = ttft_s / max(self._estimated(shape, resident), 1e-9)
                after = noted(upkeep, ratio, busy, not self._deviated, self._now())
                self._deviated |= after is not upkeep and after.run is not None
                upkeep = after
            if upkeep != known:
                store.keep_upkeep(self._chosen.key, upkeep)

    def _estimate(self, shape: BatchShape, resident: frozenset[int]) -> float:
        assert self._chosen.simulator is not None
        return self._chosen.simulator.estimate(self._chosen.configuration, shape, resident=resident).ttft_s


def _unknown() -> float | None:
    return None
