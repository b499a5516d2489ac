"""The language model of a checkpoint that reads pictures, too: the same package as without them, and nothing unread unsaid."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import layouts
import pytest
import torch
from layouts import FP8, data
from tiny import make_tiny
from tiny_hybrid import QWEN3_5_SHAPES
from transformers import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration

from estream.conversion.convert import convert
from estream.errors import CheckpointError

SHAPE = QWEN3_5_SHAPES["as Qwen3.5, one layer in four sees all"]
VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}
PREFIX = "model.language_model."
QKV = PREFIX + "layers.0.linear_attn.in_proj_qkv.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``text``, and ``both`` with the same language model: per expert, and ``fused`` as the hub has it."""
    root = tmp_path_factory.mktemp("multimodal")
    text = make_tiny(root / "text", "qwen3_5_moe", SHAPE)
    both = Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeConfig(text_config=text.config.to_dict(), vision_config=VISION)).eval()
    both.model.language_model.load_state_dict(text.model.state_dict())
    both.lm_head.load_state_dict(text.lm_head.state_dict())
    both.save_pretrained(root / "both")
    both.save_pretrained(root / "fused", save_original_format=False)
    return root


def test_pictures_change_nothing_and_are_said_to_be_left_out(made: Path, tmp_path: Path):
    expected = convert(made / "text", tmp_path / "text.estream")
    assert expected.manifest.source["conversion"]["notes"] == []
    for name, experts in (("both", "experts.3.up_proj.weight"), ("fused", "experts.gate_up_proj")):
        names = set(layouts.load(made / name))
        assert f"{PREFIX}layers.2.mlp.{experts}" in names
        package = convert(made / name, tmp_path / f"{name}.estream")
        assert data(package) == data(expected)
        vision = sum(name.startswith("model.visual.") for name in names)
        (note,) = package.manifest.source["conversion"]["notes"]
        assert note.startswith(f"left out: {vision} tensors of the vision tower ('model.visual.")


def test_the_text_model_may_be_fused_too(made: Path, tmp_path: Path):
    tensors = layouts.load(made / "text")
    fused = layouts.write(made / "text", tmp_path / "fused", layouts.fuse(tensors, SHAPE["num_experts"]))
    assert data(convert(fused, tmp_path / "a.estream")) == data(convert(made / "text", tmp_path / "b.estream"))


def test_tensors_for_further_tokens_are_left_out(made: Path, tmp_path: Path):
    more = {f"mtp.layers.0.{name}.weight": torch.ones(4) for name in ("input_layernorm", "mlp.gate")}
    source = layouts.write(made / "fused", tmp_path / "mtp", layouts.load(made / "fused") | more)
    package = convert(source, tmp_path / "a.estream")
    assert any("2 tensors for multi-token prediction" in n for n in package.manifest.source["conversion"]["notes"])
    assert data(package) == data(convert(made / "text", tmp_path / "b.estream"))


def test_compressed_behind_the_prefix(made: Path, tmp_path: Path):
    tensors = {n: v for n, v in layouts.load(made / "both").items() if n.startswith(PREFIX) or n.startswith("lm_head")}
    packed, plain = layouts.compress(tensors, layouts.fp8())
    compressed = layouts.write(made / "both", tmp_path / "fp8", packed, quantization_config=FP8)
    values = layouts.write(made / "both", tmp_path / "values", plain)
    assert data(convert(compressed, tmp_path / "a.estream")) == data(convert(values, tmp_path / "b.estream"))


@pytest.mark.parametrize("outer", [False, True])
def test_the_outer_word_on_the_tied_head_counts(made: Path, outer: bool, tmp_path: Path):
    tensors = layouts.load(made / "both")
    tensors["lm_head.weight"] = tensors[f"{PREFIX}embed_tokens.weight"].clone()
    inner = json.loads((made / "both/config.json").read_text())["text_config"] | {"tie_word_embeddings": not outer}
    source = layouts.write(made / "both", tmp_path / "source", tensors, text_config=inner, tie_word_embeddings=outer)
    assert convert(source, tmp_path / "a.estream").manifest.config.tied_head is outer


Change = Callable[[layouts.Tensors], Any]
DAMAGED: dict[str, tuple[Change, str]] = {
    "missing": (lambda t: t.pop(QKV), f"tensor '{QKV}' is missing"),
    "misshapen": (lambda t: t.update({QKV: t[QKV][1:]}), f"tensor '{QKV}' is .*, expected .192, 64."),
    "of the other form": (
        lambda t: t.update({QKV.replace("qkv", "qkvz"): t.pop(QKV)}),
        f"tensor '{QKV}' is missing",
    ),
    "twice, with the prefix and without": (
        lambda t: t.update({QKV.replace(PREFIX, "model."): t[QKV].clone()}),
        "'model.layers.0.linear_attn.in_proj_qkv.weight' is not part of",
    ),
    "one that lost the prefix": (lambda t: t.update({QKV.replace(PREFIX, "model."): t.pop(QKV)}), f"tensor '{QKV}' is missing"),
    "another tower": (
        lambda t: t.update({"model.audio.proj.weight": torch.ones(4)}),
        "'model.audio.proj.weight' is not part of",
    ),
    "one expert too few": (
        lambda t: t.update({f"{PREFIX}layers.1.mlp.experts.down_proj": t[f"{PREFIX}layers.1.mlp.experts.down_proj"][1:]}),
        f"tensor '{PREFIX}layers.1.mlp.experts.down_proj' is",
    ),
    "not a number": (lambda t: t[f"{PREFIX}layers.0.linear_attn.A_log"].fill_(float("nan")), "linear_attn.A_log' holds"),
    "a norm that is not finite": (lambda t: t[f"{PREFIX}norm.weight"].fill_(float("inf")), f"'{PREFIX}norm.weight' holds"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damage_is_refused_by_the_name_that_the_file_has(made: Path, what: str, tmp_path: Path):
    change, message = DAMAGED[what]
    tensors = layouts.load(made / "fused")
    change(tensors)
    with pytest.raises(CheckpointError, match=message):
        convert(layouts.write(made / "fused", tmp_path / "source", tensors), tmp_path / "out.estream")
    assert not (tmp_path / "out.estream").exists()


SETTINGS = [
    ({"attn_output_gate": False}, "'attn_output_gate' is False"),
    ({"norm_topk_prob": False}, "'norm_topk_prob' is False"),
    ({"mlp_only_layers": [1]}, r"'mlp_only_layers' is \[1\]"),
    ({"decoder_sparse_step": 2}, "'decoder_sparse_step' is 2"),
    ({"rope_parameters": {"rope_type": "mrope", "rope_theta": 1e4}}, "of type 'mrope'"),
    ({"linear_num_value_heads": 3}, "must be a multiple"),
]


@pytest.mark.parametrize(("values", "message"), SETTINGS, ids=lambda v: str(v)[:40])
def test_settings_that_are_not_computed_are_refused(made: Path, values: dict[str, Any], message: str, tmp_path: Path):
    inner = json.loads((made / "fused/config.json").read_text())["text_config"] | values
    source = layouts.write(made / "fused", tmp_path / "source", layouts.load(made / "fused"), text_config=inner)
    with pytest.raises(CheckpointError, match=message):
        convert(source, tmp_path / "out.estream")


def test_settings_that_are_no_object_are_refused(made: Path, tmp_path: Path):
    source = layouts.write(made / "fused", tmp_path / "source", layouts.load(made / "fused"), text_config=["x"])
    with pytest.raises(CheckpointError, match="'text_config' must be an object"):
        convert(source, tmp_path / "out.estream")
