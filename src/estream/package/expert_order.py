"""In which order a layer's experts lie on the tape, and are added."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from estream.models.config import MOST_EXPERTS, MOST_LAYERS, ExpertIndex, ModelConfig
from estream.schema import SchemaError

#: Ids of the experts of each layer, as they lie; a dense layer has none.
ExpertOrder = Annotated[
    tuple[Annotated[tuple[ExpertIndex, ...], Meta(max_length=MOST_EXPERTS)], ...], Meta(max_length=MOST_LAYERS)
]


def experts_of(config: ModelConfig, order: Sequence[Sequence[int]] | None, layer: int) -> Sequence[int]:
    """A layer's experts as they lie: in ``order``, without one by id."""
    if layer in config.dense_layers:
        return ()
    return range(config.moe.experts) if order is None else order[layer]


def check_expert_order(order: ExpertOrder, config: ModelConfig) -> None:
    """Raise SchemaError where it is not one permutation of the experts for each layer that has experts."""
    if len(order) != config.layers:
        raise SchemaError(f"'expert_order' has {len(order)} layers, the model has {config.layers}")
    count = config.moe.experts
    for layer, experts in enumerate(order):
        field = f"'expert_order[{layer}]'"
        if layer in config.dense_layers:
            if experts:
                raise SchemaError(f"{field} must be empty, found {len(experts)} experts: the layer is dense")
            continue
        if len(experts) != count:
            raise SchemaError(f"{field} names {len(experts)} experts, the model has {count}")
        if (largest := max(experts)) >= count:
            raise SchemaError(f"{field} names expert {largest}, the model has {count}")
        if len(named := set(experts)) != count:
            missing = next(e for e in range(count) if e not in named)
            raise SchemaError(f"{field} must name each expert once, found expert {missing} nowhere and another twice")
