"""What most decoder families share: the sizes in ``config.json`` and the names of the tensors."""

from collections.abc import Callable, Collection

from msgspec import Struct
from msgspec.structs import replace

from estream.errors import CheckpointError
from estream.models.config import (
    MOST_EXPERTS,
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
from estream.models.huggingface_rope import RopeDefaults, read_rope
from estream.schema import shown

#: How ``ModelTensors.ignored`` describes the tensors of multi-token prediction.
MTP_NOTE = "for multi-token prediction"

#: The keys under which a config may give the number of routed experts.
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


class MoeNames(Struct, frozen=True):
    """Tensor names below ``model.layers.N.``; ``{e}`` stands for the expert's index.

    ``fused`` is the prefix of fused expert tensors, ``dense`` of a dense layer's MLP, ``shared`` of a shared expert.
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


#: The names that most families use, whether a tensor holds one expert or all.
DECODER_NAMES = MoeNames(
    router="mlp.gate",
    gate="mlp.experts.{e}.gate_proj",
    up="mlp.experts.{e}.up_proj",
    down="mlp.experts.{e}.down_proj",
    fused="mlp.experts.",
)


def read_attention(
    hf: HfConfig,
    rope: RopeDefaults,
    qk_norm: QkNorm = "none",
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    head_dim_nullable: bool = False,
) -> AttentionConfig:
    """Read grouped-query attention without biases, with scores divided by the square root of ``head_dim``.

    ``rope``, ``kv_heads`` and ``head_dim`` are what the family's class has where a config does not say it; without the last
    two, as many key heads as heads, and heads that share the residual's size. ``head_dim_nullable``: so they do for a null.

    Raises:
        CheckpointError: a setting is missing, has the wrong type, or is not supported.

    """
    hf.require("hidden_act", "silu", "silu")
    heads = hf.integer("num_attention_heads")
    key_heads = hf.integer("num_key_value_heads", default=kv_heads or heads, null=None if kv_heads else heads)
    if heads % key_heads:
        raise CheckpointError(f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {key_heads}")
    size = hf.head_dim(hf.integer("hidden_size"), heads, head_dim, nullable=head_dim_nullable)
    return AttentionConfig(heads, key_heads, size, size, float(size**-0.5), read_rope(hf, size, rope), qk_norm)


def read_moe(hf: HfConfig, intermediate_size_key: str, norm_topk_prob: bool) -> MoeConfig:
    """Read softmax routing and the experts' sizes; the config has their intermediate size under ``intermediate_size_key``.

    Raises:
        CheckpointError: a setting is missing or has the wrong type, or a token needs more experts than there are.

    """
    experts, top_k = hf.integer(*EXPERT_COUNTS, most=MOST_EXPERTS), hf.integer("num_experts_per_tok")
    if top_k > experts:
        raise CheckpointError(f"config.json: num_experts_per_tok {top_k} exceeds num_experts {experts}")
    return MoeConfig(experts, top_k, hf.integer(intermediate_size_key), norm_topk_prob)


def with_expert_groups(hf: HfConfig, moe: MoeConfig, defaults: tuple[int, int] | None = None) -> MoeConfig:
    """Add group-limited routing: a token's experts come from the ``topk_group`` best of ``n_group`` groups. ``defaults`` are
    those of the family's class for the two.

    Raises:
        CheckpointError: the groups do not divide the experts, or ``topk_group`` groups hold fewer experts than a token needs.

    """
    default_groups, default_top = defaults or (None, None)
    n_group, topk_group = hf.integer("n_group", default=default_groups), hf.integer("topk_group", default=default_top)
    if moe.experts % n_group or n_group > 64:
        raise CheckpointError(f"config.json: 'n_group' {n_group} must divide the {moe.experts} experts and be at most 64")
    if topk_group > n_group or moe.top_k > moe.experts // n_group * topk_group:
        raise CheckpointError(
            f"config.json: 'topk_group' {topk_group} of {n_group} groups cannot give {moe.top_k} of {moe.experts} experts"
        )
    return replace(moe, n_group=n_group, topk_group=topk_group)


def read_decoder(family: str, hf: HfConfig, attention: AttentionConfig, moe: MoeConfig) -> ModelConfig:
    """Read the sizes of a decoder with RMS norms whose layers all have experts. Raises CheckpointError."""
    # transformers gives single layers other settings by this key.
    hf.require("per_layer_config", None, None)
    return ModelConfig(
        family=family,
        hidden=hf.integer("hidden_size"),
        layers=hf.layers(),
        vocabulary=hf.integer("vocab_size"),
        context=hf.context(),
        norm_eps=hf.not_negative("rms_norm_eps"),
        attention=attention,
        moe=moe,
        tied_head=hf.flag("tie_word_embeddings", False),
    )


def with_first_layers_dense(hf: HfConfig, config: ModelConfig, default: int) -> ModelConfig:
    """Make the first ``first_k_dense_replace`` layers dense. Raises CheckpointError as ``with_dense_layers``."""
    # Counted before they are listed.
    return with_dense_layers(hf, config, range(min(hf.count("first_k_dense_replace", default), config.layers)))


def with_dense_layers(hf: HfConfig, config: ModelConfig, layers: Collection[int]) -> ModelConfig:
    """Make these layers dense: one MLP of ``intermediate_size`` instead of experts.

    Raises:
        CheckpointError: no layer with experts is left, or ``intermediate_size`` is missing.

    """
    if len(layers) == config.layers:
        raise CheckpointError("config.json: no layer has experts; estream runs mixtures of experts")
    if not layers:
        return config
    return replace(config, intermediate_size=hf.integer("intermediate_size"), dense_layers=tuple(sorted(layers)))


def with_sliding_window(config: ModelConfig, window: int, layers: Collection[int]) -> ModelConfig:
    """Give these layers a sliding window of ``window`` tokens."""
    # A window as long as the context hides nothing.
    if window >= config.context or not layers:
        return config
    return replace(config, attention=replace(config.attention, sliding_window=window, sliding_layers=tuple(layers)))


def layers_of_type(hf: HfConfig, types: tuple[str, str], default: Callable[[int], str]) -> tuple[int, ...]:
    """Return the layers of type ``types[0]``. ``layer_types`` gives each layer's type, ``default`` where it is absent or
    null.

    Raises:
        CheckpointError: ``layer_types`` holds a type that is not in ``types``, or does not have one entry per layer.

    """
    layers, found = hf.layers(), hf.values.get("layer_types")
    if found is None:
        found = [default(layer) for layer in range(layers)]
    if not isinstance(found, list) or len(found) != layers or any(name not in types for name in found):
        raise CheckpointError(
            f"config.json: 'layer_types' must name {' or '.join(types)} for each of {layers} layers, found {shown(found)}"
        )
    return tuple(layer for layer, name in enumerate(found) if name == types[0])


#: Names the tensors of a layer's attention page, by part (``package/layout.py``).
AttentionParts = Callable[[ModelConfig, int], dict[str, TensorRef]]


def grouped_query_attention(config: ModelConfig, layer: int) -> dict[str, TensorRef]:
    """Name the tensors of grouped-query attention in a layer."""
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
        by_head = attention.qk_norm == "head"
        for name, projection in (("q_norm", attention.query_width), ("k_norm", attention.key_width)):
            parts[name] = TensorRef(f"{prefix}self_attn.{name}.weight", (attention.head_dim if by_head else projection,))
    if attention.sinks:
        parts["sinks"] = TensorRef(f"{prefix}self_attn.sinks", (attention.heads,))
    return parts


def decoder_tensors(
    config: ModelConfig, names: MoeNames, available: frozenset[str], attention: AttentionParts = grouped_query_attention
) -> ModelTensors:
    """Name the tensors of a decoder. Experts may be single tensors or fused ones (gate rows first, then up rows).

    Multi-token prediction modules behind the last layer are ignored.
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
        ignored=_multi_token_prediction(config, available),
    )


def _multi_token_prediction(config: ModelConfig, available: frozenset[str]) -> dict[str, str]:
    """Multi-token prediction as in DeepSeek-V3 (arXiv 2412.19437): each module is stored as one more layer."""
    end = config.layers
    while f"model.layers.{end}.eh_proj.weight" in available:
        end += 1
    layers = {f"{layer}" for layer in range(config.layers, end)}
    named = ((name, name.split(".", 3)) for name in available if name.startswith("model.layers.")) if layers else ()
    return {name: MTP_NOTE for name, parts in named if len(parts) == 4 and parts[2] in layers}


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
        return LayerTensors(parts, (), _mlp(prefix + names.dense, config.hidden, config.intermediate_size))
    moe = config.moe
    parts["router"] = TensorRef(f"{prefix}{names.router}.weight", (moe.experts, config.hidden))
    if moe.router_bias:
        parts["router_bias"] = TensorRef(f"{prefix}{names.router}.bias", (moe.experts,))
    if moe.correction_bias:
        parts["correction_bias"] = TensorRef(prefix + names.correction, (moe.experts,))
    return LayerTensors(
        parts,
        experts=_experts(config, names, prefix, available),
        shared=_mlp(prefix + names.shared, config.hidden, moe.shared_intermediate_size)
        if moe.shared_intermediate_size
        else None,
        shared_gate=TensorRef(f"{prefix}{names.shared_gate}.weight", (1, config.hidden)) if moe.shared_gate else None,
    )


def _mlp(prefix: str, hidden: int, intermediate_size: int) -> MlpTensors:
    return MlpTensors(
        gate=TensorRef(f"{prefix}gate_proj.weight", (intermediate_size, hidden)),
        up=TensorRef(f"{prefix}up_proj.weight", (intermediate_size, hidden)),
        down=TensorRef(f"{prefix}down_proj.weight", (hidden, intermediate_size)),
    )


def _experts(config: ModelConfig, names: MoeNames, prefix: str, available: frozenset[str]) -> tuple[MlpTensors, ...]:
    hidden, intermediate_size, experts = config.hidden, config.moe.intermediate_size, range(config.moe.experts)
    gate_up, down = f"{prefix}{names.fused}gate_up_proj", f"{prefix}{names.fused}down_proj"
    if gate_up in available:
        return tuple(fused_mlp(gate_up, down, config, e) for e in experts)
    return tuple(
        MlpTensors(
            gate=TensorRef(f"{prefix}{names.gate.format(e=e)}.weight", (intermediate_size, hidden)),
            up=TensorRef(f"{prefix}{names.up.format(e=e)}.weight", (intermediate_size, hidden)),
            down=TensorRef(f"{prefix}{names.down.format(e=e)}.weight", (hidden, intermediate_size)),
        )
        for e in experts
    )


def fused_mlp(gate_up: str, down: str, config: ModelConfig, expert: int) -> MlpTensors:
    """One expert of the fused tensors ``gate_up`` [experts, 2 * intermediate_size, hidden], gate rows first, and ``down``
    [experts, hidden, intermediate_size].
    """
    experts, intermediate_size = config.moe.experts, config.moe.intermediate_size
    gate_up_shape = (experts, 2 * intermediate_size, config.hidden)
    return MlpTensors(
        gate=TensorRef(gate_up, gate_up_shape, expert, 0, intermediate_size),
        up=TensorRef(gate_up, gate_up_shape, expert, intermediate_size, intermediate_size),
        down=TensorRef(down, (experts, config.hidden, intermediate_size), expert),
    )
