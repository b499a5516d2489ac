"""The demo checkpoint with channels that stand out, the same function in float32."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

#: What some channels' norm weights are multiplied by and the columns that read them divided by.
FACTOR = 64.0
_CHANNELS = slice(5, None, 37)
_READERS = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate.", "gate_proj", "up_proj", "gate_up_proj"),
}


def with_outliers(source: Path, target: Path) -> Path:
    """Every 37th channel of each norm stands out, and in each expert every 37th unit between up and down."""
    target.mkdir()
    for file in source.iterdir():
        if file.name != "model.safetensors":
            (target / file.name).write_bytes(file.read_bytes())
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        if any(norm in name for norm in _READERS):
            tensor[_CHANNELS] *= FACTOR
        elif any(reader in name for readers in _READERS.values() for reader in readers):
            tensor[..., _CHANNELS] /= FACTOR
        if name.endswith(("up_proj.weight",)):
            tensor[_CHANNELS] *= FACTOR
        elif name.endswith("down_proj.weight"):
            tensor[..., _CHANNELS] /= FACTOR
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def same_function(first: torch.nn.Module, second: torch.nn.Module, ids: torch.Tensor) -> bool:
    """Whether two models give the same logits, but for rounding."""
    with torch.no_grad():
        a, b = first(input_ids=ids).logits, second(input_ids=ids).logits
    return bool((a - b).abs().max() <= 1e-4 * a.abs().max())
