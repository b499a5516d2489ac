"""What a tiny model is made of."""

from dataclasses import dataclass
from typing import Any

from tolerances import INT8_LOGITS_RMS

Shapes = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class TinyFamily:
    """A family's classes in transformers, values of their configs by what is particular about them, and the tolerance of
    8-bit activations.
    """

    config: type
    model: type
    shapes: Shapes
    int8_rms: float = INT8_LOGITS_RMS
