"""Compressed checkpoints: reads ``quantization_config`` in ``config.json``, and combines codes and scales into decoders."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from estream.checkpoint.decoders import Fp8Tensor, Mxfp4Tensor, RowTensor
from estream.checkpoint.int4 import AwqTensor, GptqTensor, PackedInt4
from estream.checkpoint.shards import StoredTensor
from estream.errors import CheckpointError
from estream.schema import shown

Stored = dict[str, StoredTensor]
_KEYS = ("quantization_config", "compression_config")
_WHAT_TO_DO = "convert the uncompressed checkpoint, or one stored as fp8, mxfp4, gptq or awq"


@dataclass(frozen=True)
class DecodedTensors:
    """A checkpoint's tensors by name, and a description of their compression; None for an uncompressed checkpoint."""

    tensors: dict[str, RowTensor]
    compression: str | None


def decode_tensors(config: Mapping[str, Any], stored: Stored) -> DecodedTensors:
    """Combine compressed tensors with their scales into decoders. Uncompressed tensors stay as they are.

    Raises:
        CheckpointError: the method is not supported, or one of its tensors is missing or has another shape or type.

    """
    settings = next((config[key] for key in _KEYS if config.get(key) is not None), None)
    if settings is None:
        for tensor in stored.values():
            if tensor.dtype.startswith("F8_"):
                raise CheckpointError(
                    f"{tensor.file.name}: tensor '{tensor.name}' is {tensor.dtype}, but config.json has no "
                    "'quantization_config' that says how it is scaled; fetch the checkpoint's own config.json"
                )
        return DecodedTensors(dict(stored), None)
    if not isinstance(settings, dict):
        raise CheckpointError(f"config.json: 'quantization_config' must be an object, found {shown(settings)}")
    method = settings.get("quant_method")
    if not isinstance(method, str) or method not in _METHODS:
        raise CheckpointError(f"config.json: 'quant_method' {shown(method)} is not supported; {_WHAT_TO_DO}")
    return _METHODS[method](_Settings(settings), stored)


class _Settings:
    """Typed access to ``quantization_config``; every method raises CheckpointError."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def require(self, key: str, *supported: object) -> object:
        """Return the value, which must be one of ``supported``; the first of them if the key is absent."""
        value = self.values.get(key, supported[0])
        if not any(value is choice or (value == choice and not isinstance(value, bool)) for choice in supported):
            wanted = " or ".join(repr(choice) for choice in supported)
            raise CheckpointError(f"config.json: quantization_config's '{key}' is {shown(value)}, only {wanted} is supported")
        return value

    def group(self) -> int | None:
        """Return ``group_size``; None for -1, which puts all inputs into one group."""
        value = self.values.get("group_size")
        if value == -1:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(
                f"config.json: quantization_config's 'group_size' must be a count or -1, found {shown(value)}"
            )
        return value

    def block(self) -> tuple[int, int] | None:
        value = self.values.get("weight_block_size")
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != 2 or not all(type(n) is int and n > 0 for n in value):
            raise CheckpointError(f"config.json: 'weight_block_size' must be two counts, found {shown(value)}")
        return value[0], value[1]


class _Parts:
    """Moves tensors from ``left``, as stored, to ``decoded``, as decoders."""

    def __init__(self, stored: Stored) -> None:
        self.left: dict[str, StoredTensor] = dict(stored)
        self.decoded: dict[str, RowTensor] = {}

    def take(self, name: str, owner: StoredTensor) -> StoredTensor:
        """Take the tensor ``name``, which ``owner`` needs, out of ``left``."""
        if name not in self.left:
            raise CheckpointError(f"{owner.file.name}: tensor '{name}' is missing, without which '{owner.name}' has no scale")
        return self.left.pop(name)

    def add(self, tensor: RowTensor) -> None:
        if tensor.name in self.left:
            raise CheckpointError(f"{tensor.file.name}: tensor '{tensor.name}' is stored compressed and uncompressed")
        self.decoded[tensor.name] = tensor

    def result(self, compression: str) -> DecodedTensors:
        return DecodedTensors(self.left | self.decoded, compression)


def _fp8(settings: _Settings, stored: Stored) -> DecodedTensors:
    """``NAME`` holds codes; ``NAME_scale_inv``, or without blocks also ``NAME_scale``, their scales."""
    settings.require("activation_scheme", "dynamic")
    settings.require("fmt", "e4m3", "float8_e4m3fn")
    block = settings.block()
    parts = _Parts(stored)
    for tensor in [t for t in stored.values() if t.dtype == "F8_E4M3"]:
        if len(tensor.shape) < 2 or 0 in tensor.shape:
            raise CheckpointError(f"{tensor.file.name}: tensor '{tensor.name}' is F8_E4M3 {tensor.shape}, not a matrix")
        scale = f"{tensor.name}_scale_inv"
        if block is None and scale not in stored:
            scale = f"{tensor.name}_scale"
        scales = parts.take(scale, tensor)
        del parts.left[tensor.name]
        parts.add(Fp8Tensor(tensor.name, tensor, scales, block))
    return parts.result("fp8" if block is None else f"fp8 in blocks of {block[0]} x {block[1]}")


def _mxfp4(_: _Settings, stored: Stored) -> DecodedTensors:
    """``NAME_blocks`` and ``NAME_scales`` together decode to ``NAME``."""
    parts = _Parts(stored)
    for tensor in [t for t in stored.values() if t.name.endswith("_blocks")]:
        name = tensor.name.removesuffix("_blocks")
        scales = parts.take(f"{name}_scales", tensor)
        if len(tensor.shape) < 3 or 0 in tensor.shape:
            raise CheckpointError(f"{tensor.file.name}: tensor '{tensor.name}' is {tensor.shape}, not blocks of a matrix")
        del parts.left[tensor.name]
        parts.add(Mxfp4Tensor(name, tensor, scales))
    return parts.result("mxfp4")


def _int4(settings: _Settings, parts: _Parts) -> Iterator[tuple[str, PackedInt4]]:
    """Yield the tensors of each 4-bit matrix, with the prefix of its name."""
    settings.require("bits", 4)
    group = settings.group()
    for codes in [t for name, t in parts.left.items() if name.endswith(".qweight")]:
        prefix = codes.name.removesuffix("qweight")
        zeros, scales = parts.take(f"{prefix}qzeros", codes), parts.take(f"{prefix}scales", codes)
        del parts.left[codes.name]
        for part in (codes, zeros, scales):
            if len(part.shape) != 2 or 0 in part.shape:
                raise CheckpointError(f"{part.file.name}: tensor '{part.name}' is {part.shape}, not a matrix")
        yield prefix, PackedInt4(codes, zeros, scales, group)


def _describe_int4(name: str, settings: _Settings, symmetric: bool) -> str:
    group, symmetry = settings.group(), "symmetric" if symmetric else "asymmetric"
    return f"{name}, 4 bits, {symmetry}, " + ("one group per row" if group is None else f"groups of {group}")


def _gptq(settings: _Settings, stored: Stored) -> DecodedTensors:
    # Version 1 stores each zero minus 1.
    version = settings.require("checkpoint_format", "gptq", "gptq_v2")
    parts = _Parts(stored)
    for prefix, packed in _int4(settings, parts):
        g_idx = parts.left.pop(f"{prefix}g_idx", None)
        parts.add(GptqTensor(f"{prefix}weight", packed.codes, packed, g_idx, 1 if version == "gptq" else 0))
    return parts.result(_describe_int4("GPTQ", settings, settings.values.get("sym") is True))


def _awq(settings: _Settings, stored: Stored) -> DecodedTensors:
    settings.require("version", "gemm", "GEMM")
    parts = _Parts(stored)
    for prefix, packed in _int4(settings, parts):
        parts.add(AwqTensor(f"{prefix}weight", packed.codes, packed))
    return parts.result(_describe_int4("AWQ", settings, settings.values.get("zero_point") is False))


_METHODS: dict[str, Callable[[_Settings, Stored], DecodedTensors]] = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "gptq": _gptq,
    "awq": _awq,
}
