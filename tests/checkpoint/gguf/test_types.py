"""Tensor types of GGUF: what blocks stand for, and codes that go into a package as they are."""

from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from reference import unpack

from estream import _native
from estream.checkpoint.gguf.types import CODE_GROUP, TYPES
from estream.errors import CheckpointError
from estream.models.config import TensorRef
from estream.package.layout import PageSpec
from estream.package.parts import MatrixPart, PageLayout
from estream.quantization.packing import PagePacker
from estream.quantization.rows import MatrixSource, read_matrix

BLOCKS = 3000


def _random_blocks(name: str, seed: int = 0) -> np.ndarray:
    """Any bytes, in which fp16 numbers are finite."""
    kind = next(t for t in TYPES.values() if t.name == name)
    blocks = np.random.default_rng(seed).integers(0, 256, (BLOCKS, kind.bytes), dtype=np.uint8)
    halves = {"Q4_K": (1, 3), "Q5_K": (1, 3), "Q4_1": (1, 3), "Q5_1": (1, 3), "Q6_K": (209,), "F32": (), "MXFP4": ()}
    for at in halves.get(name, (1,)):
        blocks[:, at] &= 0xBB
    return blocks


@pytest.mark.parametrize("number", TYPES, ids=lambda n: TYPES[n].name)
def test_blocks_stand_for_what_the_gguf_package_says(number: int):
    kind = TYPES[number]
    assert gguf.GGMLQuantizationType(number).name == kind.name
    assert gguf.GGML_QUANT_SIZES[number] == (kind.block, kind.bytes)
    blocks = _random_blocks(kind.name)
    with np.errstate(all="ignore"):
        expected = dequantize(blocks, gguf.GGMLQuantizationType(number)).astype(np.float32).reshape(BLOCKS, -1)
        found = kind.dequantise(blocks)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "MXFP4"])
def test_codes_times_scales_are_the_values(name: str):
    kind = next(t for t in TYPES.values() if t.name == name)
    blocks = _random_blocks(name)
    if name == "Q8_0":
        blocks[:, 2:][blocks[:, 2:] == 0x80] = 0x81
    if name == "MXFP4":
        # Scales that fp16 holds: 2^-24 to 2^15.
        blocks[:, 0] = 104 + blocks[:, 0] % 40
    found = kind.codes(blocks)
    assert found.fits
    lowest, highest = (-8, 7) if kind.code_bits == 4 else (-127, 127)
    assert lowest <= found.codes.min() <= found.codes.max() <= highest
    values = found.codes * found.scales.view(np.float16).astype(np.float32)[:, None]
    np.testing.assert_array_equal(values, kind.dequantise(blocks))


def test_what_a_package_cannot_hold_is_seen():
    q8, mxfp4 = _random_blocks("Q8_0"), _random_blocks("MXFP4")
    q8[:, 2:][q8[:, 2:] == 0x80] = 0
    mxfp4[:, 0] = 120
    assert TYPES[8].codes(q8).fits
    assert TYPES[39].codes(mxfp4).fits
    q8[7, 11] = 0x80
    assert not TYPES[8].codes(q8).fits
    for exponent in (103, 144, 255):
        mxfp4[5, 0] = exponent
        assert not TYPES[39].codes(mxfp4).fits
    # A block of zeros may have any scale.
    mxfp4[5, 1:] = 0
    assert TYPES[39].codes(mxfp4).fits


class Source:
    """A checkpoint of one matrix [rows, columns] with codes of ``bits`` in groups of ``group``."""

    def __init__(self, bits: int, group: int, rows: int = 40, columns: int = 256, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        lowest, highest = (-8, 8) if bits == 4 else (-127, 128)
        self.found = SimpleNamespace(
            codes=rng.integers(lowest, highest, (rows, columns)).astype(np.int8),
            scales=(rng.standard_normal((rows, columns // group)) * 0.01).astype(np.float16).view(np.uint16),
        )
        self.kind, self.tensors = (bits, group), {"w": SimpleNamespace(file=Path("model.test"))}
        self.values = (
            self.found.codes * np.repeat(self.found.scales.view(np.float16).astype(np.float32), group, axis=1)
        ).astype(np.float32)
        self.ref = TensorRef("w", (rows, columns))

    def code_format(self, ref):
        return self.kind

    def read_codes(self, ref, first=0, count=None):
        return self.found

    def dtype(self, ref):
        return "float32"

    def stored_as(self, ref):
        return "TEST"

    def read_rows(self, ref, first=0, count=None):
        return self.values

    def pack(self, bits: int, group: int, order=None, columns=None) -> tuple[np.ndarray, PagePacker]:
        """The weights that a package holds after packing, and the packer."""
        order = np.arange(len(self.values), dtype=np.int32) if order is None else np.asarray(order, np.int32)
        inputs = self.values.shape[1] if columns is None else columns[1] - columns[0]
        part = MatrixPart("w", 0, len(order), inputs, inputs, bits, group)
        source = MatrixSource((self.ref,), order, "a page", columns=columns)
        packer = PagePacker(self, None)
        spec = PageSpec("expert", 0, 0, -1, 0, 0, PageLayout((part,)))
        return unpack(part, packer.page(spec, {"w": read_matrix(self, source, part)})), packer


@pytest.mark.parametrize(
    ("bits", "group", "into_bits", "into_group"),
    [(4, 32, 4, 32), (4, 128, 4, 64), (4, 128, 8, 32), (8, 32, 8, 32), (8, 128, 8, 128)],
)
def test_codes_are_kept_where_the_grid_holds_them(bits: int, group: int, into_bits: int, into_group: int):
    source = Source(bits, group)
    found, packer = source.pack(into_bits, into_group)
    np.testing.assert_array_equal(found, source.values)
    assert packer.tallies["expert", "TEST"].kept == 1


@pytest.mark.parametrize(("bits", "group", "into_bits", "into_group"), [(8, 32, 4, 32), (4, 32, 4, 64), (8, 64, 8, 128)])
def test_elsewhere_values_are_quantised_anew_and_the_error_is_measured(bits: int, group: int, into_bits: int, into_group: int):
    source = Source(bits, group)
    found, packer = source.pack(into_bits, into_group)
    tally = packer.tallies["expert", "TEST"]
    expected = np.sqrt(
        np.mean((found.astype(np.float64) - source.values) ** 2) / np.mean(source.values.astype(np.float64) ** 2)
    )
    assert (tally.kept, tally.requantised) == (0, 1)
    assert 0 < tally.relative_rms < 0.2
    np.testing.assert_allclose(tally.relative_rms, expected, rtol=1e-6)


def test_order_padding_and_columns_apply_to_codes_as_to_values():
    source = Source(4, 64)
    order = [5, -1, 39, 0, 5]
    found, _ = source.pack(4, 64, order, (64, 192))
    expected = np.where(np.asarray(order)[:, None] < 0, 0, source.values[order])[:, 64:192]
    np.testing.assert_array_equal(found, expected)


def test_codes_that_do_not_fit_fall_back_to_values():
    source = Source(8, 32)
    source.read_codes = lambda ref, first=0, count=None: None
    _, packer = source.pack(8, 32)
    assert packer.tallies["expert", "TEST"].requantised == 1


@pytest.mark.parametrize("damage", ["a code", "a scale"])
def test_a_code_or_scale_that_cannot_be_is_refused_with_its_row(damage: str):
    source = Source(4, 32)
    if damage == "a code":
        source.found.codes[17, 3] = 8
    else:
        source.found.scales[17, 2] = 0x7C00
    with pytest.raises(CheckpointError, match=r"model.test: tensor 'w' \(a page\) holds a value in row 17 that is not finite"):
        source.pack(4, 32)


def test_the_binding_checks_shapes():
    packer, matrix = _native.Packer(1), _native.Matrix(4, 64, 4, 32)
    to = np.zeros(matrix.bytes, np.uint8)
    order = np.arange(4, dtype=np.int32)
    codes, scales = np.zeros((4, 64), np.int8), np.zeros((4, 2), np.uint16)
    assert packer.pack_codes(matrix, codes, scales, order, to) == -1
    for args, message in (
        ((np.zeros((4, 96), np.int8), np.zeros((4, 3), np.uint16), order, to), "columns do not fit"),
        ((np.zeros((4, 48), np.int8), scales, order, to), "whole groups"),
        ((codes, np.zeros((4, 1), np.uint16), order, to), "one scale"),
        ((codes, np.zeros((3, 2), np.uint16), order, to), "one scale"),
        ((codes, scales, order + 1, to), "a row that is not there"),
        ((codes, scales, order[:3].copy(), to), "a row for each output"),
        ((codes, scales, order, to[:-1].copy()), "does not fit"),
    ):
        with pytest.raises(ValueError, match=message):
            packer.pack_codes(matrix, *args)
    with pytest.raises(ValueError, match="does not fit"):
        packer.error(matrix, [np.zeros(4 * 64 * 4, np.uint8)], "float32", 64, order, to[:-1].copy())


def test_the_group_of_codes_is_the_block_of_their_types():
    assert {t.block for t in TYPES.values() if t.code_bits} == {CODE_GROUP}
