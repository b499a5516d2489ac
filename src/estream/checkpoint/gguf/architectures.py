"""The supported GGUF architectures: how their settings become a ``config.json``, and their tensor names Hugging Face names.

GGUF names are those of ``gguf-py/gguf/constants.py`` in llama.cpp.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from estream.checkpoint.gguf import configs, hybrids
from estream.checkpoint.gguf.configs import Config, TensorFacts
from estream.checkpoint.gguf.keys import Keys
from estream.checkpoint.gguf.reader import GgufTensor
from estream.checkpoint.gguf.views import View
from estream.errors import CheckpointError

#: Tensors outside the layers.
MODEL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}

_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_POST_NORM = {"ffn_norm": "post_attention_layernorm"}
_DENSE = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{e}.gate_proj",
    "ffn_up_exps": "mlp.experts.{e}.up_proj",
    "ffn_down_exps": "mlp.experts.{e}.down_proj",
}
_MIXTRAL_EXPERTS = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{e}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{e}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{e}.w2",
}


def _shared(name: str) -> dict[str, str]:
    return {f"ffn_{part}_shexp": f"mlp.{name}.{part}_proj" for part in ("gate", "up", "down")}


_HYBRID = (
    _ATTENTION
    | _QK_NORMS
    | {"post_attention_norm": "post_attention_layernorm"}
    | _EXPERTS
    | _shared("shared_expert")
    | {
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        "ssm_conv1d": "linear_attn.conv1d",
        "ssm_norm": "linear_attn.norm",
        "ssm_out": "linear_attn.out_proj",
    }
)
_HYBRID_FULL_NAMES = {"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"}


@dataclass(frozen=True)
class Architecture:
    """How to read one GGUF architecture.

    ``translate`` makes the ``config.json``. ``names`` maps GGUF names to Hugging Face names, both without the layer's prefix
    (``blk.N.``, ``model.layers.N.``) and without ``.weight`` or ``.bias``. A target with ``{e}`` is one expert: the stored
    tensor is cut along its first dimension. Stored tensors with the same target are joined, expert by expert, in the order of
    ``names``. ``full_names`` maps names with their suffix, for targets that have none.
    """

    translate: Callable[[Keys, TensorFacts], Config]
    names: Mapping[str, str]
    full_names: Mapping[str, str] = field(default_factory=dict)
    #: Whether llama.cpp reorders the rows of q and k for its rotary positions (``views.Piece.heads``).
    permuted: bool = False
    #: Stored tensors whose columns are Hugging Face's rows.
    transposed: frozenset[str] = frozenset()
    #: Whether Hugging Face stores the experts' matrices as [inputs, outputs], with alternating outputs of gate and up.
    transposed_experts: bool = False
    #: Tensors whose values belong into the config.
    settings: frozenset[str] = frozenset()
    #: Reverts other changes of llama.cpp's conversion, given the config, the name below ``model.layers.N.`` and the view.
    undo: Callable[[Mapping[str, Any], str, View], View] = lambda _config, _name, view: view

    @property
    def join_order(self) -> list[str]:
        """All stored names below ``blk.N.``, in the order in which tensors of one target are joined."""
        return [*(f"{name}.{suffix}" for suffix in ("weight", "bias") for name in self.names), *self.full_names]

    def config(self, keys: Keys, stored: Mapping[str, GgufTensor], read: Callable[[GgufTensor], list[float]]) -> Config:
        """Make the ``config.json``. Raises CheckpointError where a setting is missing, contradictory or not supported."""
        return self.translate(keys, TensorFacts(stored, read))


ARCHITECTURES: dict[str, Architecture] = {
    "olmoe": Architecture(configs.olmoe, _ATTENTION | _QK_NORMS | _POST_NORM | _EXPERTS),
    "llama": Architecture(configs.mixtral, _ATTENTION | _POST_NORM | _MIXTRAL_EXPERTS, permuted=True),
    "qwen3moe": Architecture(configs.qwen3_moe, _ATTENTION | _QK_NORMS | _POST_NORM | _EXPERTS),
    "qwen2moe": Architecture(
        configs.qwen2_moe,
        _ATTENTION
        | _POST_NORM
        | _EXPERTS
        | _shared("shared_expert")
        | {
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        },
    ),
    "qwen3next": Architecture(
        hybrids.qwen3_next,
        _HYBRID
        | {
            "attn_qkv": "linear_attn.in_proj_qkvz",
            "attn_gate": "linear_attn.in_proj_qkvz",
            # Older files have one tensor for the two, as Hugging Face does.
            "ssm_in": "linear_attn.in_proj_qkvz",
            "ssm_ba": "linear_attn.in_proj_ba",
        },
        full_names=_HYBRID_FULL_NAMES,
        undo=hybrids.undo,
    ),
    "qwen35moe": Architecture(
        hybrids.qwen3_5_moe,
        _HYBRID
        | {
            "attn_qkv": "linear_attn.in_proj_qkv",
            "attn_gate": "linear_attn.in_proj_z",
            "ssm_beta": "linear_attn.in_proj_b",
            "ssm_alpha": "linear_attn.in_proj_a",
        },
        full_names=_HYBRID_FULL_NAMES,
        undo=hybrids.undo,
    ),
    "deepseek2": Architecture(
        configs.deepseek,
        _ATTENTION
        | _POST_NORM
        | _DENSE
        | _EXPERTS
        | _shared("shared_experts")
        | {
            "attn_q_a": "self_attn.q_a_proj",
            "attn_q_a_norm": "self_attn.q_a_layernorm",
            "attn_q_b": "self_attn.q_b_proj",
            "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
            "attn_kv_a_norm": "self_attn.kv_a_layernorm",
            "attn_kv_b": "self_attn.kv_b_proj",
            # Newer files split kv_b into keys and values, [heads, ...] each; the keys' part is transposed.
            "attn_k_b": "self_attn.kv_b_proj",
            "attn_v_b": "self_attn.kv_b_proj",
        },
        full_names={"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
        transposed=frozenset({"attn_k_b.weight"}),
    ),
    "glm4moe": Architecture(
        configs.glm4_moe,
        _ATTENTION
        | _QK_NORMS
        | {"post_attention_norm": "post_attention_layernorm"}
        | _DENSE
        | _EXPERTS
        | _shared("shared_experts"),
        full_names={"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
    ),
    "gpt-oss": Architecture(
        configs.gpt_oss,
        _ATTENTION | {"post_attention_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.router"},
        full_names={
            "attn_sinks.weight": "self_attn.sinks",
            "ffn_gate_exps.weight": "mlp.experts.gate_up_proj",
            "ffn_up_exps.weight": "mlp.experts.gate_up_proj",
            "ffn_down_exps.weight": "mlp.experts.down_proj",
            "ffn_gate_exps.bias": "mlp.experts.gate_up_proj_bias",
            "ffn_up_exps.bias": "mlp.experts.gate_up_proj_bias",
            "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
        },
        transposed_experts=True,
    ),
    "granitemoe": Architecture(
        configs.granite_moe,
        _ATTENTION
        | _POST_NORM
        | {
            "ffn_gate_inp": "block_sparse_moe.router.layer",
            "ffn_gate_exps": "block_sparse_moe.input_linear",
            "ffn_up_exps": "block_sparse_moe.input_linear",
            "ffn_down_exps": "block_sparse_moe.output_linear",
            "ffn_gate_shexp": "shared_mlp.input_linear",
            "ffn_up_shexp": "shared_mlp.input_linear",
            "ffn_down_shexp": "shared_mlp.output_linear",
        },
        permuted=True,
    ),
    "phimoe": Architecture(
        configs.phimoe,
        _ATTENTION | _POST_NORM | _MIXTRAL_EXPERTS,
        settings=frozenset({"rope_factors_long.weight", "rope_factors_short.weight"}),
    ),
}


def architecture_of(keys: Keys) -> Architecture:
    """Return the architecture that the keys name. Raises CheckpointError where it is not supported."""
    architecture = ARCHITECTURES.get(keys.architecture)
    if architecture is None:
        raise CheckpointError(
            f"{keys.path}: architecture '{keys.architecture}' is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    return architecture
