"""The NPU's part of a manifest: its keys, and what is refused."""

import json
from dataclasses import replace

import pytest
from qnn_tiny import LATENT, SHAPES

from estream.package.npu.section import NpuSection

SECTION = NpuSection(replace(SHAPES, attention=LATENT), {"onnx": "1"}, {"sm8750": {"head16": "ab"}})
#: Packages that were written before fields had the names that they have now hold these keys.
SHAPES_JSON = {
    "hidden": 128,
    "norm_eps": 1e-5,
    "attention": {
        "heads": 4,
        "kv_heads": 4,
        "qk_dim": 48,
        "v_dim": 32,
        "rotated": 16,
        "scale": 32**-0.5,
        "chunk": 64,
        "bits": 8,
        "group": 32,
        "qk_norm": "none",
        "bias": False,
        "clip": 0.0,
        "kv_rank": 64,
        "query_rank": 0,
        "latent_eps": 1e-6,
    },
    "routing": {
        "experts": 8,
        "top_k": 2,
        "tokens": 64,
        "window": 64,
        "normalise": True,
        "scaling": 1.0,
        "groups": 1,
        "top_groups": 1,
        "shared_gate": True,
    },
    "expert": {"width": 64, "bits": 4, "group": 32, "tiles": [16, 64]},
    "head": {"rows": 16, "vocabulary": 96, "bits": 8, "group": 32},
    "shared": {"width": 64, "bits": 8, "group": 32, "tiles": [64]},
}
JSON = {"shapes": SHAPES_JSON, "toolchain": {"onnx": "1"}, "contexts": {"sm8750": {"head16": "ab"}}}


def test_the_keys_of_a_manifest_stay():
    assert json.loads(json.dumps(SECTION.to_json())) == JSON
    assert NpuSection.from_json(JSON) == SECTION


def test_a_section_without_mlps_of_all_tokens_is_read_back():
    section = replace(SECTION, shapes=replace(SECTION.shapes, shared=None))
    assert NpuSection.from_json(json.loads(json.dumps(section.to_json()))) == section


@pytest.mark.parametrize("part", ["attention", "routing", "expert", "head", "shared"])
def test_unknown_and_missing_values_are_refused(part):
    for changed in ({"more": 1}, {"norm_topk_prob": True}, {"slice_width": 64}, {"kv_lora_rank": 1}):
        with pytest.raises(TypeError):
            NpuSection.from_json(JSON | {"shapes": SHAPES_JSON | {part: SHAPES_JSON[part] | changed}})
    with pytest.raises(KeyError):
        NpuSection.from_json(JSON | {"shapes": {name: value for name, value in SHAPES_JSON.items() if name != part}})


def test_where_a_compiled_graph_lies():
    assert NpuSection.file("x-elite", "mlp4w1024x16") == "contexts/x-elite/mlp4w1024x16.onnx"
