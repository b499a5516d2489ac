"""The float32 parts of pages: norms, biases, routers, sinks, convolutions."""

import numpy as np

from estream.checkpoint.source import CheckpointSource
from estream.models.config import MlpTensors, ModelTensors
from estream.package.layout import PageSpec
from estream.package.parts import SIMD_WIDTH, FloatPart


def interleave_gate_up(intermediate_size: int, outputs: int) -> np.ndarray:
    """Return the source row of each output of a ``gate_up`` matrix, int32 [outputs]; -1 for padding.

    Source rows are gate, then up; in the matrix 16 outputs of gate and 16 of up alternate.
    """
    unit = np.arange(outputs // 2, dtype=np.int32)
    gate = np.where(unit < intermediate_size, unit, -1).reshape(-1, 1, SIMD_WIDTH)
    up = np.where(unit < intermediate_size, unit + intermediate_size, -1).reshape(-1, 1, SIMD_WIDTH)
    return np.ascontiguousarray(np.concatenate([gate, up], 1).reshape(-1), np.int32)


def float_part(checkpoint: CheckpointSource, tensors: ModelTensors, spec: PageSpec, part: FloatPart) -> np.ndarray:
    """Read a part of a page: float32 of the part's shape, padded with zeros.

    Raises:
        CheckpointError: a value is not finite.

    """
    values = _values(checkpoint, tensors, spec, part)
    padded = np.zeros(part.shape, np.float32)
    padded[tuple(slice(n) for n in values.shape)] = values
    return padded


def _values(checkpoint: CheckpointSource, tensors: ModelTensors, spec: PageSpec, part: FloatPart) -> np.ndarray:
    read = checkpoint.read_float32
    if spec.kind == "head":
        assert tensors.head_bias is not None
        return read(tensors.head_bias)[spec.first : spec.first + spec.count]
    layer = tensors.layers[spec.layer]
    if spec.kind == "expert":
        return _expert_bias(checkpoint, layer.experts[spec.expert], spec, part)
    if part.name == "router":
        gate = [] if layer.shared_gate is None else [read(layer.shared_gate)]
        return np.concatenate([read(layer.parts["router"]), *gate]).T
    values = read(layer.parts[part.name])
    # The kernel reads a convolution as [conv_kernel_size, conv_dim]; checkpoints have [conv_dim, 1, conv_kernel_size].
    return values.reshape(part.shape[::-1]).T if part.name == "conv" else values


def _expert_bias(checkpoint: CheckpointSource, expert: MlpTensors, spec: PageSpec, part: FloatPart) -> np.ndarray:
    read = checkpoint.read_float32
    assert expert.gate_bias is not None
    assert expert.up_bias is not None
    assert expert.down_bias is not None
    if part.name == "down_bias":
        # The outputs of slices are summed, so only the first has the bias.
        return read(expert.down_bias) if spec.first == 0 else np.zeros(0, np.float32)
    units = slice(spec.first, spec.first + spec.count)
    gate_up = np.concatenate([read(expert.gate_bias)[units], read(expert.up_bias)[units]])
    order = interleave_gate_up(spec.count, part.shape[0])
    return np.where(order < 0, np.float32(0.0), gate_up[order])
