"""What fields of a model's config demand of each other; what each may hold by itself stands in its type."""

from collections.abc import Iterator

from estream.models.config import AttentionConfig, ModelConfig, MoeConfig
from estream.schema import SchemaError, from_plain, to_plain

#: The largest product of heads and their size: beyond it layouts would be cut into millions of blocks.
_LARGEST_WIDTH = 1 << 20


def check_config(config: ModelConfig) -> None:
    """Whether a package can hold this model: types, ranges and what fields demand of each other.

    Raises:
        SchemaError: it cannot; the message names the field by its key in the manifest.

    """
    from_plain({"model": to_plain(config)}, dict[str, ModelConfig])
    check_consistency(config)


def check_consistency(config: ModelConfig) -> None:
    """Raises SchemaError where fields contradict each other."""
    for contradiction in (*_model(config), *_attention(config.attention), *_moe(config.moe)):
        raise SchemaError(contradiction)


def _model(config: ModelConfig) -> Iterator[str]:
    attention = config.attention
    kinds = {
        "dense_layers": (config.dense_layers, config.intermediate_size, "dense_width"),
        "attention.window_layers": (attention.sliding_layers, attention.sliding_window, "attention.window"),
        "attention.delta_layers": (attention.delta_layers, attention.delta, "attention.delta"),
    }
    for name, (layers, needed, needed_name) in kinds.items():
        if layers and max(layers) >= config.layers:
            yield f"'model.{name}' must name layers below {config.layers}, found {max(layers)}"
        if len(set(layers)) < len(layers):
            yield f"'model.{name}' must name each layer once, found {len(layers)} of {len(set(layers))} layers"
        if layers and not needed:
            yield f"'model.{needed_name}' must be given where 'model.{name}' names layers, found {needed!r}"
    if len(config.dense_layers) == config.layers:
        yield "'model.dense_layers' must leave a layer with experts, found all"


def _attention(attention: AttentionConfig) -> Iterator[str]:
    rope, delta = attention.rope, attention.delta
    if attention.heads % attention.kv_heads:
        yield f"'model.attention.kv_heads' must divide the {attention.heads} heads, found {attention.kv_heads}"
    if attention.heads * max(attention.head_dim, attention.value_dim) > _LARGEST_WIDTH:
        yield f"'model.attention.heads' must have at most {_LARGEST_WIDTH} values together, found {attention.heads} heads"
    if rope.dims > attention.head_dim or (attention.latent and rope.dims == attention.head_dim):
        yield f"'model.attention.rope.dims' must be less than the head's {attention.head_dim}, found {rope.dims}"
    if rope.scaling == "longrope" and {len(rope.short_factors), len(rope.long_factors)} != {rope.dims // 2}:
        yield f"'model.attention.rope.short_factors' and 'long_factors' must have {rope.dims // 2} values each"
    if rope.scaling == "yarn" and (rope.theta <= 1 or rope.original_context < 1):
        yield f"'model.attention.rope' with yarn needs theta above 1 and an original context, found {rope.theta:g}"
    if rope.scaling == "llama3" and (rope.low_frequency_factor >= rope.high_frequency_factor or rope.original_context < 1):
        yield "'model.attention.rope' with llama3 needs a low frequency factor below the high one, and an original context"
    if delta and delta.value_heads % delta.key_heads:
        yield f"'model.attention.delta.key_heads' must divide the {delta.value_heads} value heads, found {delta.key_heads}"
    if delta and (width := max(delta.conv_dim, delta.value_width)) > _LARGEST_WIDTH:
        yield f"'model.attention.delta' must have at most {_LARGEST_WIDTH} values together, found {width}"


def _moe(moe: MoeConfig) -> Iterator[str]:
    if moe.shared_gate and not moe.shared_intermediate_size:
        yield "'model.moe.shared_width' must be given where 'model.moe.shared_gate' is true, found 0"
    if moe.experts % moe.n_group:
        yield f"'model.moe.groups' must divide the {moe.experts} experts, found {moe.n_group}"
    if moe.topk_group > moe.n_group:
        yield f"'model.moe.top_groups' must be at most the {moe.n_group} groups, found {moe.topk_group}"
    if moe.top_k > (choice := moe.experts // moe.n_group * moe.topk_group):
        yield f"'model.moe.top_k' must be at most the {choice} experts to choose from, found {moe.top_k}"
