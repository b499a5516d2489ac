"""Tiny randomly initialised models, saved by transformers' own classes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import OlmoeConfig, OlmoeForCausalLM

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


def make_olmoe(folder: Path, shape: dict[str, Any], seed: int = 0, **save: Any) -> OlmoeForCausalLM:
    """Save a model of three layers whose weights are large enough that routing and attention matter."""
    torch.manual_seed(seed)
    config = OlmoeConfig(
        **{"vocab_size": 330, "num_hidden_layers": 3, "max_position_embeddings": 512, "pad_token_id": None, "eos_token_id": 0}
        | shape
    )
    model = OlmoeForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.1 if "norm" in name else 0.12)
    model.save_pretrained(folder, **save)
    return model


def logits(model: OlmoeForCausalLM, ids: np.ndarray) -> np.ndarray:
    """float32 [tokens, vocabulary]."""
    with torch.no_grad():
        return model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).logits[0].float().numpy()


def from_state(config: OlmoeConfig, folder: Path) -> OlmoeForCausalLM:
    return OlmoeForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32).eval()
