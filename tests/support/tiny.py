"""Tiny randomly initialised models, saved by transformers' own classes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_hybrid import HYBRID
from tiny_latent import LATENT
from tiny_unusual import UNUSUAL
from tiny_usual import OLMOE_SHAPES, USUAL
from transformers import PreTrainedModel

__all__ = ["FAMILIES", "OLMOE_SHAPES", "from_state", "logits", "make_olmoe", "make_tiny"]

FAMILIES = USUAL | HYBRID | LATENT | UNUSUAL


def make_tiny(folder: Path, family: str, shape: dict[str, Any], seed: int = 0, **save: Any) -> PreTrainedModel:
    """Save a model of three layers whose weights are large enough that routing and attention matter."""
    torch.manual_seed(seed)
    base = {"vocab_size": 330, "num_hidden_layers": 3, "max_position_embeddings": 512}
    config = FAMILIES[family].config(**base | {"pad_token_id": None, "bos_token_id": None, "eos_token_id": 0} | shape)
    model = FAMILIES[family].model(config).eval()
    corrections = [(name, b) for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")]
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *corrections]:
            norm = "norm" in name and name.endswith("weight")
            # Some norms hold their weight less one: around where it begins in either case.
            centre = parameter.flatten()[0].item() if norm else 0.0
            parameter.normal_(centre, 0.1 if norm else 1.0 if name.endswith("sinks") else 0.12)
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
