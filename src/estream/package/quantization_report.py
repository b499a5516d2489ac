"""What quantising cost: the relative error of each layer's weights and, with a calibration text, of its experts' outputs."""

from collections import defaultdict
from typing import Annotated, NotRequired, TypedDict

from msgspec import Meta, field

from estream.models.config import ExpertIndex, LayerIndex
from estream.schema import NotNegative, Record

#: Significant digits that a manifest keeps.
_DIGITS = 4


class CalibrationText(TypedDict):
    """The text that experts were calibrated with, and how many tokens and windows of it."""

    text: str
    tokens: int
    windows: NotRequired[int]


class LayerError(Record, frozen=True):
    """Root mean square errors over root mean squares; ``outputs`` is None without a calibration text. ``scarce`` are the
    experts that too few tokens of the text reached.
    """

    layer: LayerIndex
    attention: NotNegative
    experts: NotNegative
    outputs: NotNegative | None
    scarce: list[ExpertIndex] = field(default_factory=list)


class QuantizationReport(Record, frozen=True):
    """``head`` is the error of the output matrix, ``calibration`` the text's name and tokens, None without one."""

    layers: Annotated[list[LayerError], Meta(min_length=1)]
    head: NotNegative
    calibration: CalibrationText | None


class ErrorTally:
    """Adds up squared errors while pages are made."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, kind: str, layer: int, squared_error: float, squared: float) -> None:
        """``kind`` is that of a page, or "outputs"."""
        sums = self._sums[kind, layer]
        sums[0] += squared_error
        sums[1] += squared

    def report(
        self, layers: int, calibration: CalibrationText | None = None, scarce: dict[int, list[int]] | None = None
    ) -> QuantizationReport:
        return QuantizationReport(
            [
                LayerError(
                    layer,
                    self._relative("attention", layer),
                    self._relative("expert", layer),
                    self._relative("outputs", layer) if calibration else None,
                    sorted((scarce or {}).get(layer, [])),
                )
                for layer in range(layers)
            ],
            self._relative("head", layers),
            calibration,
        )

    def _relative(self, kind: str, layer: int) -> float:
        error, all_of_it = self._sums[kind, layer]
        return float(f"{(error / all_of_it) ** 0.5 if all_of_it else 0.0:.{_DIGITS}g}")
