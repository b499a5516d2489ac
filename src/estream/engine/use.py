"""Which experts a batch will probably use: learned from texts and prompts, even where nothing is known.

Tokens of one prompt resemble each other, so n of them use fewer experts than n independent ones would. They count as
n ** a independent tokens; the exponent a follows from how many experts prompts of such lengths did use.
"""

import math
from dataclasses import dataclass

import numpy as np

from estream.engine.batch import BatchShape
from estream.models.config import ModelConfig
from estream.package.expert_use import ExpertUse, LayerUse, UsedShare

#: Tokens of even routing, and prompts of independent tokens, that what was seen is weighed against.
_PRIOR_TOKENS, _PRIOR_PROMPTS = 64.0, 0.25
#: After so many tokens, and in so many prompts of a length, what was seen before counts half.
_HALF_LIFE_TOKENS, _HALF_LIFE_PROMPTS = 1 << 16, 8
#: Lengths are told apart by powers of two.
_LENGTHS = 18
_DIGITS = 5
_SHORT_PROMPT = 64
_STEPS = 24


def even_share(config: ModelConfig, tokens: int) -> float:
    """The share of a layer's experts that ``tokens`` tokens use, were routing even."""
    return float(1.0 - (1.0 - config.moe.top_k / config.moe.experts) ** tokens)


def independent_tokens(shares: np.ndarray, used: np.ndarray, most: float) -> np.ndarray:
    """How many independent tokens use so many experts, 1 to ``most``.

    Args:
        shares: float64 [layers, experts]: the share of tokens that choose an expert.
        used: float64 [layers]: experts with at least one token.
        most: an upper bound of the answer.

    Returns:
        float64 [layers], by Newton's method from below: the function is concave.

    """
    logs = _log_unused(shares)
    wanted = np.minimum(used, np.count_nonzero(shares, axis=-1) - 1e-3)
    tokens = np.ones(len(shares))
    for _ in range(_STEPS):
        unused = np.exp(tokens[:, None] * logs)
        missing = wanted - (1 - unused).sum(axis=-1)
        slope = np.maximum(-(unused * logs).sum(axis=-1), 1e-12)
        tokens = np.clip(tokens + missing / slope, 1.0, most)
    return tokens


@dataclass(frozen=True)
class ExpectedUse:
    """What a sweep may expect: ``chances`` float64 [layers, experts] of the batch to use an expert. Where they are not
    ``known`` from prompts before, the first layer's routing is awaited.
    """

    chances: np.ndarray
    known: bool = True


class LearnedUse:
    """What is known of a model's experts. Starts from even routing, or from what was stored."""

    def __init__(self, config: ModelConfig, stored: ExpertUse | None = None) -> None:
        layers, experts = config.layers, config.moe.experts
        self._config = config
        self._tokens = np.zeros(layers)
        self._chosen = np.zeros((layers, experts))
        self._weights = np.zeros(_LENGTHS)
        self._log_tokens = np.zeros(_LENGTHS)
        self._shares = np.zeros((layers, _LENGTHS))
        self._known: dict[tuple[int, ...], np.ndarray] = {}
        for use in stored.layers if stored else ():
            self._tokens[use.layer], self._chosen[use.layer] = use.tokens, use.chosen
            for point in use.curve:
                at = _bucket(point.tokens)
                self._weights[at] = point.weight
                self._log_tokens[at] = point.weight * np.log(point.tokens)
                self._shares[use.layer, at] = point.weight * point.share

    @property
    def is_known(self) -> bool:
        """Whether anything was seen."""
        return bool(self._tokens.any())

    def shares(self) -> np.ndarray:
        """float64 [layers, experts]: the share of tokens that choose an expert."""
        moe = self._config.moe
        even = moe.top_k / moe.experts
        return np.asarray((self._chosen + _PRIOR_TOKENS * even) / (self._tokens[:, None] + _PRIOR_TOKENS))

    def expected(self, shape: BatchShape) -> ExpectedUse:
        """What a batch of this shape may expect."""
        return ExpectedUse(self.chances(shape), self.is_known)

    def chances(self, shape: BatchShape) -> np.ndarray:
        """float64 [layers, experts]: how probable it is that a batch uses an expert. The caller leaves it unchanged."""
        found = self._known.get(shape.lengths)
        if found is None:
            shares = self.shares()
            tokens = np.sum([self._independent(shares, n) for n in shape.lengths], axis=0)
            found = -np.expm1(tokens[:, None] * _log_unused(shares))
            self._known = {**self._known, shape.lengths: found} if len(self._known) < _LENGTHS else {shape.lengths: found}
        return found

    def of_short_prompt(self) -> np.ndarray | None:
        """The same of a short prompt, which decides what is kept between sweeps; None where nothing was seen."""
        return self.chances(BatchShape.of_prompt(_SHORT_PROMPT)) if self.is_known else None

    def _independent(self, shares: np.ndarray, tokens: int) -> np.ndarray:
        """float64 [layers]: the independent tokens that those of one prompt count as."""
        exponents: list[np.ndarray] = []
        at = np.flatnonzero(self._log_tokens)
        logs = self._log_tokens[at] / self._weights[at]
        lower, upper = at[logs <= np.log(tokens)][-1:], at[logs > np.log(tokens)][:1]
        near = np.concatenate((lower, upper))
        if tokens == 1 or not len(near):
            return np.full(len(shares), float(tokens))
        for bucket in near:
            weight, log = self._weights[bucket], self._log_tokens[bucket] / self._weights[bucket]
            used = self._shares[:, bucket] / weight * self._config.moe.experts
            seen = np.log(independent_tokens(shares, used, float(np.exp(log)))) / log
            exponents.append((weight * seen + _PRIOR_PROMPTS) / (weight + _PRIOR_PROMPTS))
        if len(near) == 1:
            exponent = exponents[0]
        else:
            low, high = (self._log_tokens[b] / self._weights[b] for b in near)
            exponent = exponents[0] + (exponents[1] - exponents[0]) * (np.log(tokens) - low) / (high - low)
        return np.asarray(float(tokens) ** exponent)

    def observe(self, counts: np.ndarray, shape: BatchShape) -> None:
        """Learn from a sweep: ``counts`` int64 [layers, experts], how many tokens of the batch each expert got."""
        rows = counts.sum(axis=-1) / self._config.moe.top_k
        self._chosen *= 0.5 ** (rows / _HALF_LIFE_TOKENS)[:, None]
        self._tokens *= 0.5 ** (rows / _HALF_LIFE_TOKENS)
        self._chosen += counts
        self._tokens += rows
        # In the last layer only wanted rows are routed; of several prompts nobody knows which expert served which.
        full = rows == shape.tokens
        if len(shape.lengths) == 1 and shape.tokens > 1 and full.any():
            share = np.count_nonzero(counts, axis=-1) / self._config.moe.experts
            at, old = _bucket(shape.tokens), 0.5 ** (1 / _HALF_LIFE_PROMPTS)
            for sums, new in (
                (self._weights, 1.0),
                (self._log_tokens, np.log(shape.tokens)),
                (self._shares.T, np.where(full, share, share[full].mean())),
            ):
                sums[at] = sums[at] * old + new
        self._known = {}

    def stored(self) -> ExpertUse:
        """What is known, to be kept."""
        points = np.flatnonzero(self._weights).tolist()
        return ExpertUse(
            [
                LayerUse(
                    layer,
                    _rounded(self._tokens[layer]),
                    [_rounded(n) for n in self._chosen[layer]],
                    [self._point(layer, bucket) for bucket in points],
                )
                for layer in np.flatnonzero(self._tokens).tolist()
            ]
        )

    def _point(self, layer: int, bucket: int) -> UsedShare:
        weight = self._weights[bucket]
        tokens = _rounded(np.exp(self._log_tokens[bucket] / weight))
        return UsedShare(tokens, min(1.0, _rounded(self._shares[layer, bucket] / weight)), _rounded(weight))


def relative_use(chances: np.ndarray, used: int) -> float:
    """How many times as many tokens as expected a layer's ``used`` experts speak of, of which each had a chance; 0 to 4."""
    if used == len(chances) and chances.sum() > len(chances) - 1:
        return 1.0
    logs, low, high = _log_unused(chances), 0.0, 4.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if len(chances) - np.exp(middle * logs).sum() < used:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _log_unused(chances: np.ndarray) -> np.ndarray:
    """The logarithm of each chance not to be used; finite where use is certain."""
    return np.asarray(np.log1p(-np.minimum(chances, 1 - 1e-9)))


def _bucket(tokens: float) -> int:
    return min(_LENGTHS - 1, max(0, round(math.log2(tokens))))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
