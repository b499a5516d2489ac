"""Tiny randomly initialised models, saved by transformers' own classes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

OLMOE_SHAPES: dict[str, dict[str, Any]] = {
    "8 experts, grouped queries": {
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    "60 experts, tied, normalised weights": {
        "hidden_size": 96,
        "intermediate_size": 40,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "tie_word_embeddings": True,
        "norm_topk_prob": True,
    },
    "64 experts, clipped, odd sizes": {
        "hidden_size": 72,
        "intermediate_size": 20,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "clip_qkv": 0.8,
        "rope_theta": 500000.0,
    },
}


MIXTRAL_SHAPES: dict[str, dict[str, Any]] = {
    "8 experts, grouped queries": {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "4 experts, tied, wide heads": {
        "hidden_size": 80,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 3,
        "tie_word_embeddings": True,
    },
    "16 experts, one chosen": {
        "hidden_size": 128,
        "intermediate_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
    },
}

QWEN3_SHAPES: dict[str, dict[str, Any]] = {
    "128 experts, heads wider than hidden": {
        "hidden_size": 64,
        "moe_intermediate_size": 32,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
    },
    "12 experts, weights as they are": {
        "hidden_size": 96,
        "moe_intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 24,
        "num_experts": 12,
        "num_experts_per_tok": 3,
        "norm_topk_prob": False,
    },
    "20 experts, tied": {
        "hidden_size": 64,
        "moe_intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "num_experts": 20,
        "num_experts_per_tok": 4,
        "tie_word_embeddings": True,
    },
}


@dataclass(frozen=True)
class TinyFamily:
    """A family's classes, shapes, and the names of its expert tensors (gate, up, down) and router."""

    config: type
    model: type
    shapes: dict[str, dict[str, Any]]
    router: str
    experts: tuple[str, str, str]


_PROJECTIONS = tuple(f"mlp.experts.{{e}}.{n}_proj" for n in ("gate", "up", "down"))
FAMILIES = {
    "olmoe": TinyFamily(OlmoeConfig, OlmoeForCausalLM, OLMOE_SHAPES, "mlp.gate", _PROJECTIONS),
    "mixtral": TinyFamily(
        MixtralConfig,
        MixtralForCausalLM,
        MIXTRAL_SHAPES,
        "block_sparse_moe.gate",
        tuple(f"block_sparse_moe.experts.{{e}}.{n}" for n in ("w1", "w3", "w2")),
    ),
    "qwen3_moe": TinyFamily(Qwen3MoeConfig, Qwen3MoeForCausalLM, QWEN3_SHAPES, "mlp.gate", _PROJECTIONS),
}


def make_tiny(folder: Path, family: str, shape: dict[str, Any], seed: int = 0, **save: Any) -> PreTrainedModel:
    """Save a model of three layers whose weights are large enough that routing and attention matter."""
    torch.manual_seed(seed)
    base = {"vocab_size": 330, "num_hidden_layers": 3, "max_position_embeddings": 512}
    config = FAMILIES[family].config(**base | {"pad_token_id": None, "bos_token_id": None, "eos_token_id": 0} | shape)
    model = FAMILIES[family].model(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.1 if "norm" in name else 0.12)
    model.save_pretrained(folder, **save)
    return model


def make_olmoe(folder: Path, shape: dict[str, Any], seed: int = 0, **save: Any) -> PreTrainedModel:
    return make_tiny(folder, "olmoe", shape, seed, **save)


def logits(model: PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    """float32 [tokens, vocabulary]."""
    with torch.no_grad():
        return model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).logits[0].float().numpy()


def from_state(family: str, config: Any, folder: Path) -> PreTrainedModel:
    return FAMILIES[family].model.from_pretrained(folder, config=config, dtype=torch.float32).eval()
