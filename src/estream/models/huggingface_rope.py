"""Reading the rotary positions of a ``config.json``, in the spelling of transformers 4 and of 5."""

import math
from collections.abc import Mapping
from typing import Any

from estream.errors import CheckpointError
from estream.models.huggingface import HfConfig
from estream.models.rope import RopeConfig, yarn_magnitude

#: The keys under which a config may describe its rotary positions.
ROPE_SPELLINGS = ("rope_parameters", "rope_scaling")

_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_KEYS: Mapping[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
    "yarn": {
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
    "longrope": {
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "short_factor",
        "long_factor",
        "short_mscale",
        "long_mscale",
    },
}


def rope_parameters(hf: HfConfig) -> Mapping[str, Any]:
    """The dictionary that describes the scaling; empty where there is none."""
    return next((found for key in ROPE_SPELLINGS if (found := hf.values.get(key))), {})


def read_rope(hf: HfConfig, head_dim: int, partial: float = 1.0) -> RopeConfig:
    """Rotary positions over the part of a head that ``partial_rotary_factor`` names, by default ``partial``.

    Raises:
        CheckpointError: the scaling is of a kind that is not computed, or has a parameter that is not understood.

    """
    parameters = HfConfig(rope_parameters(hf))
    kind = str(parameters.values.get("rope_type", parameters.values.get("type", "default")))
    if kind not in _KEYS:
        raise CheckpointError(f"config.json: rotary positions of type {kind!r} are not supported; known: {', '.join(_KEYS)}")
    if unknown := sorted(set(parameters.values) - _COMMON - _KEYS[kind]):
        raise CheckpointError(f"config.json: rotary positions of type {kind!r} have an unknown parameter '{unknown[0]}'")
    theta = (parameters if "rope_theta" in parameters.values else hf).positive("rope_theta")
    source = parameters if "partial_rotary_factor" in parameters.values else hf
    dims = int(head_dim * source.number("partial_rotary_factor", partial))
    if not 2 <= dims <= head_dim or dims % 2:
        raise CheckpointError(f"config.json: {dims} rotated values of a head of {head_dim} are not supported; it must be even")
    context = hf.integer("max_position_embeddings")
    original = parameters.integer(
        "original_max_position_embeddings", default=hf.integer("original_max_position_embeddings", default=context)
    )
    match kind:
        case "linear":
            return RopeConfig(theta, dims, "linear", parameters.positive("factor"))
        case "llama3":
            low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
            factor = parameters.positive("factor")
            return RopeConfig(theta, dims, kind, factor, original, low_frequency_factor=low, high_frequency_factor=high)
        case "yarn":
            return _yarn(parameters, theta, dims, original)
        case "longrope":
            return _longrope(parameters, theta, dims, original, context)
    return RopeConfig(theta, dims)


def _yarn(parameters: HfConfig, theta: float, dims: int, original: int) -> RopeConfig:
    factor = parameters.positive("factor")
    weight, weight_all = parameters.number("mscale", 0.0), parameters.number("mscale_all_dim", 0.0)
    # DeepSeek sharpens part of it here and the rest in the scale of the scores.
    magnitude = yarn_magnitude(factor)
    if weight and weight_all:
        magnitude = yarn_magnitude(factor, weight) / yarn_magnitude(factor, weight_all)
    return RopeConfig(
        theta,
        dims,
        "yarn",
        factor,
        original,
        magnitude=parameters.number("attention_factor", magnitude),
        beta_fast=parameters.number("beta_fast", 32.0),
        beta_slow=parameters.number("beta_slow", 1.0),
        truncate=parameters.flag("truncate", True),
    )


def _longrope(parameters: HfConfig, theta: float, dims: int, original: int, context: int) -> RopeConfig:
    factor = parameters.number("factor", context / original)
    magnitude = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original))
    magnitude = parameters.number("attention_factor", magnitude)
    factors = [parameters.values.get(key) for key in ("short_factor", "long_factor")]
    for key, values in zip(("short_factor", "long_factor"), factors, strict=True):
        if not isinstance(values, list) or len(values) != dims // 2:
            raise CheckpointError(f"config.json: '{key}' must be a list of {dims // 2} numbers")
    short, long = (tuple(map(float, values or ())) for values in factors)
    return RopeConfig(
        theta,
        dims,
        "longrope",
        original_context=original,
        magnitude=parameters.number("short_mscale", magnitude),
        short_factors=short,
        long_factors=long,
        long_magnitude=parameters.number("long_mscale", magnitude),
    )
