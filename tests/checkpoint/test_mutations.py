"""Small checkpoints with a few hostile changes: each converts, or is refused as CheckpointError, soon and in little memory."""

import json
import shutil
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import layouts
import pytest
from gguf_files import GgufModel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layouts import FP8, SHAPE
from tiny import make_olmoe, make_tiny
from tiny_latent import V3_SHAPES
from tiny_usual import MIXTRAL_SHAPES

from estream.checkpoint.gguf.reader import read_gguf
from estream.conversion.convert import convert
from estream.errors import CheckpointError
from estream.host import limits

ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 64, 65537, 10**9, 10**12, 2**63, 2**64, 10**400, 0.5, -0.5, 1e-30, 1e38, 1e300),
    *(float("nan"), float("inf"), "", "x", "\ud800", "silu", [], [1], ["x"], [[]], {}, {"rope_type": "yarn"}, {"x": [None]}),
    *({"rope_type": "yarn", "factor": 10**400}, {"rope_type": "llama3"}, {"rope_type": 5}, {"rope_type": "default", "": 1}),
    *([10**9] * 8, ["full_attention"] * 3, {"quant_method": "fp8"}, {"quant_method": "gptq", "bits": 4, "group_size": 32}),
]
KEYS = [
    *("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "layer_types", "quantization_config"),
    *("num_local_experts", "n_routed_experts", "head_dim", "text_config", "sliding_window", "clip_qkv", "per_layer_config"),
]
QUICKLY = settings(
    max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sources")
    make_olmoe(root / "olmoe", SHAPE)
    make_tiny(root / "deepseek_v3", "deepseek_v3", next(iter(V3_SHAPES.values())))
    tensors = layouts.compress(layouts.load(root / "olmoe"), layouts.fp8())[0]
    layouts.write(root / "olmoe", root / "fp8", tensors, quantization_config=FP8)
    return {path.name: path for path in root.iterdir()}


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    """A file, and where its header ends."""
    root = tmp_path_factory.mktemp("gguf")
    model = GgufModel.of(make_tiny(root / "hf", "mixtral", next(iter(MIXTRAL_SHAPES.values()))), "mixtral")
    model.write(root / "model.gguf")
    begins = min(tensor.offset for tensor in read_gguf(root / "model.gguf").tensors.values())
    return (root / "model.gguf").read_bytes(), begins - 1


def survives(folder: Path, source: Path) -> None:
    begin, before = time.process_time(), limits.resident_bytes()
    said = ""
    try:
        convert(source, folder / "out.estream")
    except CheckpointError as error:
        said = str(error)
    assert len(said.encode()) < 2000
    assert time.process_time() - begin < 5
    assert limits.resident_bytes() - before < 256 << 20


def changes(values: dict[str, Any], more: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(sorted(set(values) | set(more))), st.sampled_from(ODD), min_size=1, max_size=3)


@pytest.mark.parametrize("name", ["olmoe", "deepseek_v3", "fp8"])
@QUICKLY
@given(data=st.data())
def test_any_config_converts_or_is_refused(name: str, sources: dict[str, Path], data: st.DataObject):
    values = json.loads((sources[name] / "config.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        shutil.copytree(sources[name], source)
        (source / "config.json").write_text(json.dumps(values | data.draw(changes(values, KEYS))))
        survives(Path(folder), source)


@pytest.mark.parametrize("name", ["olmoe", "fp8"])
@QUICKLY
@given(data=st.data())
def test_any_header_converts_or_is_refused(name: str, sources: dict[str, Path], data: st.DataObject):
    raw = (sources[name] / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    entry = header[data.draw(st.sampled_from([key for key in header if key != "__metadata__"]))]
    match data.draw(st.sampled_from(["shape", "dtype", "offsets", "bytes"])):
        case "shape":
            entry["shape"] = data.draw(st.lists(st.sampled_from([0, 1, 2, 8, 64, 2**31, 2**63, 2**64, -1]), max_size=4))
        case "dtype":
            kinds = ["F8_E4M3", "F8_E8M0", "F16", "BF16", "F64", "I64", "U8", "BOOL", "", "X"]
            entry["dtype"] = data.draw(st.sampled_from(kinds))
        case "offsets":
            entry["data_offsets"] = data.draw(st.lists(st.sampled_from(ODD), max_size=3))
    text = json.dumps(header).encode()
    changed = bytearray(struct.pack("<Q", len(text)) + text + raw[8 + length :])
    for at in data.draw(st.lists(st.integers(0, len(text) + 7), max_size=2)):
        changed[at] ^= 1 << data.draw(st.integers(0, 7))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        shutil.copytree(sources[name], source)
        (source / "model.safetensors").write_bytes(changed)
        survives(Path(folder), source)


@QUICKLY
@given(data=st.data())
def test_any_gguf_converts_or_is_refused(gguf: tuple[bytes, int], data: st.DataObject):
    raw, header = gguf
    changed = bytearray(raw)
    for at in data.draw(st.lists(st.integers(0, header), min_size=1, max_size=3)):
        changed[at] = data.draw(st.sampled_from([0, 1, 2, 7, 8, 9, 0x7F, 0x80, 0xFF, ord("{")]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        path.write_bytes(changed)
        survives(Path(folder), path)
