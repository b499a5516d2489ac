"""Reading the rotary positions of a ``config.json``, under the keys of transformers 4 or of transformers 5."""

import math
from collections.abc import Mapping
from typing import Any

from estream.errors import CheckpointError
from estream.models.huggingface import HfConfig
from estream.models.rope import RopeConfig, yarn_magnitude

#: The keys under which a config may describe its rotary positions: transformers 5, then 4.
ROPE_KEYS = ("rope_parameters", "rope_scaling")

_PARAMETERS_OF_ALL_TYPES = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_PARAMETERS: Mapping[str, set[str]] = {
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
    """Return the object that describes the scaling; empty where there is none."""
    return next((found for key in ROPE_KEYS if (found := hf.values.get(key))), {})


def read_rope(hf: HfConfig, head_dim: int, default_partial_rotary_factor: float = 1.0) -> RopeConfig:
    """Read rotary positions over the first ``partial_rotary_factor`` * ``head_dim`` values of a head.

    Raises:
        CheckpointError: the rope type is not supported, or one of its parameters is missing or not known.

    """
    parameters = HfConfig(rope_parameters(hf))
    rope_type = str(parameters.values.get("rope_type", parameters.values.get("type", "default")))
    if rope_type not in _PARAMETERS:
        known = ", ".join(_PARAMETERS)
        raise CheckpointError(f"config.json: rotary positions of type {rope_type!r} are not supported; known: {known}")
    if unknown := sorted(set(parameters.values) - _PARAMETERS_OF_ALL_TYPES - _PARAMETERS[rope_type]):
        raise CheckpointError(f"config.json: rotary positions of type {rope_type!r} have an unknown parameter '{unknown[0]}'")
    theta = (parameters if "rope_theta" in parameters.values else hf).positive("rope_theta")
    source = parameters if "partial_rotary_factor" in parameters.values else hf
    dims = int(head_dim * source.number("partial_rotary_factor", default_partial_rotary_factor))
    if not 2 <= dims <= head_dim or dims % 2:
        raise CheckpointError(f"config.json: {dims} rotated values of a head of {head_dim} are not supported; it must be even")
    context = hf.integer("max_position_embeddings")
    original_context = parameters.integer(
        "original_max_position_embeddings", default=hf.integer("original_max_position_embeddings", default=context)
    )
    match rope_type:
        case "linear":
            return RopeConfig(theta, dims, "linear", parameters.positive("factor"))
        case "llama3":
            return RopeConfig(
                theta,
                dims,
                "llama3",
                parameters.positive("factor"),
                original_context,
                low_frequency_factor=parameters.number("low_freq_factor"),
                high_frequency_factor=parameters.number("high_freq_factor"),
            )
        case "yarn":
            return _yarn(parameters, theta, dims, original_context)
        case "longrope":
            return _longrope(parameters, theta, dims, original_context, context)
    return RopeConfig(theta, dims)


def _yarn(parameters: HfConfig, theta: float, dims: int, original_context: int) -> RopeConfig:
    factor = parameters.positive("factor")
    mscale, mscale_all_dim = parameters.number("mscale", 0.0), parameters.number("mscale_all_dim", 0.0)
    magnitude = yarn_magnitude(factor)
    if mscale and mscale_all_dim:
        # DeepSeek multiplies the scores by the square of the divisor (models/latent.py).
        magnitude = yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all_dim)
    return RopeConfig(
        theta,
        dims,
        "yarn",
        factor,
        original_context,
        magnitude=parameters.number("attention_factor", magnitude),
        beta_fast=parameters.number("beta_fast", 32.0),
        beta_slow=parameters.number("beta_slow", 1.0),
        truncate=parameters.flag("truncate", True),
    )


def _longrope(parameters: HfConfig, theta: float, dims: int, original_context: int, context: int) -> RopeConfig:
    factor = parameters.number("factor", context / original_context)
    magnitude = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original_context))
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
        original_context=original_context,
        magnitude=parameters.number("short_mscale", magnitude),
        short_factors=short,
        long_factors=long,
        long_magnitude=parameters.number("long_mscale", magnitude),
    )
