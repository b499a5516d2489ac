"""The rows of each page as they are to be quantised: read from the checkpoint and equalised."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from estream.checkpoint.huggingface import HfCheckpoint, widen
from estream.errors import CheckpointError
from estream.models.config import LayerTensors, ModelConfig, ModelTensors, TensorRef
from estream.package.layout import LANES, FloatPart, MatrixPart, PageSpec
from estream.quantization.equalise import (
    SAMPLED_EXPERTS,
    SAMPLED_ROWS,
    balancing_exponents,
    column_magnitudes,
    evenly,
    scale,
)


@dataclass(frozen=True)
class Rows:
    """Rows [any, columns] of ``dtype``, bfloat16 and float16 as their bits. Output i of the matrix is row ``order[i]``, or
    zeros where that is negative. ``ref`` is the tensor to name in an error.
    """

    values: np.ndarray
    dtype: str
    order: np.ndarray
    ref: TensorRef

    def floats(self) -> np.ndarray:
        return widen(self.values, self.dtype)


class PageWeights:
    """Reads what pages hold. Keeps the exponents of one layer and the matrices of one expert or slice."""

    def __init__(self, checkpoint: HfCheckpoint, config: ModelConfig, tensors: ModelTensors) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._tensors = tensors
        self._exponents: dict[tuple[str, int], np.ndarray] = {}
        self._expert: tuple[tuple[int, int, int], Rows, Rows] | None = None

    def final_norm(self) -> np.ndarray:
        """float32 [hidden]."""
        return scale(self._checkpoint.read_float32(self._tensors.final_norm), -self._columns("head", self._config.layers))

    def floats(self, spec: PageSpec, part: FloatPart) -> np.ndarray:
        """A part that is not quantised, float32 in the part's shape."""
        ref: TensorRef = getattr(self._tensors.layers[spec.layer], part.name)
        values = self._checkpoint.read_float32(ref)
        if part.name == "router":
            transposed = np.zeros(part.shape, np.float32)
            transposed[:, : values.shape[0]] = scale(values, self._columns("expert", spec.layer)).T
            return transposed
        if part.name in ("input_norm", "post_norm"):
            return scale(values, -self._columns("attention" if part.name == "input_norm" else "expert", spec.layer))
        return values

    def matrix(self, spec: PageSpec, part: MatrixPart) -> Rows:
        """A part that is quantised.

        Raises:
            CheckpointError: gate and up have different types, or the checkpoint cannot be read.

        """
        if spec.kind == "expert":
            gate_up, down = self._expert_rows(spec)
            return gate_up if part.name == "gate_up" else down
        ref = self._tensors.head if spec.kind == "head" else getattr(self._tensors.layers[spec.layer], part.name)
        first, count = (spec.first, spec.count) if spec.kind == "head" else (0, None)
        values, dtype = self._checkpoint.read_rows(ref, first, count), self._checkpoint.dtype(ref)
        if part.name != "o":
            values, dtype = _scaled(values, dtype, self._columns(spec.kind, spec.layer))
        return Rows(values, dtype, np.arange(part.outputs, dtype=np.int32), ref)

    def _expert_rows(self, spec: PageSpec) -> tuple[Rows, Rows]:
        key = (spec.layer, spec.expert, spec.slice)
        if self._expert is None or self._expert[0] != key:
            # Let go before the next is read.
            self._expert = None
            self._expert = (key, *self._read_expert(spec))
        return self._expert[1:]

    def _read_expert(self, spec: PageSpec) -> tuple[Rows, Rows]:
        read, expert = self._checkpoint.read_rows, self._tensors.layers[spec.layer].experts[spec.expert]
        if self._checkpoint.dtype(expert.gate) != self._checkpoint.dtype(expert.up):
            raise CheckpointError(f"tensors '{expert.gate.name}' and '{expert.up.name}' must have one dtype")
        down = np.ascontiguousarray(read(expert.down)[:, spec.first : spec.first + spec.count])
        down_dtype = self._checkpoint.dtype(expert.down)
        inner = balancing_exponents(
            column_magnitudes([widen(down[evenly(len(down), 2 * SAMPLED_ROWS)], down_dtype)]),
        )
        gate_up = np.concatenate([read(half, spec.first, spec.count) for half in (expert.gate, expert.up)])
        values, dtype = _scaled(gate_up, self._checkpoint.dtype(expert.gate), self._columns("expert", spec.layer))
        values, dtype = _scaled(values, dtype, np.concatenate([np.zeros_like(inner), -inner])[:, None])
        order = interleave(spec.count, spec.layout.matrix("gate_up").outputs)
        down, down_dtype = _scaled(down, down_dtype, inner)
        outputs = np.arange(spec.layout.matrix("down").outputs, dtype=np.int32)
        return Rows(values, dtype, order, expert.gate), Rows(down, down_dtype, outputs, expert.down)

    def _columns(self, kind: str, layer: int) -> np.ndarray:
        """The exponents of the columns that read one norm: the projections of attention, router and experts, or the head."""
        if kind == "head" and self._config.tied_head:
            # The embedding's columns are as large as the residual's channels, and the final norm is made for that.
            return np.zeros(self._config.hidden, np.int32)
        if (kind, layer) not in self._exponents:
            self._exponents = {key: value for key, value in self._exponents.items() if key[1] == layer}
            self._exponents[kind, layer] = balancing_exponents(column_magnitudes(self._readers(kind, layer)))
        return self._exponents[kind, layer]

    def _readers(self, kind: str, layer: int) -> Iterator[np.ndarray]:
        if kind == "head":
            for first in evenly(self._config.vocabulary, SAMPLED_EXPERTS):
                count = min(SAMPLED_ROWS, self._config.vocabulary - first)
                yield self._sample(self._tensors.head, first, count)
            return
        tensors = self._tensors.layers[layer]
        yield from (self._sample(ref) for ref in (_attention(tensors) if kind == "attention" else [tensors.router]))
        if kind == "expert":
            for index in evenly(self._config.moe.experts, SAMPLED_EXPERTS):
                expert, count = tensors.experts[index], min(SAMPLED_ROWS, self._config.moe.width)
                yield from (self._sample(half, 0, count) for half in (expert.gate, expert.up))

    def _sample(self, ref: TensorRef, first: int = 0, count: int | None = None) -> np.ndarray:
        return widen(self._checkpoint.read_rows(ref, first, count), self._checkpoint.dtype(ref))


def _attention(tensors: LayerTensors) -> list[TensorRef]:
    return [tensors.q, tensors.k, tensors.v]


def _scaled(values: np.ndarray, dtype: str, exponents: np.ndarray) -> tuple[np.ndarray, str]:
    """Untouched bits where nothing is scaled, else float32."""
    return (scale(widen(values, dtype), exponents), "float32") if exponents.any() else (values, dtype)


def interleave(width: int, outputs: int) -> np.ndarray:
    """Source rows (gate rows, then up rows) of a gate_up matrix whose panels hold 16 gate and 16 up outputs; -1 pads."""
    unit = np.arange(outputs // 2, dtype=np.int32)
    gate = np.where(unit < width, unit, -1).reshape(-1, 1, LANES)
    up = np.where(unit < width, unit + width, -1).reshape(-1, 1, LANES)
    return np.ascontiguousarray(np.concatenate([gate, up], 1).reshape(-1), np.int32)
