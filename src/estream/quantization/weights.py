"""What each page holds, read from a checkpoint and equalised: matrices by rows, norms, routers and biases in float32."""

import threading
from collections.abc import Iterator

import numpy as np

from estream.checkpoint.source import CheckpointSource
from estream.host.read_ahead import LastResult
from estream.models.config import MlpTensors, ModelConfig, ModelTensors, TensorRef
from estream.package.layout import PageSpec
from estream.package.manifest import EMBEDDING_ITEM_BYTES
from estream.package.package import FinalNorm
from estream.package.parts import FloatPart, MatrixPart
from estream.quantization.equalise import (
    SAMPLED_EXPERTS,
    SAMPLED_ROWS,
    balancing_exponents,
    column_magnitudes,
    evenly,
    scale,
)
from estream.quantization.float_parts import float_part, interleave
from estream.quantization.rows import MatrixRows, MatrixSource, read_matrix

#: What a page is made of, by the names of its parts.
PageRows = dict[str, MatrixRows | np.ndarray]
#: The norm in front of the matrices of a page of this kind.
_NORMS = {"input_norm": "attention", "input_norm_bias": "attention", "post_norm": "mlp", "post_norm_bias": "mlp"}


class PageWeights:
    """Reads what pages hold; several threads may do so at once. Keeps the exponents of a layer and one matrix ``down``."""

    def __init__(self, checkpoint: CheckpointSource, config: ModelConfig, tensors: ModelTensors) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._tensors = tensors
        self._lock = threading.Lock()
        self._exponents: dict[tuple[str, int], np.ndarray] = {}
        self._down: LastResult[TensorRef, np.ndarray] = LastResult(checkpoint.read_rows)

    def final_norm(self) -> FinalNorm:
        """The last norm, as its columns of the head are equalised."""
        exponents, read = -self._columns("head", self._config.layers), self._checkpoint.read_float32
        bias = self._tensors.final_norm_bias
        weight = scale(read(self._tensors.final_norm), exponents)
        return FinalNorm(weight, None if bias is None else scale(read(bias), exponents))

    def read(self, spec: PageSpec) -> PageRows:
        """All that a page needs of the checkpoint.

        Raises:
            CheckpointError: a file cannot be read, or a value that is not quantised is not finite.

        """
        rows: PageRows = {}
        for part in spec.layout.parts:
            if isinstance(part, FloatPart):
                rows[part.name] = self._floats(spec, part)
            elif isinstance(part, MatrixPart):
                rows[part.name] = self._matrix(spec, part)
        gate_up, down = rows.get("gate_up"), rows.get("down")
        if isinstance(gate_up, MatrixRows) and isinstance(down, MatrixRows):
            rows["gate_up"], rows["down"] = self._balanced(gate_up, down)
        return rows

    def read_bytes(self, spec: PageSpec) -> int:
        """About what the parts of a page take once they are read."""
        return sum(
            p.outputs * p.source_inputs * EMBEDDING_ITEM_BYTES[self._checkpoint.dtype(self._source(spec, p).refs[0])]
            for p in spec.layout.parts
            if isinstance(p, MatrixPart)
        )

    def _floats(self, spec: PageSpec, part: FloatPart) -> np.ndarray:
        values = float_part(self._checkpoint, self._tensors, spec, part)
        if part.name in _NORMS:
            return scale(values, -self._columns(_NORMS[part.name], spec.layer))
        return scale(values, self._columns("mlp", spec.layer)[:, None]) if part.name == "router" else values

    def _source(self, spec: PageSpec, part: MatrixPart) -> MatrixSource:
        order, page = np.arange(part.outputs, dtype=np.int32), str(spec)
        if spec.kind == "head":
            return MatrixSource((self._tensors.head,), order, page, spec.first, spec.count)
        layer = self._tensors.layers[spec.layer]
        if spec.kind == "attention":
            ref = layer.parts[part.name]
            return MatrixSource((ref,), order if ref.order is None else np.asarray(ref.order, np.int32), page)
        mlp = layer.experts[spec.expert] if spec.kind == "expert" else layer.shared
        assert mlp is not None
        if part.name == "down":
            columns = (spec.first, spec.first + spec.count) if spec.slice >= 0 else None
            return MatrixSource((mlp.down,), order, page, columns=columns)
        return MatrixSource((mlp.gate, mlp.up), interleave(spec.count, part.outputs), page, spec.first, spec.count)

    def _matrix(self, spec: PageSpec, part: MatrixPart) -> MatrixRows:
        source = self._source(spec, part)
        # Slices of an expert cut their columns from one matrix, which is read once.
        read = (lambda ref, _first, _count: self._down(ref)) if source.columns else None
        rows = read_matrix(self._checkpoint, source, part, read)
        if not rows.values or part.name == "down":
            return rows
        if spec.kind == "attention":
            return (
                rows.scaled(self._columns("attention", spec.layer))
                if source.refs[0] in self._reading_norm(spec.layer)
                else rows
            )
        return rows.scaled(self._columns("head" if spec.kind == "head" else "mlp", spec.layer))

    def _balanced(self, gate_up: MatrixRows, down: MatrixRows) -> tuple[MatrixRows, MatrixRows]:
        """A column of ``down`` against a row of ``up``, which SwiGLU takes linearly; other gates do not."""
        moe = self._config.moe
        if not gate_up.values or not down.values or moe.swiglu_limit > 0.0 or moe.expert_bias:
            return gate_up, down
        some = down.values[0][:: evenly(down.count, 2 * SAMPLED_ROWS).step]
        inner = balancing_exponents(column_magnitudes([(some, down.dtype)], some.shape[1]))
        return gate_up.scaled(np.concatenate([np.zeros_like(inner), -inner])[:, None]), down.scaled(inner)

    def _columns(self, norm: str, layer: int) -> np.ndarray:
        """The exponents of the columns that read one norm, int32 [hidden]: of attention, of the MLPs, or of the head."""
        with self._lock:
            if (norm, layer) not in self._exponents:
                # Threads read a few pages ahead: the layers around this one stay.
                self._exponents = {key: value for key, value in self._exponents.items() if abs(key[1] - layer) <= 1}
                self._exponents[norm, layer] = self._balance(norm, layer)
            return self._exponents[norm, layer]

    def _balance(self, norm: str, layer: int) -> np.ndarray:
        unscaled = np.zeros(self._config.hidden, np.int32)
        if norm == "head" and (self._config.tied_head or self._checkpoint.codes(self._tensors.head)):
            # A tied embedding's columns are as large as the residual's channels, and the final norm is made for that.
            return unscaled
        # Codes are kept as they are, so their columns cannot be scaled.
        if norm != "head" and any(self._checkpoint.codes(ref) for ref in self._all_reading(norm, layer)):
            return unscaled
        return balancing_exponents(column_magnitudes(self._samples(norm, layer), self._config.hidden))

    def _reading_norm(self, layer: int) -> tuple[TensorRef, ...]:
        """Attention's matrices that read the input norm; none for latent and linear attention, which stay as they are."""
        attention = self._config.attention
        if attention.latent is not None or layer in attention.delta_layers:
            return ()
        parts = self._tensors.layers[layer].parts
        return tuple(parts[name] for name in ("q", "k", "v", "q_gate") if name in parts)

    def _mlps(self, layer: int, *, every: bool) -> Iterator[MlpTensors]:
        tensors = self._tensors.layers[layer]
        if tensors.shared is not None:
            yield tensors.shared
        count = len(tensors.experts)
        for index in range(count) if every else evenly(count, SAMPLED_EXPERTS) if count else ():
            yield tensors.experts[index]

    def _all_reading(self, norm: str, layer: int) -> Iterator[TensorRef]:
        if norm == "attention":
            yield from self._reading_norm(layer)
            return
        for mlp in self._mlps(layer, every=True):
            yield from (mlp.gate, mlp.up)

    def _samples(self, norm: str, layer: int) -> Iterator[tuple[np.ndarray, str]]:
        """Rows of the matrices that read a norm [any, hidden] as they are stored, and their dtype."""
        if norm == "head":
            for first in evenly(self._config.vocabulary, SAMPLED_EXPERTS):
                yield self._sample(self._tensors.head, first, min(SAMPLED_ROWS, self._config.vocabulary - first))
        elif norm == "attention":
            yield from (self._sample(ref) for ref in self._reading_norm(layer))
        else:
            tensors = self._tensors.layers[layer]
            routers = (tensors.parts.get("router"), tensors.shared_gate)
            yield from (self._sample(ref) for ref in routers if ref is not None)
            for mlp in self._mlps(layer, every=False):
                width = (
                    self._config.moe.intermediate_size
                    if mlp is not tensors.shared
                    else self._config.mlp_intermediate_size(layer)
                )
                yield from (self._sample(half, 0, min(SAMPLED_ROWS, width)) for half in (mlp.gate, mlp.up))

    def _sample(self, ref: TensorRef, first: int = 0, count: int | None = None) -> tuple[np.ndarray, str]:
        return self._checkpoint.read_rows(ref, first, count), self._checkpoint.dtype(ref)
