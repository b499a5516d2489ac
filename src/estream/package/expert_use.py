"""How a model's experts were used: what texts and prompts have shown, as it is stored."""

from typing import Annotated

from msgspec import Meta

from estream.models.config import LayerIndex, ModelConfig
from estream.schema import NotNegative, Positive, Record, SchemaError


class UsedShare(Record, frozen=True):
    """One prompt of ``tokens`` used ``share`` of a layer's experts: a mean over prompts, of which ``weight`` says how much
    they count.
    """

    tokens: Positive
    share: Annotated[float, Meta(ge=0.0, le=1.0)]
    weight: NotNegative


class LayerUse(Record, frozen=True):
    """Of ``tokens``, ``chosen[e]`` chose expert e; old ones may count less than whole. ``curve`` has the share of experts that
    a prompt uses against its tokens, in rising order of those.
    """

    layer: LayerIndex
    tokens: Positive
    chosen: list[NotNegative]
    curve: Annotated[list[UsedShare], Meta(max_length=64)]


class ExpertUse(Record, frozen=True):
    """The layers of which something is known, in rising order."""

    layers: list[LayerUse]

    def check(self, config: ModelConfig) -> None:
        """Raises SchemaError where it does not belong to a model of this config."""
        known = -1
        for use in self.layers:
            field = f"the use of layer {use.layer}"
            if not known < use.layer < config.layers or use.layer in config.dense_layers:
                raise SchemaError(f"{field} does not belong: layers with experts are named in rising order, each once")
            known = use.layer
            if len(use.chosen) != config.moe.experts:
                raise SchemaError(f"{field} counts {len(use.chosen)} experts, the model has {config.moe.experts}")
            # Sums of rounded figures.
            if max(use.chosen) > use.tokens * 1.01 + 1:
                raise SchemaError(f"{field}: an expert was chosen more often than there were tokens")
            if any(a.tokens >= b.tokens for a, b in zip(use.curve, use.curve[1:], strict=False)):
                raise SchemaError(f"{field}: the curve's tokens must rise")
