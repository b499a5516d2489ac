"""Multi-head latent attention as DeepSeek-V2 and V3 have it (arXiv 2405.04434): its sizes, scale and tensors.

The checkpoint has each head's plain values first, then its rotated ones with the pairs side by side. Converting brings the
rotated ones to the front, halves apart, in queries and keys alike: scores stay what they are, and one rotation serves all
families.
"""

from msgspec.structs import replace

from estream.errors import CheckpointError
from estream.models.config import AttentionConfig, LatentConfig, ModelConfig, TensorRef
from estream.models.huggingface import HfConfig
from estream.models.huggingface_rope import read_rope, rope_parameters
from estream.models.rope import yarn_magnitude

#: What the norms of the latent values use, whatever the config says of the others.
_LATENT_NORM_EPS = 1e-6


def read_latent_attention(hf: HfConfig) -> AttentionConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf.require("hidden_act", "silu", "silu")
    hf.require("attention_bias", False, False)
    heads = hf.integer("num_attention_heads")
    hf.require("num_key_value_heads", heads, heads)
    plain, rotated = hf.integer("qk_nope_head_dim"), hf.integer("qk_rope_head_dim")
    size, value = plain + rotated, hf.integer("v_head_dim")
    if size % 2 or max(size, value) > 256:
        raise CheckpointError(f"config.json: heads of {size} and {value} values are not supported; even and at most 256 are")
    rope = read_rope(hf, rotated)
    return AttentionConfig(
        heads=heads,
        kv_heads=heads,
        head_dim=size,
        value_dim=value,
        scale=size**-0.5 * _sharpening(hf),
        rope=rope,
        latent=LatentConfig(hf.integer("kv_lora_rank"), hf.count("q_lora_rank"), _LATENT_NORM_EPS),
    )


def _sharpening(hf: HfConfig) -> float:
    """The factor of the scores where YaRN has ``mscale_all_dim``: its square sharpens queries and keys, as the models'
    own code computes it. Not every release of transformers does.
    """
    parameters = HfConfig(rope_parameters(hf))
    weight = parameters.number("mscale_all_dim", 0.0)
    return yarn_magnitude(parameters.number("factor"), weight) ** 2 if weight else 1.0


def latent_attention(config: ModelConfig, layer: int) -> dict[str, TensorRef]:
    """Tensors of a layer with latent attention."""
    attention, hidden = config.attention, config.hidden
    latent, rotated = attention.latent, attention.rope.dims
    assert latent is not None
    plain, value = attention.head_dim - rotated, attention.value_dim
    attn = f"model.layers.{layer}.self_attn."
    halves = tuple(range(0, rotated, 2)) + tuple(range(1, rotated, 2))
    queries = tuple(
        h * attention.head_dim + i for h in range(attention.heads) for i in (*(plain + j for j in halves), *range(plain))
    )
    if latent.q_lora_rank:
        parts = {
            "q_a": TensorRef(f"{attn}q_a_proj.weight", (latent.q_lora_rank, hidden)),
            "q_a_norm": TensorRef(f"{attn}q_a_layernorm.weight", (latent.q_lora_rank,)),
            "q": TensorRef(f"{attn}q_b_proj.weight", (attention.query_width, latent.q_lora_rank), order=queries),
        }
    else:
        parts = {"q": TensorRef(f"{attn}q_proj.weight", (attention.query_width, hidden), order=queries)}
    down = TensorRef(f"{attn}kv_a_proj_with_mqa.weight", (latent.kv_lora_rank + rotated, hidden))
    both = plain + value
    up = TensorRef(f"{attn}kv_b_proj.weight", (attention.heads * both, latent.kv_lora_rank))
    return parts | {
        "kv_a": replace(down, all_rows=latent.kv_lora_rank),
        "k_rope": replace(down, first_row=latent.kv_lora_rank, all_rows=rotated, order=halves),
        "kv_a_norm": TensorRef(f"{attn}kv_a_layernorm.weight", (latent.kv_lora_rank,)),
        "k": replace(up, order=tuple(h * both + i for h in range(attention.heads) for i in range(plain))),
        "v": replace(up, order=tuple(h * both + plain + i for h in range(attention.heads) for i in range(value))),
        "o": TensorRef(f"{attn}o_proj.weight", (hidden, attention.output_width)),
    }
