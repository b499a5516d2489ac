"""What reading a prompt gives."""

from dataclasses import dataclass

import numpy as np

from estream.engine.stats import SweepStats


@dataclass(frozen=True)
class TopToken:
    """One of the likeliest next tokens."""

    id: int
    token: str | None
    logprob: float


@dataclass(frozen=True)
class Prefill:
    """What reading one prompt gave: logits float32 [vocabulary] at its last position ([positions, vocabulary] where
    positions were asked for), and the figures of its sweep.
    """

    logits: np.ndarray
    stats: SweepStats

    def log_probabilities(self) -> np.ndarray:
        """float64, in the shape of ``logits``."""
        shifted = self.logits.astype(np.float64) - self.logits.max(axis=-1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
