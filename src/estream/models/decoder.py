"""What decoders of the usual build share: the sizes in ``config.json`` and the names of the tensors."""

from collections.abc import Callable
from dataclasses import dataclass

from estream.errors import CheckpointError
from estream.models.config import (
    AttentionConfig,
    ExpertTensors,
    LayerTensors,
    ModelConfig,
    ModelTensors,
    MoeConfig,
    QkNorm,
    TensorRef,
)
from estream.models.huggingface import HfConfig

#: How families spell the number of routed experts; a config may use any of them.
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class MoeNames:
    """Tensor names below ``model.layers.N.``; ``{e}`` stands for the expert. ``fused`` is the prefix of fused tensors."""

    router: str
    gate: str
    up: str
    down: str
    fused: str


def read_attention(hf: HfConfig, hidden: int, qk_norm: QkNorm, clip: float | None = None) -> AttentionConfig:
    """Grouped-query attention without biases, with unscaled rotary positions."""
    hf.require("hidden_act", "silu", "silu")
    hf.require("attention_bias", False, False)
    heads = hf.integer("num_attention_heads")
    kv_heads = hf.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise CheckpointError(f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    return AttentionConfig(heads, kv_heads, hf.head_dim(hidden, heads), hf.rope_theta(), qk_norm, clip)


def read_moe(hf: HfConfig, width: str, normalise: bool) -> MoeConfig:
    """Softmax routing; ``width`` is the key of the experts' intermediate size."""
    experts, top_k = hf.integer(*EXPERT_COUNTS), hf.integer("num_experts_per_tok")
    if top_k > experts:
        raise CheckpointError(f"config.json: num_experts_per_tok {top_k} exceeds num_experts {experts}")
    return MoeConfig(experts, top_k, hf.integer(width), normalise)


def read_decoder(family: str, hf: HfConfig, attention: AttentionConfig, moe: MoeConfig) -> ModelConfig:
    return ModelConfig(
        family=family,
        hidden=hf.integer("hidden_size"),
        layers=hf.integer("num_hidden_layers"),
        vocabulary=hf.integer("vocab_size"),
        context=hf.integer("max_position_embeddings"),
        norm_eps=hf.number("rms_norm_eps"),
        attention=attention,
        moe=moe,
        tied_head=hf.flag("tie_word_embeddings", False),
    )


def decoder_tensors(config: ModelConfig, names: MoeNames, available: frozenset[str]) -> ModelTensors:
    """Where the weights lie, for either layout of the experts: a tensor each, or fused (gate first, then up)."""
    embedding = TensorRef("model.embed_tokens.weight", (config.vocabulary, config.hidden))
    head = TensorRef("lm_head.weight", (config.vocabulary, config.hidden))
    return ModelTensors(
        embedding=embedding,
        final_norm=TensorRef("model.norm.weight", (config.hidden,)),
        head=embedding if config.tied_head else head,
        layers=tuple(_layer(config, names, index, available) for index in range(config.layers)),
        # Some writers store the tied head a second time.
        ignored=frozenset({head.name}) if config.tied_head else frozenset(),
    )


def _layer(config: ModelConfig, names: MoeNames, index: int, available: frozenset[str]) -> LayerTensors:
    hidden, attention = config.hidden, config.attention
    prefix = f"model.layers.{index}."

    def ref(name: str, *shape: int) -> TensorRef:
        return TensorRef(f"{prefix}{name}.weight", shape)

    q_norm = k_norm = None
    if attention.qk_norm != "none":
        whole = attention.qk_norm == "projection"
        q_norm = ref("self_attn.q_norm", attention.query_width if whole else attention.head_dim)
        k_norm = ref("self_attn.k_norm", attention.kv_width if whole else attention.head_dim)
    return LayerTensors(
        input_norm=ref("input_layernorm", hidden),
        q=ref("self_attn.q_proj", attention.query_width, hidden),
        k=ref("self_attn.k_proj", attention.kv_width, hidden),
        v=ref("self_attn.v_proj", attention.kv_width, hidden),
        o=ref("self_attn.o_proj", hidden, attention.query_width),
        q_norm=q_norm,
        k_norm=k_norm,
        post_norm=ref("post_attention_layernorm", hidden),
        router=ref(names.router, config.moe.experts, hidden),
        experts=_experts(config, names, prefix, ref, available),
    )


def _experts(
    config: ModelConfig, names: MoeNames, prefix: str, ref: Callable[..., TensorRef], available: frozenset[str]
) -> tuple[ExpertTensors, ...]:
    hidden, width, experts = config.hidden, config.moe.width, config.moe.experts
    gate_up, down = f"{prefix}{names.fused}gate_up_proj", f"{prefix}{names.fused}down_proj"
    if gate_up in available:
        both = (experts, 2 * width, hidden)
        return tuple(
            ExpertTensors(
                gate=TensorRef(gate_up, both, e, 0, width),
                up=TensorRef(gate_up, both, e, width, width),
                down=TensorRef(down, (experts, hidden, width), e, 0, hidden),
            )
            for e in range(experts)
        )
    return tuple(
        ExpertTensors(
            gate=ref(names.gate.format(e=e), width, hidden),
            up=ref(names.up.format(e=e), width, hidden),
            down=ref(names.down.format(e=e), hidden, width),
        )
        for e in range(experts)
    )
