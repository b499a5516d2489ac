"""What decoders of the usual build share: the sizes in ``config.json`` and the names of the tensors."""

from collections.abc import Callable, Collection

from msgspec import Struct
from msgspec.structs import replace

from estream.errors import CheckpointError
from estream.models.config import (
    AttentionConfig,
    LayerTensors,
    MlpTensors,
    ModelConfig,
    ModelTensors,
    MoeConfig,
    QkNorm,
    TensorRef,
)
from estream.models.huggingface import HfConfig
from estream.models.huggingface_rope import read_rope

#: What is said of tensors that are left out because they predict more than the next token.
FURTHER_TOKENS = "for predicting several tokens at once"

#: How families spell the number of routed experts; a config may use any of them.
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


class MoeNames(Struct, frozen=True):
    """Tensor names below ``model.layers.N.``; ``{e}`` stands for the expert. ``fused`` is the prefix of fused tensors,
    ``dense`` and ``shared`` those of dense layers' and shared experts' MLPs.
    """

    router: str
    gate: str
    up: str
    down: str
    fused: str
    dense: str = "mlp."
    shared: str = "mlp.shared_experts."
    shared_gate: str = "mlp.shared_expert_gate"
    correction: str = "mlp.gate.e_score_correction_bias"


#: The names that most families use, in either layout of the experts.
USUAL_NAMES = MoeNames(
    router="mlp.gate",
    gate="mlp.experts.{e}.gate_proj",
    up="mlp.experts.{e}.up_proj",
    down="mlp.experts.{e}.down_proj",
    fused="mlp.experts.",
)


def read_attention(hf: HfConfig, hidden: int, qk_norm: QkNorm = "none") -> AttentionConfig:
    """Grouped-query attention without biases, scores scaled by the root of the head's size."""
    hf.require("hidden_act", "silu", "silu")
    heads = hf.integer("num_attention_heads")
    kv_heads = hf.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise CheckpointError(f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    size = hf.head_dim(hidden, heads)
    return AttentionConfig(heads, kv_heads, size, size, float(size**-0.5), read_rope(hf, size), qk_norm)


def read_moe(hf: HfConfig, width: str, normalise: bool) -> MoeConfig:
    """Softmax routing; ``width`` is the key of the experts' intermediate size."""
    experts, top_k = hf.integer(*EXPERT_COUNTS), hf.integer("num_experts_per_tok")
    if top_k > experts:
        raise CheckpointError(f"config.json: num_experts_per_tok {top_k} exceeds num_experts {experts}")
    return MoeConfig(experts, top_k, hf.integer(width), normalise)


def read_groups(hf: HfConfig, moe: MoeConfig) -> MoeConfig:
    """With the groups that experts are chosen from.

    Raises:
        CheckpointError: they do not divide the experts, or hold too few.

    """
    groups, top_groups = hf.integer("n_group", default=1), hf.integer("topk_group", default=1)
    if moe.experts % groups or groups > 64:
        raise CheckpointError(f"config.json: 'n_group' {groups} must divide the {moe.experts} experts and be at most 64")
    if top_groups > groups or moe.top_k > moe.experts // groups * top_groups:
        raise CheckpointError(
            f"config.json: 'topk_group' {top_groups} of {groups} groups cannot give {moe.top_k} of {moe.experts} experts"
        )
    return replace(moe, n_group=groups, topk_group=top_groups)


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


def with_dense_layers(hf: HfConfig, config: ModelConfig, layers: Collection[int]) -> ModelConfig:
    """With these layers dense, of the width ``intermediate_size``."""
    if len(layers) == config.layers:
        raise CheckpointError("config.json: no layer has experts; estream runs mixtures of experts")
    if not layers:
        return config
    return replace(config, intermediate_size=hf.integer("intermediate_size"), dense_layers=tuple(sorted(layers)))


def with_window(config: ModelConfig, window: int, layers: Collection[int]) -> ModelConfig:
    """With a sliding window in these layers. One as long as the context hides nothing."""
    if window >= config.context or not layers:
        return config
    return replace(config, attention=replace(config.attention, sliding_window=window, sliding_layers=tuple(layers)))


def read_layer_kinds(hf: HfConfig, names: tuple[str, str], default: Callable[[int], str]) -> tuple[int, ...]:
    """Layers of the kind that ``names`` has first, as ``layer_types`` says, or ``default`` where it is absent.

    Raises:
        CheckpointError: it names other kinds, or not one for each layer.

    """
    layers = hf.integer("num_hidden_layers")
    kinds = hf.values.get("layer_types") or [default(layer) for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in names for kind in kinds):
        raise CheckpointError(f"config.json: 'layer_types' must name {' or '.join(names)} for each layer, found {kinds!r}")
    return tuple(layer for layer, kind in enumerate(kinds) if kind == names[0])


#: Gives the matrices and vectors of one layer's attention page, by part.
AttentionParts = Callable[[ModelConfig, int], dict[str, TensorRef]]


def grouped_attention(config: ModelConfig, layer: int) -> dict[str, TensorRef]:
    """Tensors of a layer with grouped-query attention."""
    attention, hidden, prefix = config.attention, config.hidden, f"model.layers.{layer}."
    parts: dict[str, TensorRef] = {}
    for name, outputs, inputs, bias in (
        ("q", attention.query_width, hidden, attention.input_bias),
        ("k", attention.key_width, hidden, attention.input_bias),
        ("v", attention.value_width, hidden, attention.input_bias),
        ("o", hidden, attention.output_width, attention.output_bias),
    ):
        parts[name] = TensorRef(f"{prefix}self_attn.{name}_proj.weight", (outputs, inputs))
        if bias:
            parts[f"{name}_bias"] = TensorRef(f"{prefix}self_attn.{name}_proj.bias", (outputs,))
    if attention.qk_norm != "none":
        whole = attention.qk_norm == "projection"
        widths = (attention.query_width, attention.key_width) if whole else (attention.head_dim, attention.head_dim)
        for name, width in zip(("q_norm", "k_norm"), widths, strict=True):
            parts[name] = TensorRef(f"{prefix}self_attn.{name}.weight", (width,))
    if attention.sinks:
        parts["sinks"] = TensorRef(f"{prefix}self_attn.sinks", (attention.heads,))
    return parts


def decoder_tensors(
    config: ModelConfig, names: MoeNames, available: frozenset[str], attention: AttentionParts = grouped_attention
) -> ModelTensors:
    """Where the weights lie, for either layout of the experts: a tensor each, or fused (gate first, then up).

    Modules behind the last layer that predict further tokens at once are not used.
    """
    embedding = TensorRef("model.embed_tokens.weight", (config.vocabulary, config.hidden))
    head = TensorRef("lm_head.weight", (config.vocabulary, config.hidden))
    norm = TensorRef("model.norm.weight", (config.hidden,))
    return ModelTensors(
        embedding=embedding,
        final_norm=norm,
        head=embedding if config.tied_head else head,
        layers=tuple(_layer(config, names, index, available, attention) for index in range(config.layers)),
        final_norm_bias=replace(norm, name="model.norm.bias") if config.norm == "layer" else None,
        head_bias=TensorRef("lm_head.bias", (config.vocabulary,)) if config.head_bias else None,
        repeated=head if config.tied_head and head.name in available else None,
        ignored=_further_predictions(config, available),
    )


def _further_predictions(config: ModelConfig, available: frozenset[str]) -> dict[str, str]:
    """Tensors of the modules for multi-token prediction, DeepSeek-V3's (arXiv 2412.19437), which lie as layers of their own."""
    index, prefixes = config.layers, []
    while f"model.layers.{index}.eh_proj.weight" in available:
        prefixes.append(f"model.layers.{index}.")
        index += 1
    return {name: FURTHER_TOKENS for name in available if name.startswith(tuple(prefixes))}


def _layer(
    config: ModelConfig, names: MoeNames, index: int, available: frozenset[str], attention: AttentionParts
) -> LayerTensors:
    prefix = f"model.layers.{index}."
    parts = attention(config, index)
    for part, name in (("input_norm", "input_layernorm"), ("post_norm", "post_attention_layernorm")):
        parts[part] = TensorRef(f"{prefix}{name}.weight", (config.hidden,))
        if config.norm == "layer":
            parts[f"{part}_bias"] = TensorRef(f"{prefix}{name}.bias", (config.hidden,))
    if index in config.dense_layers:
        return LayerTensors(parts, (), _plain_mlp(prefix + names.dense, config.hidden, config.intermediate_size))
    moe = config.moe
    parts["router"] = TensorRef(f"{prefix}{names.router}.weight", (moe.experts, config.hidden))
    if moe.router_bias:
        parts["router_bias"] = TensorRef(f"{prefix}{names.router}.bias", (moe.experts,))
    if moe.correction_bias:
        parts["correction_bias"] = TensorRef(prefix + names.correction, (moe.experts,))
    return LayerTensors(
        parts,
        experts=_experts(config, names, prefix, available),
        shared=_plain_mlp(prefix + names.shared, config.hidden, moe.shared_intermediate_size)
        if moe.shared_intermediate_size
        else None,
        shared_gate=TensorRef(f"{prefix}{names.shared_gate}.weight", (1, config.hidden)) if moe.shared_gate else None,
    )


def _plain_mlp(prefix: str, hidden: int, width: int) -> MlpTensors:
    return MlpTensors(
        gate=TensorRef(f"{prefix}gate_proj.weight", (width, hidden)),
        up=TensorRef(f"{prefix}up_proj.weight", (width, hidden)),
        down=TensorRef(f"{prefix}down_proj.weight", (hidden, width)),
    )


def _experts(config: ModelConfig, names: MoeNames, prefix: str, available: frozenset[str]) -> tuple[MlpTensors, ...]:
    hidden, width, experts = config.hidden, config.moe.intermediate_size, range(config.moe.experts)
    gate_up, down = f"{prefix}{names.fused}gate_up_proj", f"{prefix}{names.fused}down_proj"
    if gate_up in available:
        return tuple(fused_mlp(gate_up, down, len(experts), hidden, width, e) for e in experts)
    return tuple(
        MlpTensors(
            gate=TensorRef(f"{prefix}{names.gate.format(e=e)}.weight", (width, hidden)),
            up=TensorRef(f"{prefix}{names.up.format(e=e)}.weight", (width, hidden)),
            down=TensorRef(f"{prefix}{names.down.format(e=e)}.weight", (hidden, width)),
        )
        for e in experts
    )


def fused_mlp(gate_up: str, down: str, experts: int, hidden: int, width: int, expert: int) -> MlpTensors:
    """One expert of fused tensors [experts, 2 * width, hidden], gate first, and [experts, hidden, width]."""
    both = (experts, 2 * width, hidden)
    return MlpTensors(
        gate=TensorRef(gate_up, both, expert, 0, width),
        up=TensorRef(gate_up, both, expert, width, width),
        down=TensorRef(down, (experts, hidden, width), expert),
    )
