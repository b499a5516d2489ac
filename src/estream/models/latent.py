"""Multi-head latent attention of DeepSeek-V2 and V3 (arXiv 2405.04434): its sizes, scale and tensors.

In the checkpoint each head has its values without position (``nope``) first, then its rotated values (``rope``), which rotate
in pairs (2i, 2i + 1). Conversion puts the rotated values first, and pairs i with i + dims / 2, as in all other families. It
reorders queries and keys in the same way, so scores do not change.
"""

from functools import lru_cache

from msgspec.structs import replace

from estream.errors import CheckpointError
from estream.models.config import AttentionConfig, LatentConfig, ModelConfig, TensorRef
from estream.models.huggingface import HfConfig
from estream.models.huggingface_rope import RopeDefaults, read_rope, rope_parameters
from estream.models.rope import yarn_magnitude

#: Epsilon of the norms of the latent values. The models' code fixes it; ``rms_norm_eps`` is for the other norms.
_LATENT_NORM_EPS = 1e-6
_ROPE = RopeDefaults()


def read_latent_attention(hf: HfConfig, kv_heads: int | None) -> AttentionConfig:
    """Raises CheckpointError for any setting that the engine does not compute. ``kv_heads`` is the default of the family's
    class; None: as many as heads.
    """
    hf.require("hidden_act", "silu", "silu")
    hf.require("attention_bias", False, False)
    heads = hf.integer("num_attention_heads")
    if (found := hf.integer("num_key_value_heads", default=kv_heads or heads, null=heads)) != heads:
        raise CheckpointError(f"config.json: 'num_key_value_heads' must be the {heads} of num_attention_heads, found {found}")
    qk_rope_head_dim, v_head_dim = hf.integer("qk_rope_head_dim"), hf.integer("v_head_dim")
    qk_head_dim = hf.integer("qk_nope_head_dim") + qk_rope_head_dim
    if qk_head_dim % 2 or max(qk_head_dim, v_head_dim) > 256:
        raise CheckpointError(
            f"config.json: heads of {qk_head_dim} (qk_nope_head_dim + qk_rope_head_dim) and {v_head_dim} (v_head_dim) values "
            "are not supported; the first must be even, both at most 256"
        )
    return AttentionConfig(
        heads=heads,
        kv_heads=heads,
        head_dim=qk_head_dim,
        value_dim=v_head_dim,
        scale=qk_head_dim**-0.5 * _yarn_score_factor(hf),
        rope=read_rope(hf, qk_rope_head_dim, _ROPE),
        latent=LatentConfig(hf.integer("kv_lora_rank"), hf.integer("q_lora_rank", null=0), _LATENT_NORM_EPS),
    )


def _yarn_score_factor(hf: HfConfig) -> float:
    """The models' own code multiplies the scores by this where YaRN has ``mscale_all_dim``. Not every release of
    transformers does.
    """
    parameters = HfConfig(rope_parameters(hf, _ROPE))
    mscale_all_dim = parameters.not_negative("mscale_all_dim", 0.0, null=0.0)
    return yarn_magnitude(parameters.positive("factor"), mscale_all_dim) ** 2 if mscale_all_dim else 1.0


@lru_cache(maxsize=8)
def _by_head(heads: int, size: int, rows: tuple[int, ...]) -> tuple[int, ...]:
    """These rows of each head of ``size`` rows. All layers share the result."""
    return tuple(head * size + row for head in range(heads) for row in rows)


def latent_attention(config: ModelConfig, layer: int) -> dict[str, TensorRef]:
    """Name the tensors of latent attention in a layer."""
    attention, hidden = config.attention, config.hidden
    latent, rope_dim = attention.latent, attention.rope.dims
    assert latent is not None
    nope_dim, v_dim = attention.head_dim - rope_dim, attention.value_dim
    attn = f"model.layers.{layer}.self_attn."
    rope_order = (*range(0, rope_dim, 2), *range(1, rope_dim, 2))
    q_order = _by_head(attention.heads, attention.head_dim, (*(nope_dim + i for i in rope_order), *range(nope_dim)))
    if latent.q_lora_rank:
        parts = {
            "q_a": TensorRef(f"{attn}q_a_proj.weight", (latent.q_lora_rank, hidden)),
            "q_a_norm": TensorRef(f"{attn}q_a_layernorm.weight", (latent.q_lora_rank,)),
            "q": TensorRef(f"{attn}q_b_proj.weight", (attention.query_width, latent.q_lora_rank), order=q_order),
        }
    else:
        parts = {"q": TensorRef(f"{attn}q_proj.weight", (attention.query_width, hidden), order=q_order)}
    kv_a = TensorRef(f"{attn}kv_a_proj_with_mqa.weight", (latent.kv_lora_rank + rope_dim, hidden))
    kv_dim = nope_dim + v_dim
    kv_b = TensorRef(f"{attn}kv_b_proj.weight", (attention.heads * kv_dim, latent.kv_lora_rank))
    return parts | {
        "kv_a": replace(kv_a, all_rows=latent.kv_lora_rank),
        "k_rope": replace(kv_a, first_row=latent.kv_lora_rank, all_rows=rope_dim, order=rope_order),
        "kv_a_norm": TensorRef(f"{attn}kv_a_layernorm.weight", (latent.kv_lora_rank,)),
        "k": replace(kv_b, order=_by_head(attention.heads, kv_dim, tuple(range(nope_dim)))),
        "v": replace(kv_b, order=_by_head(attention.heads, kv_dim, tuple(range(nope_dim, kv_dim)))),
        "o": TensorRef(f"{attn}o_proj.weight", (hidden, attention.output_width)),
    }
