"""Random matrices for the kernels, and what one kernel variant computes for fixed inputs."""

import numpy as np

from estream import _native


def variant_results():
    """What one variant computes for fixed inputs: exact integers and floats."""
    rng = np.random.default_rng(4)
    device = _native.CpuDevice(2, True)
    result = {}
    x = rng.standard_normal((13, 256)).astype(np.float32)
    for bits in (4, 8):
        for group in (32, 64, 128):
            matrix, packed, _ = random_matrix(rng, 70, 256, bits, group)
            quantized, codes, scales = quantized_rows(device, x, group)
            y = np.empty((13, 70), np.float32)
            device.matmul(matrix, packed.ctypes.data, quantized, y)
            result |= {f"exact_packed_{bits}_{group}": packed, f"exact_codes_{bits}_{group}": codes}
            result |= {f"product_{bits}_{group}": y, f"scales_{bits}_{group}": scales}
            floats = np.empty((13, 70), np.float32)
            device.matmul(matrix, packed.ctypes.data, x, floats)
            result[f"float_{bits}_{group}"] = floats
    # Rows of all sizes, some so small or large that their groups are quantised one by one; the last group is not whole.
    edges = rng.standard_normal((80, 1100)).astype(np.float32) * np.logspace(-44, 38, 80, dtype=np.float64)[:, None]
    edges[::7, ::3] = 0.0
    edges = np.clip(edges, -3e38, 3e38).astype(np.float32)
    for group in (32, 64, 128):
        columns = -(-1100 // group) * group
        codes, scales = np.empty((80, columns), np.int8), np.empty((80, columns // group), np.float32)
        sums = np.empty(scales.shape, np.int32)
        device.quantize(edges, 1100, _native.Quantized(codes, scales, sums))
        np.testing.assert_array_equal(codes.reshape(80, -1, group).sum(2, dtype=np.int32), sums)
        result |= {f"exact_edge_codes_{group}": codes, f"exact_edge_scales_{group}": scales}
    shape = _native.Attention(4, 2, 64, 64, 0.125)
    k, v = (rng.standard_normal((13, 128)).astype(np.float32) for _ in range(2))
    keys, values = np.zeros(2 * 32 * 64 * 4, np.uint8), np.zeros(2 * 32 * 64 * 4, np.uint8)
    rows = np.arange(13, dtype=np.int32)
    device.store_key_values(shape, k, v, rows, rows, keys, values, 32)
    out = np.empty((13, 256), np.float32)
    places = _native.QueryPlaces(rows, np.zeros(13, np.int32), np.zeros(1, np.int32))
    device.attention(shape, x, places, keys, values, 32, out)
    return result | {"attention": out, "exact_checksum": np.array(_native.checksum(packed), np.uint64)}


def random_matrix(rng, outputs, inputs, bits, group):
    matrix = _native.Matrix(outputs, inputs, bits, group)
    weights = rng.standard_normal((outputs, inputs)).astype(np.float32)
    # Kernels take addresses in pages, which are multiples of 64.
    memory = np.zeros(matrix.bytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    packed = memory[begin : begin + matrix.bytes]
    _native.Packer(1).pack(
        matrix, [weights.reshape(-1).view(np.uint8)], "float32", inputs, np.arange(outputs, dtype=np.int32), packed
    )
    stored = np.empty((outputs, inputs), np.float32)
    _native.unpack(matrix, packed, stored)
    return matrix, packed, stored


def quantized_rows(device, x, group):
    rows, columns = x.shape
    codes, scales = np.empty((rows, columns), np.int8), np.empty((rows, columns // group), np.float32)
    quantized = _native.Quantized(codes, scales, np.empty((rows, columns // group), np.int32))
    device.quantize(x, columns, quantized)
    return quantized, codes, scales
