"""Calls of the native module with hostile shapes, addresses inside one arena, and rows that are not there.

Each byte of an input decides one choice. What is refused raises ValueError; anything else must stay inside of its arrays, which
AddressSanitizer judges where the module is built with it (CONTRIBUTING.md).
"""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from estream import _native
from fuzz.harness import Run, Target
from fuzz.mutate import mutate_bytes

_ARENA = 4 << 20
_REFUSALS = (ValueError, IndexError, TypeError, OverflowError, MemoryError)


class Choices:
    """Reads choices from bytes; zeros follow the last."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    @property
    def left(self) -> bool:
        return self._at < len(self._data)

    def of(self, values: Any) -> Any:
        return values[self.byte() % len(values)]

    def size(self) -> int:
        return int(self.of((1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 48, 64, 96, 100, 128, 160, 256, 0)))

    def floats(self, *shape: int) -> np.ndarray:
        rng = np.random.default_rng(self.byte())
        values = rng.standard_normal(shape).astype(np.float32)
        if self.byte() % 8 == 0:
            values.flat[:1] = self.of((np.nan, np.inf, 1e38, 0.0))
        return values

    def rows(self, count: int, limit: int) -> np.ndarray:
        rows = np.arange(count, dtype=np.int32) % max(limit, 1)
        if self.byte() % 4 == 0 and count:
            rows[self.byte() % count] = self.of((-1, limit, limit + 1, 2**31 - 1, -(2**31), limit - 1))
        return rows

    def fit(self, size: int) -> int:
        """Mostly the right size."""
        return size if self.byte() % 4 else self.of((size + 1, max(size - 1, 0), self.size()))


def _matrix(c: Choices) -> Any:
    group = c.of((32, 64, 128, 32, 16, 0))
    return _native.Matrix(c.size(), c.of((1, 2, 3)) * group, c.of((4, 8, 4, 8, 5)), group)


def _quantized(c: Choices, rows: int, columns: int, group: int) -> Any:
    groups = max(columns // max(group, 1), 1)
    codes = np.zeros((c.fit(rows), c.fit(columns)), np.int8)
    codes[...] = c.byte() - 128
    scales, sums = np.ones((rows, c.fit(groups)), np.float32), np.zeros((rows, groups), np.int32)
    return _native.Quantized(codes, scales, sums)


class Calls:
    def __init__(self, folder: Path) -> None:
        self._arena = _native.Arena(_ARENA)
        self._bytes = self._arena.bytes()
        self._device = _native.CpuDevice(1, False)
        self._file = folder / "bytes"
        self._file.write_bytes(bytes(range(256)) * 64)

    def one(self, c: Choices) -> None:
        kind: Callable[[Choices], None] = c.of((self._pack, self._codes, self._records, self._read, self._delta, self._conv))
        kind(c)

    def _pack(self, c: Choices) -> None:
        m, dtype = _matrix(c), c.of(("float32", "float16", "bfloat16", "int8"))
        columns, rows = c.fit(m.inputs), c.size()
        source = c.floats(rows, max(columns, 1)).view(np.uint8).reshape(-1)
        packer, to = _native.Packer(1), np.zeros(c.fit(m.bytes), np.uint8)
        order = c.rows(c.fit(m.outputs), rows)
        packer.pack(m, [source[c.of((0, 0, 0, 1, 2)) :]], dtype, columns, order, to)
        packer.error(m, [source], dtype, columns, order, to)
        _native.unpack(m, to, np.zeros((c.fit(m.outputs), c.fit(m.inputs)), np.float32))
        _native.column_squares(source, dtype, np.zeros(c.size(), np.float64))

    def _codes(self, c: Choices) -> None:
        m, rows = _matrix(c), c.size()
        columns = c.fit(m.inputs)
        codes = np.full((rows, columns), c.of((0, 7, -8, 8, -128, 127)), np.int8)
        scales = np.full((c.fit(rows), c.fit(columns // m.group)), c.of((0x3C00, 0x7C00, 0x7E00, 0)), np.uint16)
        _native.Packer(1).pack_codes(m, codes, scales, c.rows(c.fit(m.outputs), rows), np.zeros(c.fit(m.bytes), np.uint8))

    def _records(self, c: Choices) -> None:
        rows, width = c.size(), c.size()
        data = np.zeros((rows, c.fit(width + 8)), np.uint8)
        _native.seal_rows(np.ones((c.fit(rows), width), np.uint8), data)
        offsets = c.rows(c.size(), rows).astype(np.int64) * c.of((width + 8, 1, 2**40, -1))
        offsets[:1] = c.of((0, 0, 2**63 - 1, -(2**63), 2**62, data.size))
        _native.open_records(data.reshape(-1), offsets, np.zeros((c.fit(len(offsets)), c.fit(width)), np.uint8))

    def _read(self, c: Choices) -> None:
        big = (0, 1, 4096, 8192, 4097, 2**31, 2**62, 2**63, 2**64 - 4096, 2**64 - 1)
        reader = _native.Reader([str(self._file)], c.of((1, 2, 0, 65)), c.of((4096, 8192, 0, 100)), c.of((False, True)))
        length = c.of((4096, 8192, 1, 0, 16384, 5000))
        pages = [(c.of(big), c.of((4096, 1, 0, length, *big)), c.byte(), bool(c.byte() % 2)) for _ in range(c.byte() % 4)]
        offset, file = c.of(big), c.of((0, 0, 0, 0, 1, -1, 2**31 - 1, -(2**31), 2**31))
        ticket = reader.submit(file, offset, self._arena.address, length, pages)
        for number in (ticket, ticket + c.byte(), c.of(big)):
            reader.wait(number, 0.01)
            reader.is_published(number)
        parts = [(c.of(big), self._arena.address + c.byte() * 4096, c.of((1, 4096, 100, 8192, 0))) for _ in range(c.byte() % 4)]
        reader.wait(reader.gather(c.of((0, 0, 0, 1, -1)), parts), c.of((0.01, 0.0, -1.0, float("nan"), 1e300)))
        reader.cancel()
        reader.direct(c.of((0, 1, -1, 2**31 - 1)))

    def _delta(self, c: Choices) -> None:
        heads = c.of((1, 2, 3, 0, -1))
        key, value = c.size(), c.of((16, 32, 8, 0))
        shape = _native.DeltaShape(heads, c.of((heads, heads * 2, 3)), key, value)
        rows, values = c.size(), c.fit(heads * value)
        mixed, rates = c.floats(rows, c.fit(2 * heads * key + values)), c.floats(c.fit(rows), 2 * heads)
        state = np.zeros((heads, c.fit(key), value), np.float32)
        _native.delta_rule(self._device, shape, mixed, rates, c.rows(rows, rows), state, c.floats(rows, values))

    def _conv(self, c: Choices) -> None:
        rows, columns, kernel = c.size(), c.size(), c.of((1, 2, 4))
        x = c.floats(c.fit(rows + kernel - 1), columns)
        positions = c.rows(c.fit(rows), rows)
        _native.causal_conv(self._device, x, positions, self._arena.address, c.floats(rows, c.fit(columns)))
        _native.gate(
            self._device, c.floats(rows, c.fit(columns)), c.floats(rows, columns), True, c.floats(rows, c.fit(columns))
        )


def _prepare(folder: Path) -> Run:
    calls = Calls(folder)

    def run(data: bytes) -> None:
        choices = Choices(data)
        for _ in range(50):
            if not choices.left:
                return
            try:
                calls.one(choices)
            except _REFUSALS:
                continue

    return run


def _mutate(data: bytes, rng: Random) -> bytes:
    if rng.random() < 0.3:
        return rng.randbytes(rng.randrange(400))
    return mutate_bytes(data, rng)


def _seeds() -> dict[str, bytes]:
    return {f"call{kind}": bytes([kind, *Random(kind).randbytes(200)]) for kind in range(6)}


TARGET = Target("native_calls", "", _prepare, _mutate, _seeds)
