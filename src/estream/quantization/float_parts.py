"""The float32 parts of pages, from a checkpoint: norms, biases, routers, sinks."""

import numpy as np

from estream.checkpoint.source import CheckpointSource
from estream.models.config import MlpTensors, ModelTensors
from estream.package.layout import PageSpec
from estream.package.parts import SIMD_WIDTH, FloatPart


def interleave(width: int, outputs: int) -> np.ndarray:
    """Source rows (gate rows, then up rows) of a gate_up matrix whose panels hold 16 gate and 16 up outputs; -1 pads."""
    unit = np.arange(outputs // 2, dtype=np.int32)
    gate = np.where(unit < width, unit, -1).reshape(-1, 1, SIMD_WIDTH)
    up = np.where(unit < width, unit + width, -1).reshape(-1, 1, SIMD_WIDTH)
    return np.ascontiguousarray(np.concatenate([gate, up], 1).reshape(-1), np.int32)


def float_part(checkpoint: CheckpointSource, tensors: ModelTensors, spec: PageSpec, part: FloatPart) -> np.ndarray:
    """float32 of the part's shape, zeros where it is padded.

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
    # A convolution is stored by taps, as its kernel reads it.
    return values.reshape(part.shape[::-1]).T if part.name == "conv" else values


def _expert_bias(checkpoint: CheckpointSource, expert: MlpTensors, spec: PageSpec, part: FloatPart) -> np.ndarray:
    read = checkpoint.read_float32
    assert expert.gate_bias is not None
    assert expert.up_bias is not None
    assert expert.down_bias is not None
    if part.name == "down_bias":
        # Slices are added up, and the bias only once.
        return read(expert.down_bias) if spec.first == 0 else np.zeros(0, np.float32)
    units = slice(spec.first, spec.first + spec.count)
    both = np.concatenate([read(expert.gate_bias)[units], read(expert.up_bias)[units]])
    order = interleave(spec.count, part.shape[0])
    return np.where(order < 0, np.float32(0.0), both[order])
