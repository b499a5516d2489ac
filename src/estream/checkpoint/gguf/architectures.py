"""The architectures of GGUF that are read: their settings in the words of ``config.json``, their tensors in those of
Hugging Face. Names are those of ``gguf-py/gguf/constants.py`` in llama.cpp; what its conversion changes is undone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from estream.checkpoint.gguf import configs, hybrids
from estream.checkpoint.gguf.configs import Config, Facts
from estream.checkpoint.gguf.keys import Keys
from estream.checkpoint.gguf.reader import GgufTensor
from estream.checkpoint.gguf.views import View
from estream.errors import CheckpointError

#: Of the whole model.
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
_HYBRID_WHOLE = {"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"}


@dataclass(frozen=True)
class Architecture:
    """``names`` maps what stands between ``blk.N.`` and ``.weight`` or ``.bias`` to what stands below ``model.layers.N.``.

    Where the target has ``{e}``, the stored tensor is cut into experts along its first dimension; where several stored
    tensors have one target they are joined, expert by expert. ``whole`` maps names that have no ``.weight`` in Hugging Face.
    ``permuted``: the rows of q and k are reordered (:class:`estream.checkpoint.gguf.views.Piece`). Of ``transposed`` the
    columns are Hugging Face's rows. ``transposed_experts``: Hugging Face has the experts' matrices [inputs, outputs], with
    the outputs of gate and up side by side.
    """

    translate: Callable[[Keys, Facts], Config]
    names: Mapping[str, str]
    whole: Mapping[str, str] = field(default_factory=dict)
    permuted: bool = False
    transposed: frozenset[str] = frozenset()
    transposed_experts: bool = False
    #: Tensors whose values are part of the config.
    settings: frozenset[str] = frozenset()
    #: What else conversion changed, undone: by the config, the name below ``model.layers.N.`` and the view.
    undo: Callable[[Mapping[str, Any], str, View], View] = lambda _config, _name, view: view

    @property
    def order(self) -> list[str]:
        """All stored names below ``blk.N.``, in the order in which those of one target are joined."""
        return [*(f"{name}.{kind}" for kind in ("weight", "bias") for name in self.names), *self.whole]

    def config(self, keys: Keys, stored: Mapping[str, GgufTensor], read: Callable[[GgufTensor], list[float]]) -> Config:
        """Raises CheckpointError where a setting is missing, contradictory or unknown."""
        return self.translate(keys, Facts(stored, read))


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
            # Older files hold the two together, as Hugging Face does.
            "ssm_in": "linear_attn.in_proj_qkvz",
            "ssm_ba": "linear_attn.in_proj_ba",
        },
        whole=_HYBRID_WHOLE,
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
        whole=_HYBRID_WHOLE,
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
            # Newer files hold the two halves of kv_b apart, head by head, that of the keys transposed.
            "attn_k_b": "self_attn.kv_b_proj",
            "attn_v_b": "self_attn.kv_b_proj",
        },
        whole={"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
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
        whole={"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
    ),
    "gpt-oss": Architecture(
        configs.gpt_oss,
        _ATTENTION | {"post_attention_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.router"},
        whole={
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
    """Raises CheckpointError where it is not known."""
    architecture = ARCHITECTURES.get(keys.architecture)
    if architecture is None:
        raise CheckpointError(
            f"{keys.path}: architecture '{keys.architecture}' is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    return architecture
