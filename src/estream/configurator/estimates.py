"""Estimates of the sweeps that have run, and whether they came true."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import lru_cache

from estream.configurator import store
from estream.configurator.configure import ChosenConfiguration
from estream.engine.batch import BatchShape

#: An estimate that is further off than this is wrong.
WRONG = 0.25
#: Shorter sweeps are not estimated: that would cost a noticeable part of them.
_SHORTEST_S = 1.0
#: Shapes whose estimate is kept, and sweeps that wait to be judged.
_KEPT, _WAITING = 64, 16

logger = logging.getLogger("estream")

#: Gives the TTFT in seconds that the configurator expects, None where it cannot tell.
Estimate = Callable[[], float | None]


class SweepEstimates:
    """Estimates sweeps when somebody asks for the figure, or when the model is closed: never while a caller waits."""

    def __init__(self, chosen: ChosenConfiguration) -> None:
        self._chosen = chosen
        self._lock = threading.Lock()
        self._waiting: deque[tuple[BatchShape, float, bool]] = deque(maxlen=_WAITING)
        self._wrong = 0
        self._estimated = lru_cache(maxsize=_KEPT)(self._estimate)

    def of_sweep(self, shape: BatchShape, ttft_s: float, *, repeated: bool) -> Estimate:
        """Take note of a sweep; returns what estimates it."""
        if self._chosen.simulator is None or ttft_s < _SHORTEST_S:
            return _unknown
        self._waiting.append((shape, ttft_s, repeated))

        def estimate() -> float | None:
            self.judge()
            return self._estimated(shape, repeated)

        return estimate

    def judge(self) -> None:
        """Compare the sweeps so far with their estimates, in their order.

        After two wrong ones in a row the profile is forgotten, so that the next load measures this machine again.
        """
        with self._lock:
            while self._waiting:
                shape, ttft_s, repeated = self._waiting.popleft()
                expected = self._estimated(shape, repeated)
                self._wrong = self._wrong + 1 if abs(expected / ttft_s - 1) > WRONG else 0
                if self._wrong == 2:
                    store.forget(self._chosen.key)
                    logger.warning(
                        "two sweeps in a row took other times than predicted (%.2f s instead of %.2f s): "
                        "the next load measures this machine again",
                        ttft_s,
                        expected,
                    )

    def _estimate(self, shape: BatchShape, repeated: bool) -> float:
        assert self._chosen.simulator is not None
        return self._chosen.simulator.estimate(self._chosen.configuration, shape, repeated=repeated).ttft_s


def _unknown() -> float | None:
    return None
