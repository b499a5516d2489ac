"""What reading a prompt gives, and what its sweep cost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any

import numpy as np

from estream.engine.wanted import Wanted
from estream.errors import OptionError


def _given(value: float | None) -> float | None:
    return value


@dataclass(frozen=True)
class SweepStats:
    """Figures of one sweep; sizes in bytes, times in seconds.

    ``computed_tokens`` are fewer than ``prompt_tokens`` where prompts begin alike. ``read_s`` is the time with at least one
    read in flight, ``stall_s`` the time that computing waited for reads, ``compute_s`` the time inside the device.
    ``bytes_read`` is everything the lanes read, ``embedding_bytes`` the part for embedding rows, ``bytes_unused`` the part
    that was read ahead of the routing for experts without tokens. ``prediction`` counts the experts that the next layer's
    router named early (``predicted``), and those of them that got tokens (``right``).

    ``emulated``: the device is an emulator of another one. Its times say nothing of that, and are None in JSON.
    """

    ttft_s: float
    prompt_tokens: int
    computed_tokens: int
    prompts: int
    bytes_read: int
    embedding_bytes: int
    bytes_unused: int
    read_s: float
    compute_s: float
    stall_s: float
    checksum_s: float
    peak_rss_bytes: int
    budget_bytes: int
    arena_bytes: int
    direct_io: bool
    prediction: dict[str, int]
    device: str
    config: dict[str, Any]
    emulated: bool = False
    estimate: Callable[[], float | None] = field(default=partial(_given, None), repr=False, compare=False)

    @cached_property
    def predicted_ttft_s(self) -> float | None:
        """What the configurator expected; None where this machine was not measured or the sweep was short.

        The first look simulates the sweep, which may take a tenth of a second.
        """
        return self.estimate()

    def to_json(self) -> dict[str, Any]:
        """The figures as plain values."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "estimate"}
        times = dict.fromkeys(("ttft_s", "compute_s", "stall_s")) if self.emulated else {}
        return values | {"predicted_ttft_s": self.predicted_ttft_s} | times

    def __getstate__(self) -> dict[str, Any]:
        """Other processes get the estimate as a figure."""
        return vars(self) | {"estimate": partial(_given, self.predicted_ttft_s)}


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


@dataclass(frozen=True)
class Reading:
    """What a request gave: arrays by the names that its kind says, and the figures of its sweep."""

    wanted: Wanted
    values: Mapping[str, np.ndarray] = field(repr=False)
    stats: SweepStats

    def _value(self, name: str) -> np.ndarray:
        if name not in self.values:
            raise OptionError(f"a reading of {type(self.wanted).__name__} has no '{name}', but {', '.join(self.values)}")
        return self.values[name]

    @property
    def logits(self) -> np.ndarray:
        """float32 [positions, vocabulary], or [positions, ids] of some ids. Raises OptionError where others are wanted."""
        return self._value("logits")

    @property
    def ids(self) -> np.ndarray:
        """int32 [positions, count]. Raises OptionError as :attr:`logits`."""
        return self._value("ids")

    @property
    def log_probabilities(self) -> np.ndarray:
        """float32 [positions, m]. Raises OptionError as :attr:`logits`."""
        return self._value("log_probabilities")

    @property
    def probabilities(self) -> np.ndarray:
        """float32 [positions, ids]. Raises OptionError as :attr:`logits`."""
        return self._value("probabilities")

    @property
    def hidden(self) -> np.ndarray:
        """float32 [positions, hidden], or [hidden] for a mean. Raises OptionError as :attr:`logits`."""
        return self._value("hidden")
