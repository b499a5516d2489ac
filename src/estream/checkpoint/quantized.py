"""What ``quantization_config`` in a ``config.json`` says, and which stored tensors make one matrix by it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from estream.checkpoint.decoders import Fp8Tensor, Mxfp4Tensor, RowTensor
from estream.checkpoint.int4 import AwqTensor, GptqTensor, PackedInt4
from estream.checkpoint.shards import StoredTensor
from estream.errors import CheckpointError

Stored = dict[str, StoredTensor]
_KEYS = ("quantization_config", "compression_config")
_WHAT_TO_DO = "convert the checkpoint that it was made from, or one stored as fp8, mxfp4, gptq or awq"


@dataclass(frozen=True)
class Presented:
    """A checkpoint's tensors as matrices to read, and in words how they were compressed, None where they were not."""

    tensors: dict[str, RowTensor]
    compression: str | None


def present(config: Mapping[str, Any], stored: Stored) -> Presented:
    """Put compressed tensors together with their scales; what belongs to none stays as it is.

    Raises:
        CheckpointError: the method is not known, or one of its tensors is missing, misshapen or of a wrong type.

    """
    settings = next((config[key] for key in _KEYS if config.get(key) is not None), None)
    if settings is None:
        for tensor in stored.values():
            if tensor.dtype.startswith("F8_"):
                raise CheckpointError(
                    f"{tensor.file.name}: tensor '{tensor.name}' is {tensor.dtype}, but config.json has no "
                    "'quantization_config' that says how it is scaled"
                )
        return Presented(dict(stored), None)
    if not isinstance(settings, dict):
        raise CheckpointError(f"config.json: 'quantization_config' must be an object, found {settings!r}")
    method = settings.get("quant_method")
    if not isinstance(method, str) or method not in _METHODS:
        raise CheckpointError(f"config.json: 'quant_method' {method!r} is not read; {_WHAT_TO_DO}")
    return _METHODS[method](_Settings(settings), stored)


class _Settings:
    """Typed access to ``quantization_config``."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def require(self, key: str, *supported: object) -> object:
        """The value, which must be one of these; the first where the key is absent."""
        value = self.values.get(key, supported[0])
        if not any(value is choice or (value == choice and not isinstance(value, bool)) for choice in supported):
            wanted = " or ".join(repr(choice) for choice in supported)
            raise CheckpointError(f"config.json: quantization_config's '{key}' is {value!r}, only {wanted} is read")
        return value

    def group(self) -> int | None:
        """``group_size``; None for -1, one group for all inputs."""
        value = self.values.get("group_size")
        if value == -1:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(f"config.json: quantization_config's 'group_size' must be a count or -1, found {value!r}")
        return value

    def block(self) -> tuple[int, int] | None:
        value = self.values.get("weight_block_size")
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != 2 or not all(type(n) is int and n > 0 for n in value):
            raise CheckpointError(f"config.json: 'weight_block_size' must be two counts, found {value!r}")
        return value[0], value[1]


class _Parts:
    """Takes tensors that belong together out of a checkpoint."""

    def __init__(self, stored: Stored) -> None:
        self.left: dict[str, StoredTensor] = dict(stored)
        self.decoded: dict[str, RowTensor] = {}

    def take(self, name: str, owner: StoredTensor) -> StoredTensor:
        """The tensor ``name``, which ``owner`` cannot be read without."""
        if name not in self.left:
            raise CheckpointError(f"{owner.file.name}: tensor '{name}' is missing, without which '{owner.name}' has no scale")
        return self.left.pop(name)

    def add(self, tensor: RowTensor) -> None:
        if tensor.name in self.left:
            raise CheckpointError(f"{tensor.file.name}: tensor '{tensor.name}' is stored compressed and uncompressed")
        self.decoded[tensor.name] = tensor

    def presented(self, compression: str) -> Presented:
        return Presented(self.left | self.decoded, compression)


def _fp8(settings: _Settings, stored: Stored) -> Presented:
    """Codes under the tensor's own name; scales under that name and ``_scale_inv``, or ``_scale`` without blocks."""
    settings.require("activation_scheme", "dynamic")
    settings.require("fmt", "e4m3", "float8_e4m3fn")
    block = settings.block()
    parts = _Parts(stored)
    for tensor in [t for t in stored.values() if t.dtype == "F8_E4M3"]:
        if len(tensor.shape) < 2:
            raise CheckpointError(f"{tensor.file.name}: tensor '{tensor.name}' is F8_E4M3 {tensor.shape}, not a matrix")
        scale = f"{tensor.name}_scale_inv"
        if block is None and scale not in stored:
            scale = f"{tensor.name}_scale"
        scales = parts.take(scale, tensor)
        del parts.left[tensor.name]
        parts.add(Fp8Tensor(tensor.name, tensor, scales, block))
    return parts.presented("fp8" if block is None else f"fp8 in blocks of {block[0]} x {block[1]}")


def _mxfp4(_: _Settings, stored: Stored) -> Presented:
    """``NAME_blocks`` and ``NAME_scales`` present themselves as ``NAME``."""
    parts = _Parts(stored)
    for tensor in [t for t in stored.values() if t.name.endswith("_blocks")]:
        name = tensor.name.removesuffix("_blocks")
        scales = parts.take(f"{name}_scales", tensor)
        if len(tensor.shape) < 3:
            raise CheckpointError(f"{tensor.file.name}: tensor '{tensor.name}' is {tensor.shape}, not blocks of a matrix")
        del parts.left[tensor.name]
        parts.add(Mxfp4Tensor(name, tensor, scales))
    return parts.presented("mxfp4")


def _int4(settings: _Settings, parts: _Parts) -> Iterator[tuple[str, PackedInt4]]:
    """The tensors of each 4-bit matrix, with the prefix of its name."""
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


def _words(name: str, settings: _Settings, symmetric: bool) -> str:
    group, kind = settings.group(), "symmetric" if symmetric else "asymmetric"
    return f"{name}, 4 bits, {kind}, " + ("a group a row" if group is None else f"groups of {group}")


def _gptq(settings: _Settings, stored: Stored) -> Presented:
    version = settings.require("checkpoint_format", "gptq", "gptq_v2")
    parts = _Parts(stored)
    for prefix, packed in _int4(settings, parts):
        g_idx = parts.left.pop(f"{prefix}g_idx", None)
        parts.add(GptqTensor(f"{prefix}weight", packed.codes, packed, g_idx, 1 if version == "gptq" else 0))
    return parts.presented(_words("GPTQ", settings, settings.values.get("sym") is True))


def _awq(settings: _Settings, stored: Stored) -> Presented:
    settings.require("version", "gemm", "GEMM")
    parts = _Parts(stored)
    for prefix, packed in _int4(settings, parts):
        parts.add(AwqTensor(f"{prefix}weight", packed.codes, packed))
    return parts.presented(_words("AWQ", settings, settings.values.get("zero_point") is False))


_METHODS: dict[str, Callable[[_Settings, Stored], Presented]] = {"fp8": _fp8, "mxfp4": _mxfp4, "gptq": _gptq, "awq": _awq}
