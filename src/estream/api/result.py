"""What reading a prompt gives, and what its sweep cost."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class SweepStats:
    """Figures of one sweep; sizes in bytes, times in seconds.

    ``read_s`` is the time with at least one read in flight, ``stall_s`` the time that computing waited for what it reads,
    ``compute_s`` the time inside the device. ``bytes_read`` is everything the lanes read, ``bytes_unused`` the part of
    it that was read ahead of the routing for experts nobody was routed to. ``predicted_ttft_s`` is what the configurator
    expected, None where this machine was not measured or the sweep was short. ``prediction`` says how many experts were
    predicted with few tokens, and how many of those were right.

    ``emulated``: the device is an emulator of another one, so its times say nothing of that and are None in JSON.
    """

    ttft_s: float
    prompt_tokens: int
    prompts: int
    bytes_read: int
    bytes_unused: int
    read_s: float
    compute_s: float
    stall_s: float
    checksum_s: float
    peak_rss_bytes: int
    budget_bytes: int
    arena_bytes: int
    direct_io: bool
    predicted_ttft_s: float | None
    prediction: dict[str, int]
    device: str
    config: dict[str, Any]
    emulated: bool = False

    def to_json(self) -> dict[str, Any]:
        times = dict.fromkeys(("ttft_s", "compute_s", "stall_s")) if self.emulated else {}
        return asdict(self) | times


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
