"""Tensor types of GGUF: decodes blocks of values along a row. Layouts: ggml's ``ggml-common.h``.

A type whose blocks are integers times one scale can also return these integers as codes. A package with the same bits and
group stores them unchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

#: From uint8 [blocks, bytes per block] to float32 [blocks, values per block].
Dequantise = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class BlockCodes:
    """Codes int8 [blocks, 32] and fp16 bits of the scales, uint16 [blocks]; ``fits``: whether a package can hold them."""

    codes: np.ndarray
    scales: np.ndarray
    fits: bool


@dataclass(frozen=True)
class GgufType:
    """``block`` values are stored in ``bytes`` bytes. ``float_dtype`` is the type of unquantised values, empty otherwise;
    ``code_bits`` is 0 for types without codes.
    """

    name: str
    block: int
    bytes: int
    dequantise: Dequantise
    float_dtype: str = ""
    code_bits: int = 0
    codes: Callable[[np.ndarray], BlockCodes] | None = None


_SUPER_BLOCK = 256
#: Inputs per scale, in every type that has codes.
CODE_GROUP = 32
#: Twice the values of the fp4 format E2M1, by code.
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """Read the fp16 number at byte ``at`` of each block: float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Unpack the low halves of n bytes, then the high halves: uint8 [..., n] to [..., 2 n]."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    """Bit i of the 32 bits at byte ``at`` becomes bit 4 of value i: uint8 [blocks, 32]."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << 4


def _float32(blocks: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(blocks).view(np.float32)


def _float16(blocks: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)


def _bfloat16(blocks: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(blocks).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0_codes(blocks: np.ndarray) -> BlockCodes:
    return BlockCodes(_nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8), _scale_bits(blocks), True)


def _q8_0_codes(blocks: np.ndarray) -> BlockCodes:
    codes = blocks[:, 2:].view(np.int8)
    # ggml never writes -128, and a package cannot hold it.
    return BlockCodes(codes, _scale_bits(blocks), not bool((codes == -128).any()))


def _scale_bits(blocks: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(blocks[:, :2]).view(np.uint16).reshape(-1)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return np.asarray(_half(blocks, 0) * _q4_0_codes(blocks).codes)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return np.asarray(_half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2))


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    codes = (_nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)).view(np.int8) - np.int8(16)
    return np.asarray(_half(blocks, 0) * codes)


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return np.asarray(_half(blocks, 0) * codes.astype(np.float32) + _half(blocks, 2))


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8)


def _scales_and_minima(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unpack eight 6-bit scales and eight 6-bit minima from 12 bytes: uint8 [blocks, 8] each.

    Bytes 0-3 hold scales 0-3 and bytes 4-7 minima 0-3, in their low six bits. Bytes 8-11 hold the low four bits of scales 4-7
    (low half) and minima 4-7 (high half); the high two bits of these are the high two bits of bytes 0-7.
    """
    first, second, last = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, last & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, last >> 4 | second >> 6 << 4], axis=1)
    return scales, minima


def _with_minima(blocks: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Codes [blocks, 8, 32] of super-blocks times their scales, minus their minima: float32 [blocks, 256]."""
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    scale = (_half(blocks, 0) * scales)[:, :, None]
    minimum = (_half(blocks, 2) * minima)[:, :, None]
    return np.asarray((scale * codes - minimum).reshape(-1, _SUPER_BLOCK))


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    return _with_minima(blocks, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    bit = np.arange(8, dtype=np.uint8)[:, None]
    high = (blocks[:, 16:48].reshape(-1, 1, 32) >> bit & 1) << 4
    return _with_minima(blocks, low | high)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shift = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shift & 3) << 4
    codes = ((low | high).view(np.int8) - np.int8(32)).reshape(-1, 16, 16)
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return np.asarray((scales[:, :, None] * codes).reshape(-1, _SUPER_BLOCK))


def _e8m0_half(exponent: np.ndarray) -> np.ndarray:
    """Half of 2^(exponent - 127), as float32."""
    return np.ldexp(np.float32(1), exponent.astype(np.int32) - 128)


def _mxfp4(blocks: np.ndarray) -> np.ndarray:
    return np.asarray(_e8m0_half(blocks[:, :1]) * _E2M1[_nibbles(blocks[:, 1:])])


def _mxfp4_codes(blocks: np.ndarray) -> BlockCodes:
    codes = _E2M1[_nibbles(blocks[:, 1:])]
    # The scale of a block of zeros has no effect, and files hold any value there.
    exponent = np.where(codes.any(1), blocks[:, 0].astype(np.int32) - 128, 0)
    fits = bool(((exponent >= -24) & (exponent <= 15)).all())
    scales = np.ldexp(np.float32(1), np.clip(exponent, -24, 15)).astype(np.float16)
    return BlockCodes(codes, scales.view(np.uint16), fits)


#: The supported types, by their number in a file (``enum ggml_type``).
TYPES: dict[int, GgufType] = {
    0: GgufType("F32", 1, 4, _float32, "float32"),
    1: GgufType("F16", 1, 2, _float16, "float16"),
    30: GgufType("BF16", 1, 2, _bfloat16, "bfloat16"),
    2: GgufType("Q4_0", 32, 18, _q4_0, code_bits=4, codes=_q4_0_codes),
    3: GgufType("Q4_1", 32, 20, _q4_1),
    6: GgufType("Q5_0", 32, 22, _q5_0),
    7: GgufType("Q5_1", 32, 24, _q5_1),
    8: GgufType("Q8_0", 32, 34, _q8_0, code_bits=8, codes=_q8_0_codes),
    12: GgufType("Q4_K", _SUPER_BLOCK, 144, _q4_k),
    13: GgufType("Q5_K", _SUPER_BLOCK, 176, _q5_k),
    14: GgufType("Q6_K", _SUPER_BLOCK, 210, _q6_k),
    39: GgufType("MXFP4", 32, 17, _mxfp4, code_bits=8, codes=_mxfp4_codes),
}

#: Names of unsupported types, for messages.
UNREAD_TYPES: dict[int, str] = {
    **{9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S"},
    **{20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"},
    **{29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4"},
}
