"""What families read of a checkpoint: either naming of its tensors, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch
from tiny import FAMILIES, make_tiny
from tiny_latent import YARN
from tiny_unusual import LONG_ROPE

from estream.conversion.convert import convert
from estream.errors import CheckpointError
from estream.models import family_of
from estream.package.package import Package


def _first(family: str) -> dict[str, Any]:
    return next(iter(FAMILIES[family].shapes.values()))


def _pages(package: Package) -> bytes:
    return package.pages_path.read_bytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_may_be_named_as_published_or_as_transformers_5_holds_them(family: str, tmp_path: Path):
    model = make_tiny(tmp_path / "published", family, _first(family))
    published = set(load_file(tmp_path / "published/model.safetensors"))
    (tmp_path / "held").mkdir()
    held = {name: values.contiguous() for name, values in model.state_dict().items()}
    save_torch(held, tmp_path / "held/model.safetensors")
    (tmp_path / "held/config.json").write_bytes((tmp_path / "published/config.json").read_bytes())
    assert (published != set(held)) == (family != "gpt_oss")
    packages = [convert(tmp_path / name, tmp_path / f"{name}.estream") for name in ("published", "held")]
    assert _pages(packages[0]) == _pages(packages[1])


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_modules_that_predict_further_tokens_are_left_out(family: str, tmp_path: Path):
    make_tiny(tmp_path / "source", family, _first(family))
    plain = convert(tmp_path / "source", tmp_path / "plain.estream")
    tensors = load_file(tmp_path / "source/model.safetensors")
    extra = {name.replace("layers.2.", "layers.3."): value for name, value in tensors.items() if "layers.2." in name}
    save_file(tensors | extra, tmp_path / "source/model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"'model.layers.3.* is not part of"):
        convert(tmp_path / "source", tmp_path / "out.estream")
    extra["model.layers.3.eh_proj.weight"] = np.ones((64, 128), np.float32)
    save_file(tensors | extra, tmp_path / "source/model.safetensors", {"format": "pt"})
    assert _pages(convert(tmp_path / "source", tmp_path / "out.estream")) == _pages(plain)


REFUSED = [
    ("qwen2_moe", {"use_sliding_window": True}, "'use_sliding_window' is True"),
    ("qwen2_moe", {"hidden_act": "gelu"}, "'hidden_act' is 'gelu'"),
    ("qwen2_moe", {"mlp_only_layers": [3]}, "'mlp_only_layers' must list layers in 0..2"),
    ("qwen2_moe", {"mlp_only_layers": [0, 1, 2]}, "no layer has experts"),
    ("deepseek_v2", {"scoring_func": "sigmoid"}, "'scoring_func' is 'sigmoid'"),
    ("deepseek_v2", {"topk_method": "noaux_tc"}, "'topk_method' is 'noaux_tc', but only 'greedy', 'group_limited_greedy'"),
    (
        "deepseek_v2",
        {"topk_method": "group_limited_greedy", "n_group": 5, "topk_group": 1},
        "'n_group' 5 must divide the 16 experts",
    ),
    (
        "deepseek_v2",
        {"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 1},
        "'topk_group' 1 of 8 groups cannot give 3 of 16 experts",
    ),
    ("deepseek_v2", {"attention_bias": True}, "'attention_bias' is True"),
    ("deepseek_v2", {"mlp_bias": True}, "'mlp_bias' is True"),
    ("deepseek_v2", {"moe_layer_freq": 2}, "'moe_layer_freq' is 2"),
    ("deepseek_v2", {"qk_nope_head_dim": 300}, "heads of 308 .* and 16"),
    ("deepseek_v2", {"rope_parameters": YARN | {"rope_type": "dynamic"}}, "of type 'dynamic'"),
    ("deepseek_v2", {"rope_parameters": YARN | {"beta_fast": "32"}}, "'beta_fast' must be a number"),
    ("deepseek_v3", {"scoring_func": "softmax"}, "'scoring_func' is 'softmax'"),
    ("deepseek_v3", {"topk_method": "greedy"}, "'topk_method' is 'greedy'"),
    ("deepseek_v3", {"rope_interleave": False}, "'rope_interleave' is False"),
    ("glm4_moe", {"topk_method": "greedy"}, "'topk_method' is 'greedy'"),
    (
        "glm4_moe",
        {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.3}},
        "9 rotated values of a head of 32",
    ),
    ("gpt_oss", {"swiglu_limit": 0.0}, "'swiglu_limit' must be a positive number"),
    ("gpt_oss", {"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "'layer_types' must name"),
    ("granite_moe", {"logits_scaling": 0.0}, "'logits_scaling' must be a positive number"),
    ("qwen3_next", {"attention_bias": True}, "'attention_bias' is True"),
    ("qwen3_next", {"layer_types": ["mamba", "full_attention", "full_attention", "full_attention"]}, "'layer_types' must name"),
    ("qwen3_next", {"linear_value_head_dim": 24}, "linear_value_head_dim of 16"),
    ("phimoe", {"num_experts_per_tok": 3}, "'num_experts_per_tok' is 3"),
    ("phimoe", {"rope_parameters": LONG_ROPE | {"long_factor": [1.0]}}, "'long_factor' must be a list of 8 numbers"),
    ("phimoe", {"rope_parameters": LONG_ROPE | {"rope_type": "su"}}, "of type 'su'"),
]


@pytest.mark.parametrize(("family", "values", "message"), REFUSED, ids=lambda v: str(v)[:50])
def test_settings_that_are_not_computed_are_refused_by_name(family: str, values: dict[str, Any], message: str):
    tiny = FAMILIES[family]
    config = json.loads(
        tiny.config(**{"num_hidden_layers": 3, "max_position_embeddings": 512} | _first(family)).to_json_string()
    )
    known = family_of({"architectures": [tiny.model.__name__]})
    known.read_config(config)
    with pytest.raises(CheckpointError, match=message):
        known.read_config(config | values)


def test_v2_scales_only_what_it_does_not_normalise():
    """As the model's own code; see ``models/deepseek_v2.py``."""
    family = family_of({"architectures": ["DeepseekV2ForCausalLM"]})
    config = json.loads(FAMILIES["deepseek_v2"].config(**_first("deepseek_v2")).to_json_string())
    for normalise, scaling in ((False, 16.0), (True, 1.0)):
        moe = family.read_config(config | {"norm_topk_prob": normalise, "routed_scaling_factor": 16.0}).moe
        assert (moe.norm_topk_prob, moe.routed_scaling_factor) == (normalise, scaling)
