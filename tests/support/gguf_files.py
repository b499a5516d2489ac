"""GGUF files of tiny models, written with the ``gguf`` package as llama.cpp's conversion writes them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.quants import quantize
from transformers import PreTrainedModel

ARCHITECTURES = {"olmoe": "olmoe", "mixtral": "llama", "qwen3_moe": "qwen3moe"}

_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
}
_MODEL_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of q and k rows in the llama family: row i of a head beside row i + half."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def tensors_of(model: PreTrainedModel, family: str) -> dict[str, np.ndarray]:
    """The model's weights under their GGUF names, float32."""
    config = model.config
    result: dict[str, np.ndarray] = {}
    for name, parameter in model.state_dict().items():
        value = parameter.float().numpy()
        if name in _MODEL_NAMES:
            if not (name == "lm_head.weight" and config.tie_word_embeddings):
                result[_MODEL_NAMES[name]] = value
            continue
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        prefix = f"blk.{layer}."
        if rest == "mlp.experts.gate_up_proj":
            half = value.shape[1] // 2
            result[f"{prefix}ffn_gate_exps.weight"], result[f"{prefix}ffn_up_exps.weight"] = value[:, :half], value[:, half:]
        elif rest == "mlp.experts.down_proj":
            result[f"{prefix}ffn_down_exps.weight"] = value
        else:
            if family == "mixtral" and rest in ("self_attn.q_proj.weight", "self_attn.k_proj.weight"):
                value = permute(value, config.num_attention_heads if ".q_" in rest else config.num_key_value_heads)
            result[prefix + _LAYER_NAMES[rest]] = value
    return result


@dataclass
class GgufModel:
    """What goes into a file; ``kind_of`` chooses each matrix's type. Vectors and routers stay in float32."""

    family: str
    config: Any
    tensors: dict[str, np.ndarray]
    kind_of: Callable[[str], Kind] = lambda name: Kind.F32
    vocabulary: Callable[[gguf.GGUFWriter], None] | None = None
    extra_keys: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(model: PreTrainedModel, family: str, kind_of: Callable[[str], Kind] = lambda name: Kind.F32) -> "GgufModel":
        return GgufModel(family, model.config, tensors_of(model, family), kind_of)

    def write(self, path: Path, split: int = 0) -> None:
        """``split`` tensors at most in a part; one file where it is 0."""
        writer = gguf.GGUFWriter(path, ARCHITECTURES[self.family], split_max_tensors=split)
        add_keys(writer, self.family, self.config)
        set_keys(writer, self.extra_keys)
        (self.vocabulary or ids_only)(writer)
        for name, value in self.tensors.items():
            kind = self.kind_of(name) if value.ndim > 1 and "gate_inp" not in name else Kind.F32
            writer.add_tensor(name, quantize(np.ascontiguousarray(value), kind), raw_dtype=kind)
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def dequantised(self) -> dict[str, np.ndarray]:
        """The tensors as the file holds them, by the ``gguf`` package's own dequantisation."""
        result = {}
        for name, value in self.tensors.items():
            kind = self.kind_of(name) if value.ndim > 1 and "gate_inp" not in name else Kind.F32
            stored = quantize(np.ascontiguousarray(value), kind)
            result[name] = value if kind == Kind.F32 else gguf.quants.dequantize(stored, kind).reshape(value.shape)
        return result


def add_keys(writer: gguf.GGUFWriter, family: str, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_expert_count(config.num_local_experts if family == "mixtral" else config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_vocab_size(config.vocab_size)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_rope_dimension_count(config.head_dim)
    if family == "qwen3_moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if getattr(config, "clip_qkv", None):
        writer.add_clamp_kqv(config.clip_qkv)


def set_keys(writer: gguf.GGUFWriter, keys: dict[str, Any]) -> None:
    """Set or replace keys; None removes one."""
    kinds = {
        bool: gguf.GGUFValueType.BOOL,
        int: gguf.GGUFValueType.UINT32,
        float: gguf.GGUFValueType.FLOAT32,
        str: gguf.GGUFValueType.STRING,
    }
    for name, value in keys.items():
        writer.kv_data[0].pop(name, None)
        if isinstance(value, list):
            writer.add_array(name, value)
        elif value is not None:
            writer.add_key_value(name, value, kinds[type(value)])


def ids_only(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("no_vocab")


#: With rows of whole blocks of every type, and settings that llama.cpp has for the family.
SHAPES: dict[str, dict[str, Any]] = {
    "olmoe": {
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    "mixtral": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen3_moe": {
        "hidden_size": 256,
        "moe_intermediate_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
        "tie_word_embeddings": True,
    },
}
