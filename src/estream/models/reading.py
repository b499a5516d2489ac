"""From a checkpoint's settings to a model that its tensors can hold: counted before anything is listed."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from estream.errors import CheckpointError
from estream.models import Family
from estream.models.config import ModelConfig
from estream.models.consistency import check_config
from estream.schema import SchemaError

#: Experts of all layers together; the largest published models have 25,000.
_MOST_EXPERTS_IN_ALL = 1 << 18
#: The keys of config.json that fields of a package's manifest come from.
_KEYS = {
    "model.hidden": "hidden_size",
    "model.layers": "num_hidden_layers",
    "model.vocabulary": "vocab_size",
    "model.context": "max_position_embeddings",
    "model.norm_eps": "rms_norm_eps",
    "model.dense_width": "intermediate_size",
    "model.attention.heads": "num_attention_heads",
    "model.attention.kv_heads": "num_key_value_heads",
    "model.attention.head_dim": "head_dim",
    "model.attention.clip": "clip_qkv",
    "model.attention.scale": "attention_multiplier",
    "model.attention.window": "sliding_window",
    "model.attention.latent.kv_rank": "kv_lora_rank",
    "model.attention.latent.query_rank": "q_lora_rank",
    "model.attention.delta.key_heads": "linear_num_key_heads",
    "model.attention.delta.value_heads": "linear_num_value_heads",
    "model.attention.delta.key_dim": "linear_key_head_dim",
    "model.attention.delta.value_dim": "linear_value_head_dim",
    "model.attention.delta.taps": "linear_conv_kernel_dim",
    "model.attention.rope.theta": "rope_theta",
    "model.attention.rope.factor": "factor",
    "model.moe.experts": "num_experts",
    "model.moe.top_k": "num_experts_per_tok",
    "model.moe.width": "moe_intermediate_size",
    "model.moe.shared_width": "shared_expert_intermediate_size",
    "model.moe.groups": "n_group",
    "model.moe.top_groups": "topk_group",
    "model.moe.scaling": "routed_scaling_factor",
    "model.moe.jitter": "router_jitter_noise",
    "model.moe.gate_alpha": "swiglu_alpha",
    "model.moe.gate_limit": "swiglu_limit",
    "model.embedding_factor": "embedding_multiplier",
    "model.residual_factor": "residual_multiplier",
    "model.logits_factor": "logits_scaling",
}


def read_model(family: Family, values: Mapping[str, Any], shapes: Iterable[tuple[int, ...]]) -> ModelConfig:
    """Read a model's settings. ``shapes`` are those of the checkpoint's tensors.

    Raises:
        CheckpointError: a setting is not supported or out of range, settings contradict each other, or count or measure more
            than there are tensors.

    """
    config = family.read_config(values)
    try:
        check_config(config)
    except SchemaError as error:
        raise CheckpointError(f"config.json: {_in_its_words(str(error))}") from error
    _check_counts(config, [shape for shape in shapes if 0 not in shape])
    return config


def _in_its_words(message: str) -> str:
    return re.sub(r"'(model\.[\w.]+)'", lambda match: f"'{_KEYS[match[1]]}'" if match[1] in _KEYS else match[0], message)


def _check_counts(config: ModelConfig, shapes: list[tuple[int, ...]]) -> None:
    """Raise CheckpointError where a count exceeds what the tensors can hold: parts of each are listed by name later."""
    attention, moe = config.attention, config.moe
    if config.layers > len(shapes):
        raise CheckpointError(
            f"config.json: 'num_hidden_layers' is {config.layers}, but there are {len(shapes)} tensors with values"
        )
    experts = moe.experts * (config.layers - len(config.dense_layers))
    # A fused tensor holds as many experts as its first dimension says.
    room = min(sum(shape[0] if len(shape) > 2 else 1 for shape in shapes), _MOST_EXPERTS_IN_ALL)
    if experts > room:
        raise CheckpointError(
            f"config.json: 'num_experts' is {moe.experts} in each of {experts // moe.experts} layers, but the tensors have "
            f"room for {room} experts in all"
        )
    largest = max((max(shape, default=1) for shape in shapes), default=0)
    widths = {
        "num_attention_heads": max(attention.query_width, attention.output_width),
        "num_key_value_heads": 1 if attention.latent else max(attention.key_width, attention.value_width),
        "linear_num_value_heads": attention.delta.conv_dim if attention.delta else 1,
    }
    for key, width in widths.items():
        if width > largest:
            raise CheckpointError(f"config.json: by '{key}' a tensor has {width} rows, but the largest has {largest}")
