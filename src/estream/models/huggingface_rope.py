"""Reading the rotary positions of a ``config.json``, under the keys of transformers 4 or of transformers 5."""

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from estream.errors import CheckpointError
from estream.models.config import MOST_TOKENS
from estream.models.huggingface import HfConfig
from estream.models.rope import RopeConfig, yarn_magnitude
from estream.schema import shown

#: The keys under which a config may describe its rotary positions: transformers 4, then 5. If both do, transformers takes the
#: first.
ROPE_KEYS = ("rope_scaling", "rope_parameters")

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


class RopeDefaults(Struct, frozen=True):
    """What a family's class has where a config does not say it. ``parameters`` stand in where both keys are absent or null.

    ``partial_rotary_factor`` is None for families that rotate whole heads, whatever the config says.
    """

    theta: float = 10000.0
    partial_rotary_factor: float | None = None
    parameters: Mapping[str, Any] = {}


def rope_parameters(hf: HfConfig, defaults: RopeDefaults) -> Mapping[str, Any]:
    """Return the object that describes the scaling; empty where there is none. Raises CheckpointError if it is no object."""
    found = {key: hf.values[key] for key in ROPE_KEYS if hf.values.get(key) is not None}
    for key, value in found.items():
        if not isinstance(value, Mapping):
            raise CheckpointError(f"config.json: '{key}' must be an object, found {shown(value)}")
    if "rope_parameters" not in found and not found.get("rope_scaling"):
        return defaults.parameters
    return next((value for value in found.values() if value), {})


def read_rope(hf: HfConfig, head_dim: int, defaults: RopeDefaults) -> RopeConfig:
    """Read rotary positions over the first ``partial_rotary_factor`` * ``head_dim`` values of a head.

    Raises:
        CheckpointError: the rope type is not supported, or one of its parameters is missing or not known.

    """
    parameters = HfConfig(rope_parameters(hf, defaults))
    rope_type = parameters.values.get("rope_type", parameters.values.get("type", "default"))
    if not isinstance(rope_type, str) or rope_type not in _PARAMETERS:
        known = ", ".join(_PARAMETERS)
        raise CheckpointError(f"config.json: rotary positions of type {shown(rope_type)} are not supported; known: {known}")
    if unknown := sorted(set(parameters.values) - _PARAMETERS_OF_ALL_TYPES - _PARAMETERS[rope_type]):
        raise CheckpointError(
            f"config.json: rotary positions of type {rope_type!r} have an unknown parameter {shown(unknown[0])}"
        )
    theta = (parameters if "rope_theta" in parameters.values else hf).positive("rope_theta", defaults.theta)
    dims = _rotated(hf, parameters, head_dim, defaults.partial_rotary_factor)
    context = hf.context()
    original_context = _original_context(hf, parameters) or context
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
                low_frequency_factor=parameters.positive("low_freq_factor"),
                high_frequency_factor=parameters.positive("high_freq_factor"),
            )
        case "yarn":
            return _yarn(parameters, theta, dims, original_context, context)
        case "longrope":
            return _longrope(parameters, theta, dims, original_context, context)
    return RopeConfig(theta, dims)


def _original_context(hf: HfConfig, parameters: HfConfig) -> int:
    """``original_max_position_embeddings``, which may stand beside the parameters or among them; 0 where it is absent."""
    key = "original_max_position_embeddings"
    inside, outside = (source.integer(key, most=MOST_TOKENS) if key in source.values else 0 for source in (parameters, hf))
    if inside and outside and inside != outside:
        raise CheckpointError(f"config.json: '{key}' is {outside}, but {inside} among the rotary parameters")
    return inside or outside


def _rotated(hf: HfConfig, parameters: HfConfig, head_dim: int, default: float | None) -> int:
    """The number of values of a head that are rotated."""
    source = parameters if "partial_rotary_factor" in parameters.values else hf
    factor = source.positive("partial_rotary_factor", 1.0 if default is None else default)
    if default is None and factor != 1.0:
        raise CheckpointError(
            f"config.json: 'partial_rotary_factor' is {factor:g}, but heads are rotated whole in this family; remove it"
        )
    dims = int(head_dim * factor)
    if not 2 <= dims <= head_dim or dims % 2:
        raise CheckpointError(f"config.json: {dims} rotated values of a head of {head_dim} are not supported; it must be even")
    return dims


def _yarn(parameters: HfConfig, theta: float, dims: int, original_context: int, context: int) -> RopeConfig:
    factor = parameters.positive("factor", null=context / original_context)
    mscale, mscale_all_dim = (parameters.not_negative(key, 0.0, null=0.0) for key in ("mscale", "mscale_all_dim"))
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
        magnitude=parameters.not_negative("attention_factor", magnitude, null=magnitude),
        # As in transformers, 0 stands for the paper's number.
        beta_fast=parameters.not_negative("beta_fast", 32.0, null=32.0) or 32.0,
        beta_slow=parameters.not_negative("beta_slow", 1.0, null=1.0) or 1.0,
        truncate=parameters.flag("truncate", True),
    )


def _longrope(parameters: HfConfig, theta: float, dims: int, original_context: int, context: int) -> RopeConfig:
    ratio = context / original_context
    factor = parameters.positive("factor", ratio, null=ratio)
    if original_context < 2:
        raise CheckpointError("config.json: 'original_max_position_embeddings' must be at least 2 with longrope, found 1")
    magnitude = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original_context))
    magnitude = parameters.not_negative("attention_factor", magnitude, null=magnitude)
    short, long = (parameters.numbers(key, dims // 2) for key in ("short_factor", "long_factor"))
    return RopeConfig(
        theta,
        dims,
        "longrope",
        original_context=original_context,
        magnitude=parameters.not_negative("short_mscale", magnitude),
        short_factors=short,
        long_factors=long,
        long_magnitude=parameters.not_negative("long_mscale", magnitude),
    )
