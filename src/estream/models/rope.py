"""Rotary positions (RoPE), and the ways to stretch them beyond the context that a model was trained on."""

import math
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from estream.schema import Finite, NotNegative, Positive, Record

RopeScaling = Literal["default", "linear", "llama3", "yarn", "longrope"]

_MOST_DIMS = 256
#: One for each pair of rotated values.
_Factors = Annotated[tuple[Positive, ...], Meta(max_length=_MOST_DIMS // 2)]


class RopeConfig(Record, frozen=True):
    """The first ``dims`` values of each head are rotated, value i with value i + dims / 2.

    ``magnitude`` multiplies cosine and sine. The other fields belong to one scaling each: ``factor`` to all but longrope,
    ``original_context`` to all but linear, ``beta_*`` and ``truncate`` to yarn, ``*_frequency_factor`` to llama3,
    ``*_factors`` [dims / 2] and ``long_magnitude`` to longrope.
    """

    theta: Positive
    dims: Annotated[int, Meta(ge=2, le=_MOST_DIMS, multiple_of=2)]
    scaling: RopeScaling = "default"
    factor: Positive = 1.0
    original_context: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0
    magnitude: Finite = 1.0
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    truncate: bool = True
    low_frequency_factor: NotNegative = 1.0
    high_frequency_factor: NotNegative = 4.0
    short_factors: _Factors = ()
    long_factors: _Factors = ()
    long_magnitude: Finite = 1.0


class Rope:
    """Cosines and sines of a token's position. They depend on nothing else but the length of the token's own prompt."""

    def __init__(self, config: RopeConfig) -> None:
        self._config = config
        self._frequencies = _frequencies(config)
        if config.scaling == "longrope":
            self._long = (self._frequencies / np.asarray(config.long_factors, np.float32)).astype(np.float32)
            self._frequencies = (self._frequencies / np.asarray(config.short_factors, np.float32)).astype(np.float32)

    def angles(self, positions: np.ndarray, lengths: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> None:
        """Fill ``cosine`` and ``sine``, float32 [tokens, dims / 2].

        Args:
            positions: int32 [tokens].
            lengths: int32 [tokens], the length of each token's prompt. LongRoPE has one set of frequencies for prompts
                within the original context and another for longer ones (Y. Ding et al., arXiv 2402.13753).
            cosine: receives cosines times the magnitude.
            sine: receives sines times the magnitude.

        """
        config = self._config
        angles = positions.astype(np.float32)[:, None] * self._frequencies
        magnitude = np.full((len(positions), 1), config.magnitude, np.float32)
        if config.scaling == "longrope":
            long = lengths > config.original_context
            angles[long] = positions[long].astype(np.float32)[:, None] * self._long
            magnitude[long] = config.long_magnitude
        np.cos(angles, out=cosine)
        np.sin(angles, out=sine)
        if config.magnitude != 1.0 or config.long_magnitude != 1.0:
            cosine *= magnitude
            sine *= magnitude


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """Return YaRN's factor of cosine and sine for a context stretched by ``factor``: B. Peng et al. (arXiv 2309.00071)."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _frequencies(config: RopeConfig) -> np.ndarray:
    """Inverse frequencies float32 [dims / 2], in radians per position. LongRoPE's factors are applied in ``Rope``."""
    exponents = np.arange(0, config.dims, 2, dtype=np.float32) / np.float32(config.dims)
    inv_freq = (1.0 / np.float32(config.theta) ** exponents).astype(np.float32)
    match config.scaling:
        case "linear":
            return (inv_freq / np.float32(config.factor)).astype(np.float32)
        case "llama3":
            return _llama3(config, inv_freq)
        case "yarn":
            return _yarn(config, inv_freq)
    return inv_freq


def _yarn(config: RopeConfig, inv_freq: np.ndarray) -> np.ndarray:
    """YaRN, section 3.2: high frequencies stay, low ones are divided by the factor, a linear ramp blends those between."""

    def correction_dim(rotations: float) -> float:
        """The dimension that turns this many times over the original context."""
        return config.dims * math.log(config.original_context / (rotations * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = correction_dim(config.beta_fast), correction_dim(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.dims - 1)
    ramp_length = high - low if high != low else 0.001
    ramp = np.clip((np.arange(config.dims // 2, dtype=np.float32) - low) / ramp_length, 0.0, 1.0)
    return np.asarray(inv_freq / config.factor * ramp + inv_freq * (1.0 - ramp), np.float32)


def _llama3(config: RopeConfig, inv_freq: np.ndarray) -> np.ndarray:
    """Llama 3 (arXiv 2407.21783): long wavelengths are divided by the factor, short ones stay, those between are blended."""
    wavelength = 2 * np.pi / inv_freq.astype(np.float64)
    low, high = config.low_frequency_factor, config.high_frequency_factor
    smooth = np.clip((config.original_context / wavelength - low) / (high - low), 0.0, 1.0)
    return np.asarray(inv_freq / config.factor * (1.0 - smooth) + inv_freq * smooth, np.float32)
