"""What a tiny model is made of."""

from dataclasses import dataclass
from typing import Any

Shapes = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class TinyFamily:
    """A family's classes in transformers, and values of their configs by what is particular about them. ``unsteady``: with
    random weights its layers multiply errors, so that what 8 bits lose is judged by what bfloat16 loses.
    """

    config: type
    model: type
    shapes: Shapes
    unsteady: bool = False
