"""OLMoE (``OlmoeForCausalLM``): every layer is a mixture of experts, and queries and keys are normalised over the whole
projection before they are split into heads. Paper: arXiv 2409.02060.
"""

from collections.abc import Mapping
from typing import Any

from estream.errors import CheckpointError
from estream.models.config import AttentionConfig, ExpertTensors, LayerTensors, ModelConfig, ModelTensors, MoeConfig, TensorRef
from estream.models.huggingface import HfConfig

NAME = "olmoe"
ARCHITECTURES = ("OlmoeForCausalLM",)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(values)
    hf.require("hidden_act", "silu", "silu")
    hf.require("attention_bias", False, False)
    hidden, heads = hf.integer("hidden_size"), hf.integer("num_attention_heads")
    kv_heads = hf.integer("num_key_value_heads", default=heads)
    experts, top_k = hf.integer("num_experts", "num_local_experts"), hf.integer("num_experts_per_tok")
    if heads % kv_heads:
        raise CheckpointError(f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    if top_k > experts:
        raise CheckpointError(f"config.json: num_experts_per_tok {top_k} exceeds num_experts {experts}")
    return ModelConfig(
        family=NAME,
        hidden=hidden,
        layers=hf.integer("num_hidden_layers"),
        vocabulary=hf.integer("vocab_size"),
        context=hf.integer("max_position_embeddings", default=4096),
        norm_eps=hf.number("rms_norm_eps", 1e-5),
        attention=AttentionConfig(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=hf.head_dim(hidden, heads),
            rope_theta=hf.rope_theta(),
            qk_norm="projection",
            clip=hf.number("clip_qkv", 0.0) if values.get("clip_qkv") is not None else None,
        ),
        moe=MoeConfig(
            experts=experts,
            top_k=top_k,
            width=hf.integer("intermediate_size"),
            normalise=hf.flag("norm_topk_prob", False),
        ),
        tied_head=hf.flag("tie_word_embeddings", False),
    )


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    """Where the weights lie, for either layout of the experts: a tensor each, or fused (gate first, then up)."""
    hidden, vocabulary = config.hidden, config.vocabulary
    embedding = TensorRef("model.embed_tokens.weight", (vocabulary, hidden))
    head = TensorRef("lm_head.weight", (vocabulary, hidden))
    return ModelTensors(
        embedding=embedding,
        final_norm=TensorRef("model.norm.weight", (hidden,)),
        head=embedding if config.tied_head else head,
        layers=tuple(_layer(config, index, available) for index in range(config.layers)),
        # Some writers store the tied head a second time.
        ignored=frozenset({head.name}) if config.tied_head else frozenset(),
    )


def _layer(config: ModelConfig, index: int, available: frozenset[str]) -> LayerTensors:
    hidden, attention = config.hidden, config.attention
    prefix = f"model.layers.{index}."

    def ref(name: str, *shape: int) -> TensorRef:
        return TensorRef(f"{prefix}{name}.weight", shape)

    fused = f"{prefix}mlp.experts.gate_up_proj" in available
    expert = _fused_expert if fused else _single_expert
    return LayerTensors(
        input_norm=ref("input_layernorm", hidden),
        q=ref("self_attn.q_proj", attention.query_width, hidden),
        k=ref("self_attn.k_proj", attention.kv_width, hidden),
        v=ref("self_attn.v_proj", attention.kv_width, hidden),
        o=ref("self_attn.o_proj", hidden, attention.query_width),
        q_norm=ref("self_attn.q_norm", attention.query_width),
        k_norm=ref("self_attn.k_norm", attention.kv_width),
        post_norm=ref("post_attention_layernorm", hidden),
        router=ref("mlp.gate", config.moe.experts, hidden),
        experts=tuple(expert(config, prefix, e) for e in range(config.moe.experts)),
    )


def _single_expert(config: ModelConfig, prefix: str, expert: int) -> ExpertTensors:
    name, hidden, width = f"{prefix}mlp.experts.{expert}.", config.hidden, config.moe.width
    return ExpertTensors(
        gate=TensorRef(f"{name}gate_proj.weight", (width, hidden)),
        up=TensorRef(f"{name}up_proj.weight", (width, hidden)),
        down=TensorRef(f"{name}down_proj.weight", (hidden, width)),
    )


def _fused_expert(config: ModelConfig, prefix: str, expert: int) -> ExpertTensors:
    hidden, width, experts = config.hidden, config.moe.width, config.moe.experts
    gate_up, down = f"{prefix}mlp.experts.gate_up_proj", f"{prefix}mlp.experts.down_proj"
    return ExpertTensors(
        gate=TensorRef(gate_up, (experts, 2 * width, hidden), expert, 0, width),
        up=TensorRef(gate_up, (experts, 2 * width, hidden), expert, width, width),
        down=TensorRef(down, (experts, hidden, width), expert, 0, hidden),
    )
