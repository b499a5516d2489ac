"""Reads the weights of each page from a checkpoint and equalises them: rows of matrices, and float32 parts."""

import threading
from collections.abc import Iterator

import numpy as np

from estream.checkpoint.source import CheckpointSource
from estream.errors import CheckpointError
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
    evenly_spaced,
    scale,
)
from estream.quantization.float_parts import float_part, interleave_gate_up
from estream.quantization.rows import MatrixRows, MatrixSource, read_matrix

#: The weights of a page by part: rows of a matrix, or float32 of a float part's shape.
PageRows = dict[str, MatrixRows | np.ndarray]
#: The matrices that read a norm: those of attention, or those of the MLPs and the router.
_NORM_READERS = {"input_norm": "attention", "input_norm_bias": "attention", "post_norm": "mlp", "post_norm_bias": "mlp"}


class PageWeights:
    """Reads the weights of pages; several threads may read at once.

    Keeps the equalising exponents of the layers around the last one read, and one matrix ``down``.
    """

    def __init__(self, checkpoint: CheckpointSource, config: ModelConfig, tensors: ModelTensors) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._tensors = tensors
        self._lock = threading.Lock()
        self._exponents: dict[tuple[str, int], np.ndarray] = {}
        self._down: LastResult[TensorRef, np.ndarray] = LastResult(checkpoint.read_rows)

    def final_norm(self) -> FinalNorm:
        """Return the final norm, equalised against the head's columns."""
        exponents, read = -self._column_exponents("head", self._config.layers), self._checkpoint.read_float32
        bias = self._tensors.final_norm_bias
        weight = _scaled(read(self._tensors.final_norm), exponents, self._tensors.final_norm.name)
        return FinalNorm(weight, None if bias is None else _scaled(read(bias), exponents, bias.name))

    def read(self, spec: PageSpec) -> PageRows:
        """Read the weights of a page.

        Raises:
            CheckpointError: a file cannot be read, or a value of a float part is not finite.

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
        """Estimate the bytes that a page's weights take in memory after ``read``."""
        return sum(
            p.outputs * p.source_inputs * EMBEDDING_ITEM_BYTES[self._checkpoint.dtype(self._source(spec, p).refs[0])]
            for p in spec.layout.parts
            if isinstance(p, MatrixPart)
        )

    def _floats(self, spec: PageSpec, part: FloatPart) -> np.ndarray:
        values = float_part(self._checkpoint, self._tensors, spec, part)
        if part.name in _NORM_READERS:
            return _scaled(values, -self._column_exponents(_NORM_READERS[part.name], spec.layer), part.name, spec)
        if part.name == "router":
            return _scaled(values, self._column_exponents("mlp", spec.layer)[:, None], part.name, spec)
        return values

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
        order = interleave_gate_up(spec.count, part.outputs)
        return MatrixSource((mlp.gate, mlp.up), order, page, spec.first, spec.count)

    def _matrix(self, spec: PageSpec, part: MatrixPart) -> MatrixRows:
        source = self._source(spec, part)
        # The slices of an expert take their columns from one matrix, which is read once.
        read = (lambda ref, _first, _count: self._down(ref)) if source.columns else None
        rows = read_matrix(self._checkpoint, source, part, read)
        if not rows.values or part.name == "down":
            return rows
        if spec.kind == "attention":
            if source.refs[0] not in self._attention_readers(spec.layer):
                return rows
            return rows.scaled(self._column_exponents("attention", spec.layer))
        return rows.scaled(self._column_exponents("head" if spec.kind == "head" else "mlp", spec.layer))

    def _balanced(self, gate_up: MatrixRows, down: MatrixRows) -> tuple[MatrixRows, MatrixRows]:
        """Equalise the columns of ``down`` against the rows of ``up``. Only plain SwiGLU without biases is linear in ``up``."""
        moe = self._config.moe
        if not gate_up.values or not down.values or moe.swiglu_limit > 0.0 or moe.expert_bias:
            return gate_up, down
        sample = down.values[0][:: evenly_spaced(down.count, 2 * SAMPLED_ROWS).step]
        exponents = balancing_exponents(column_magnitudes([(sample, down.dtype)], sample.shape[1]))
        return gate_up.scaled(np.concatenate([np.zeros_like(exponents), -exponents])[:, None]), down.scaled(exponents)

    def _column_exponents(self, readers: str, layer: int) -> np.ndarray:
        """The exponents of the columns of the ``readers`` of a norm ("attention", "mlp" or "head"): int32 [hidden]."""
        with self._lock:
            if (readers, layer) not in self._exponents:
                # Threads read a few pages ahead, so neighbouring layers stay.
                self._exponents = {key: value for key, value in self._exponents.items() if abs(key[1] - layer) <= 1}
                self._exponents[readers, layer] = self._compute_exponents(readers, layer)
            return self._exponents[readers, layer]

    def _compute_exponents(self, readers: str, layer: int) -> np.ndarray:
        unscaled = np.zeros(self._config.hidden, np.int32)
        if readers == "head" and (self._config.tied_head or self._checkpoint.code_format(self._tensors.head)):
            # The columns of a tied head are as large as the residual's channels, and the final norm fits them.
            return unscaled
        # Codes stay unchanged, so their columns cannot be scaled.
        if readers != "head" and any(self._checkpoint.code_format(ref) for ref in self._reader_matrices(readers, layer)):
            return unscaled
        return balancing_exponents(column_magnitudes(self._samples(readers, layer), self._config.hidden))

    def _attention_readers(self, layer: int) -> tuple[TensorRef, ...]:
        """Attention's matrices that read the input norm. Latent and linear attention are not equalised, so they have none."""
        attention = self._config.attention
        if attention.latent is not None or layer in attention.delta_layers:
            return ()
        parts = self._tensors.layers[layer].parts
        return tuple(parts[name] for name in ("q", "k", "v", "q_gate") if name in parts)

    def _mlps(self, layer: int, *, every: bool) -> Iterator[MlpTensors]:
        """The MLP of all tokens, then ``every`` expert or a sample of the experts."""
        tensors = self._tensors.layers[layer]
        if tensors.shared is not None:
            yield tensors.shared
        count = len(tensors.experts)
        for index in range(count) if every else evenly_spaced(count, SAMPLED_EXPERTS) if count else ():
            yield tensors.experts[index]

    def _reader_matrices(self, readers: str, layer: int) -> Iterator[TensorRef]:
        if readers == "attention":
            yield from self._attention_readers(layer)
            return
        for mlp in self._mlps(layer, every=True):
            yield from (mlp.gate, mlp.up)

    def _samples(self, readers: str, layer: int) -> Iterator[tuple[np.ndarray, str]]:
        """Sampled rows [any, hidden] of the matrices that read a norm, as they are stored, and their type."""
        if readers == "head":
            for first in evenly_spaced(self._config.vocabulary, SAMPLED_EXPERTS):
                yield self._sample(self._tensors.head, first, min(SAMPLED_ROWS, self._config.vocabulary - first))
        elif readers == "attention":
            yield from (self._sample(ref) for ref in self._attention_readers(layer))
        else:
            tensors = self._tensors.layers[layer]
            routers = (tensors.parts.get("router"), tensors.shared_gate)
            yield from (self._sample(ref) for ref in routers if ref is not None)
            for mlp in self._mlps(layer, every=False):
                intermediate_size = (
                    self._config.moe.intermediate_size
                    if mlp is not tensors.shared
                    else self._config.mlp_intermediate_size(layer)
                )
                rows = min(SAMPLED_ROWS, intermediate_size)
                yield from (self._sample(matrix, 0, rows) for matrix in (mlp.gate, mlp.up))

    def _sample(self, ref: TensorRef, first: int = 0, count: int | None = None) -> tuple[np.ndarray, str]:
        return self._checkpoint.read_rows(ref, first, count), self._checkpoint.dtype(ref)


def _scaled(values: np.ndarray, exponents: np.ndarray, name: str, page: object = "") -> np.ndarray:
    """Equalise a float part. Raises CheckpointError where a value leaves the range of float32."""
    with np.errstate(over="ignore"):
        scaled = scale(values, exponents)
    if scaled is not values and not np.isfinite(scaled).all():
        raise CheckpointError(f"'{name}' ({page or 'the last norm'}) holds a value that is too large to be equalised")
    return scaled
