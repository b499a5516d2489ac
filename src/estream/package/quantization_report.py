"""What quantising cost: the relative error of each layer's weights and, with a calibration text, of its experts' outputs."""

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

#: Significant digits that a manifest keeps.
_DIGITS = 4


@dataclass(frozen=True)
class LayerError:
    """Root mean square errors over root mean squares; ``outputs`` is None without a calibration text. ``scarce`` are the
    experts that too few tokens of the text reached.
    """

    layer: int
    attention: float
    experts: float
    outputs: float | None
    scarce: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class QuantizationReport:
    """``head`` is the error of the output matrix, ``calibration`` the text's name and tokens, None without one."""

    layers: list[LayerError]
    head: float
    calibration: dict[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> "QuantizationReport":
        layers = [LayerError(**layer) for layer in data["layers"]]
        return QuantizationReport(layers, float(data["head"]), data["calibration"])


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
        self, layers: int, calibration: dict[str, Any] | None = None, scarce: dict[int, list[int]] | None = None
    ) -> QuantizationReport:
        return QuantizationReport(
            [
                LayerError(
                    layer,
                    self._relative("attention", layer),
                    self._relative("expert", layer),
                    self._relative("outputs", layer) if calibration else None,
                    (scarce or {}).get(layer, []),
                )
                for layer in range(layers)
            ],
            self._relative("head", layers),
            calibration,
        )

    def _relative(self, kind: str, layer: int) -> float:
        error, all_of_it = self._sums[kind, layer]
        return float(f"{(error / all_of_it) ** 0.5 if all_of_it else 0.0:.{_DIGITS}g}")
