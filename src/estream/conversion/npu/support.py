"""Which models the NPU's graphs compute."""

from estream.errors import OptionError
from estream.models.config import ModelConfig

FAMILIES = ("olmoe", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2")


def check_supported(config: ModelConfig) -> None:
    """Raises OptionError for a model that the graphs do not compute, and says what they lack."""
    if config.family not in FAMILIES:
        raise OptionError(
            f"--device qnn: the family {config.family} is not one that the NPU's graphs compute ({', '.join(FAMILIES)}); "
            "convert it with --device cpu"
        )
    attention, moe = config.attention, config.moe
    lacking = {
        "layer norms": config.norm != "rms",
        "a bias of the head": config.head_bias,
        "factors of embedding, residual or logits": {config.embedding_factor, config.residual_factor, config.logits_factor}
        != {1.0},
        "attention sinks": attention.sinks,
        "a bias or gate of attention's output": attention.output_bias or attention.output_gate,
        "linear attention": bool(attention.delta_layers),
        "rotation of a part of each head": attention.latent is None and attention.rope.dims != attention.head_dim,
        f"{moe.scoring} routing": moe.scoring != "softmax",
        "biases of router or experts": moe.router_bias or moe.correction_bias or moe.expert_bias,
    }
    for what, found in lacking.items():
        if found:
            raise OptionError(f"--device qnn: this {config.family} has {what}, and the NPU's graphs do not; use --device cpu")
