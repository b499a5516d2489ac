"""Damaged and hostile GGUF files: each is refused by the name of what is wrong, before anything large is read."""

import os
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf_files import GgufModel
from tiny import make_tiny
from tiny_usual import MIXTRAL_SHAPES

from estream.checkpoint.gguf.reader import read_gguf
from estream.conversion.convert import convert
from estream.errors import CheckpointError

STRING, ARRAY, U32, F32 = 8, 9, 4, 6


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def entry(name: str, dims: tuple[int, ...] = (32, 4), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf_file(
    keys: list[bytes] = (), tensors: list[bytes] = (), data: int = 512, magic: bytes = b"GGUF", version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:  # fmt: skip
    tensor_count, key_count = counts or (len(tensors), len(keys))
    header = magic + struct.pack("<IQQ", version, tensor_count, key_count) + b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + bytes(data)


NAME = key("general.architecture", STRING, text("olmoe"))
HUGE = 1 << 62
FILES: dict[str, tuple[bytes, str]] = {
    "an empty file": (b"", "the header needs 4 bytes at byte 0, but the file ends at 0"),
    "another magic": (gguf_file(magic=b"GGML"), "does not begin with 'GGUF'"),
    "version 1": (gguf_file(version=1), "has version 1, supported are 2 and 3"),
    "version 4": (gguf_file(version=4), "has version 4"),
    "big-endian": (gguf_file(version=3 << 24), "it is big-endian"),
    "a header cut short": (gguf_file([NAME])[:20], "the header needs 8 bytes at byte 16"),
    "a key cut short": (gguf_file([NAME], data=0)[:40], "key 0 needs 20 bytes at byte 32, but the file ends at 40"),
    "tensors without end": (gguf_file(counts=(HUGE, 0)), f"claims {HUGE} tensors in the header, more than fit"),
    "keys without end": (gguf_file(counts=(0, HUGE)), f"claims {HUGE} keys in the header, more than fit"),
    "a string without end": (
        gguf_file([text("general.name") + struct.pack("<IQ", STRING, HUGE)]),
        f"key 'general.name' needs {HUGE} bytes",
    ),
    "a token of two megabytes": (
        gguf_file([key("t", ARRAY, struct.pack("<IQ", STRING, 1) + text("x" * (2 << 20)))]),
        "key 't' has a string of 2097152 bytes, at most 4096 are allowed",
    ),
    "a name without end": (gguf_file([struct.pack("<Q", HUGE) + bytes(16)]), f"key 0 has a name of {HUGE} bytes"),
    "an array without end": (
        gguf_file([key("a", ARRAY, struct.pack("<IQ", U32, HUGE))]), f"claims {HUGE} values in key 'a'",
    ),
    "an array of strings without end": (
        gguf_file([key("a", ARRAY, struct.pack("<IQ", STRING, HUGE))]), f"claims {HUGE} strings in key 'a'",
    ),
    "an array of arrays": (gguf_file([key("a", ARRAY, struct.pack("<IQ", ARRAY, 1))]), "array of the value type 9"),
    "an unknown value type": (gguf_file([key("a", 77, b"")]), "key 'a' has the value type 77"),
    "text that is not text": (gguf_file([key("a", STRING, text(b"\xff\xfe"))]), "key 'a' is not valid UTF-8"),
    "a key twice": (gguf_file([NAME, NAME]), "key 'general.architecture' is there twice"),
    "an alignment of zero": (
        gguf_file([key("general.alignment", U32, struct.pack("<I", 0))]), "'general.alignment' is 0, expected a power of two",
    ),
    "an alignment of three": (gguf_file([key("general.alignment", U32, struct.pack("<I", 3))]), "expected a power of two"),
    "an alignment that is text": (gguf_file([key("general.alignment", STRING, text("x"))]), "'general.alignment' is 'x'"),
    "a tensor twice": (gguf_file(tensors=[entry("t"), entry("t")]), "tensor 't' is there twice"),
    "an entry cut short": (gguf_file(tensors=[entry("t")], data=0)[:50], "tensor 't' needs"),
    "a tensor beyond the end": (gguf_file(tensors=[entry("t", offset=1 << 20)]), r"tensor 't' \(4, 32\) of F32 ends at byte"),
    "an offset that overflows": (gguf_file(tensors=[entry("t", offset=(1 << 64) - 32)]), "tensor 't' .* ends at byte"),
    "dimensions that overflow": (
        gguf_file(tensors=[entry("t", (1 << 32, 1 << 32))]), r"tensor 't' \(4294967296, 4294967296\) of F32 ends at byte",
    ),
    "no dimension": (gguf_file(tensors=[entry("t", ())]), "tensor 't' has 0 dimensions"),
    "five dimensions": (gguf_file(tensors=[entry("t", (1,) * 5)]), "tensor 't' has 5 dimensions"),
    "an empty tensor": (gguf_file(tensors=[entry("t", (32, 0))]), r"tensor 't' is empty: \(0, 32\)"),
    "an unknown type": (gguf_file(tensors=[entry("t", kind=250)]), "tensor 't' is stored as type 250, which is not read; read"),
    "a type that is not read": (gguf_file(tensors=[entry("t", kind=10)]), r"tensor 't' is stored as Q2_K, which is not read"),
    "half a block": (gguf_file(tensors=[entry("t", (33, 4), kind=2)]), "tensor 't' has rows of 33 values, but Q4_0 holds"),
    "a misaligned tensor": (gguf_file(tensors=[entry("t", (4,), offset=4)]), "tensor 't' begins at byte 4 of the data, not at"),
    "tensors that overlap": (gguf_file(tensors=[entry("t"), entry("u", offset=32)], data=1024), "tensors 't' and 'u' overlap"),
    "no architecture": (gguf_file(), "'general.architecture' is missing"),
    "an unknown architecture": (
        gguf_file([key("general.architecture", STRING, text("bert"))]), "architecture 'bert' is not supported; supported",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", FILES)
def test_a_hostile_file_is_refused_by_name(damage: str, tmp_path: Path):
    data, message = FILES[damage]
    (tmp_path / "model.gguf").write_bytes(data)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=message) as error:
        convert(tmp_path / "model.gguf", tmp_path / "out.estream")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "model.gguf" in str(error.value)
    assert peak < 4 << 20
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]


def test_a_header_is_not_read_without_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("estream.checkpoint.gguf.reader._LARGEST_HEADER", 1000)
    (tmp_path / "model.gguf").write_bytes(gguf_file([key("a", STRING, text("x" * 2000))]))
    with pytest.raises(CheckpointError, match="key 'a' ends at byte .*; a header above 1000 B is not read"):
        read_gguf(tmp_path / "model.gguf")


def test_every_truncation_of_a_file_is_refused(tmp_path: Path):
    whole = gguf_file([NAME, key("x", F32, struct.pack("<f", 1))], [entry("t"), entry("u", offset=512)], data=1024)
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    assert list(read_gguf(path).tensors) == ["t", "u"]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="model.gguf"):
            read_gguf(path)


SHAPE = MIXTRAL_SHAPES["8 experts, grouped queries"]
GATE = "blk.1.ffn_gate_exps.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GgufModel:
    return GgufModel.of(make_tiny(tmp_path_factory.mktemp("tiny") / "hf", "mixtral", SHAPE), "mixtral")


def _with(tensors: dict, change: Callable[[dict], object]) -> dict:
    tensors = dict(tensors)
    change(tensors)
    return tensors


CONTENT: dict[str, tuple[Callable[[dict], object], str]] = {
    "a missing tensor": (lambda t: t.pop("blk.1.attn_q.weight"), "tensor 'model.layers.1.self_attn.q_proj.weight' is missing"),
    "missing experts": (lambda t: t.pop(GATE), r"tensor 'model.layers.1.block_sparse_moe.experts.0.w1.weight' is missing"),
    "no embedding": (lambda t: t.pop("token_embd.weight"), "tensor 'token_embd.weight' is missing"),
    "an extra tensor": (lambda t: t.update(extra=np.ones(3, np.float32)), "tensor 'extra' is not part of this architecture"),
    "scaled rotary positions": (
        lambda t: t.update({"rope_freqs.weight": np.ones(8, np.float32)}), "tensor 'rope_freqs.weight' is not part of",
    ),
    "an extra bias": (
        lambda t: t.update({"blk.0.attn_q.bias": np.ones(64, np.float32)}),
        "tensor 'model.layers.0.self_attn.q_proj.bias' is not part of",
    ),
    "a wrong shape": (
        lambda t: t.update({GATE: t[GATE][:, :-1].copy()}),
        r"tensor 'model.layers.1.block_sparse_moe.experts.0.w1.weight' is \(95, 64\), expected \(96, 64\)",
    ),
    "too few experts": (
        lambda t: t.update({GATE: t[GATE][:-1].copy()}), r"'blk.1.ffn_gate_exps.weight' is \(7, 96, 64\), expected 8 experts"
    ),
    "a name that is a pattern": (
        lambda t: t.update({"x{e}{0}.weight": t[GATE].copy()}), r"'x\{e\}\{0\}.weight' is not part of"
    ),
    "queries that are not heads": (
        lambda t: t.update({"blk.0.attn_q.weight": t["blk.0.attn_q.weight"][:-1].copy()}),
        r"tensor 'blk.0.attn_q.weight' is \(63, 64\), expected rows for 4 heads",
    ),
    "a value that is not a number": (
        lambda t: t.update({GATE: np.where(np.arange(64) == 3, np.nan, t[GATE]).astype(np.float32)}), "not finite",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", CONTENT)
def test_a_model_with_other_tensors_is_refused_by_name(damage: str, model: GgufModel, tmp_path: Path):
    change, message = CONTENT[damage]
    damaged = GgufModel("mixtral", model.config, _with(model.tensors, change))
    damaged.write(tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match=message):
        convert(tmp_path / "model.gguf", tmp_path / "out.estream")
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]


def test_a_setting_that_is_not_known_is_refused(model: GgufModel, tmp_path: Path):
    for name, value, message in (
        ("llama.attn_logit_softcapping", 50.0, "'llama.attn_logit_softcapping' is not known for this architecture"),
        ("llama.rope.scaling.type", "dynamic", "'llama.rope.scaling.type' is 'dynamic'"),
        ("llama.attention.causal", False, "'llama.attention.causal' is False, but only True"),
        ("llama.rope.dimension_count", 8, "'llama.rope.dimension_count' is 8, but heads of 16 must be rotated whole"),
        ("llama.expert_count", 0, "has no experts"),
        ("llama.embedding_length", 1.5, "'llama.embedding_length' must be a whole number of at least 1, found 1.5"),
        ("llama.block_count", None, "'llama.block_count' is missing"),
        ("llama.block_count", 1 << 31, "'llama.block_count' is 2147483648, but the file's tensors have room for at most"),
        ("llama.expert_count", 1 << 31, "'llama.expert_count' is 2147483648, but the file's tensors have room for at most"),
        ("llama.attention.head_count", 1 << 31, "'llama.attention.head_count' is 2147483648, but the file's tensors"),
    ):
        path = tmp_path / "model.gguf"
        GgufModel("mixtral", model.config, model.tensors, extra_keys={name: value}).write(path)
        with pytest.raises(CheckpointError, match=message):
            convert(path, tmp_path / "out.estream")


def test_a_file_that_is_cut_while_it_is_read_is_named(model: GgufModel, tmp_path: Path):
    from estream.checkpoint.gguf.checkpoint import GgufCheckpoint
    from estream.models.config import TensorRef

    path = tmp_path / "model.gguf"
    model.write(path)
    checkpoint = GgufCheckpoint(path)
    last = max(checkpoint.tensors.items(), key=lambda item: item[1].pieces[0].tensor.offset)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match="inside tensor '.*'; it was cut while it was read"):
        checkpoint.read_rows(TensorRef(last[0], last[1].shape))


def test_parts_that_are_missing_or_swapped_are_named(model: GgufModel, tmp_path: Path):
    model.write(tmp_path / "model.gguf", split=12)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) > 2
    assert parts[0].name == f"model-00001-of-{len(parts):05d}.gguf"
    moved = parts[1].rename(tmp_path / "aside")
    with pytest.raises(CheckpointError, match=f"{parts[1].name}: this part of the model is missing"):
        convert(parts[0], tmp_path / "out.estream")
    shutil.copy(parts[2], parts[1])
    with pytest.raises(CheckpointError, match=f"{parts[1].name}: says that it is part 3 of {len(parts)}, expected part 2"):
        convert(parts[0], tmp_path / "out.estream")
    moved.rename(parts[1])
    shutil.copy(parts[1], tmp_path / "model-00009-of-00002.gguf")
    with pytest.raises(CheckpointError, match="model-00001-of-00002.gguf: this part of the model is missing"):
        convert(tmp_path / "model-00009-of-00002.gguf", tmp_path / "out.estream")
    single = tmp_path / "single.gguf"
    shutil.copy(parts[0], single)
    with pytest.raises(CheckpointError, match=f"single.gguf: says that it is part 1 of {len(parts)}, expected part 1 of 1"):
        convert(single, tmp_path / "out.estream")


@pytest.mark.parametrize("name", ["split.no", "split.count", "split.tensors.count"])
@pytest.mark.parametrize(
    "value", [(STRING, text("1")), (ARRAY, struct.pack("<IQII", U32, 2, 1, 2)), (F32, struct.pack("<f", 1))]
)
def test_parts_that_are_not_counted_in_whole_numbers_are_refused(name: str, value: tuple[int, bytes], tmp_path: Path):
    (tmp_path / "x.gguf").write_bytes(gguf_file([NAME, key(name, *value)]))
    with pytest.raises(CheckpointError, match=f"'{name}' must be a whole number"):
        convert(tmp_path / "x.gguf", tmp_path / "out.estream")


def test_a_part_that_is_a_pipe_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "x.gguf")
    with pytest.raises(CheckpointError, match="not a regular file"):
        convert(tmp_path, tmp_path / "out.estream")
