"""Which experts prompts use, by the real engine."""

import numpy as np
from routing_recorder import RoutingRecorder

from estream.api.model import Model


class UseRecorder:
    """Sweeps prompts and sees which experts their tokens go to, in the layers that route."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._recorder = RoutingRecorder(model)
        self.experts = model.package.manifest.config.moe.experts

    def chosen(self, ids: np.ndarray) -> list[np.ndarray]:
        """The experts of each token, int32 [tokens, top_k], by layer, but for the last, which routes the last token alone."""
        self._recorder.seen.clear()
        self._model.prefill(ids)
        return [experts for experts, _ in self._recorder.seen[:-1]]

    def shares(self, chosen: list[np.ndarray], tokens: int) -> np.ndarray:
        """The share of experts that the first ``tokens`` tokens use, by layer."""
        return np.array([len(np.unique(layer[:tokens])) / self.experts for layer in chosen])
