"""Watches whether predictions come true; a profile that is wrong twice in a row is measured again."""

import logging

from estream.configurator import store
from estream.configurator.configure import Configured
from estream.configurator.simulated import Workload

#: A prediction that is further off than this is wrong.
WRONG = 0.25
#: Shorter sweeps are not predicted: that would cost a noticeable part of them.
_SHORTEST_S = 1.0

logger = logging.getLogger("estream")


class PredictionWatch:
    """Predicts each sweep that is long enough, after it, and compares."""

    def __init__(self, configured: Configured) -> None:
        self._configured = configured
        self._predicted: dict[tuple[Workload, bool], float] = {}
        self._wrong = 0

    def observe(self, workload: Workload, ttft_s: float, *, repeated: bool) -> float | None:
        """Take a sweep's TTFT; returns the predicted one, None where there is no profile or the sweep was short.

        After two wrong predictions in a row the profile is forgotten, so that the next load measures this machine again.
        """
        simulator = self._configured.simulator
        if simulator is None or ttft_s < _SHORTEST_S:
            return None
        key = (workload, repeated)
        if key not in self._predicted:
            self._predicted[key] = simulator.predict(self._configured.configuration, workload, repeated=repeated).ttft_s
        predicted = self._predicted[key]
        self._wrong = self._wrong + 1 if abs(predicted / ttft_s - 1) > WRONG else 0
        if self._wrong == 2:
            store.forget(self._configured.key)
            logger.warning(
                "two sweeps in a row took other times than predicted (%.2f s instead of %.2f s): "
                "the next load measures this machine again",
                ttft_s,
                predicted,
            )
        return predicted
