"""What GGUF calls tensors and settings, brought back to what Hugging Face calls them: tiny models of every architecture,
written as llama.cpp's conversion writes them, read under the names and values that transformers saved.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from gguf_cases import BASE, CASES, Case, Tensors, write
from gguf_files import set_keys
from safetensors.numpy import load_file
from tiny import make_tiny
from tolerances import GGUF_LOGITS

import estream
from estream.checkpoint.gguf import words
from estream.checkpoint.gguf.checkpoint import GgufCheckpoint
from estream.checkpoint.gguf.views import View
from estream.conversion.convert import ConvertOptions, convert
from estream.errors import CheckpointError
from estream.models.config import TensorRef


@dataclass(frozen=True)
class Made:
    case: Case
    config: Any
    saved: Tensors
    path: Path


@pytest.fixture(scope="module", params=CASES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    case, folder = CASES[request.param], tmp_path_factory.mktemp("architecture")
    torch.manual_seed(1)
    config_class = getattr(transformers, f"{case.model}TextConfig", None) or getattr(transformers, f"{case.model}Config")
    config = config_class(**BASE | case.shape)
    model = getattr(transformers, f"{case.model}ForCausalLM")(config)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.normal_()
    model.save_pretrained(folder)
    saved = load_file(folder / "model.safetensors")
    write(folder / "model.gguf", case, config, saved)
    return Made(case, config, saved, folder / "model.gguf")


#: What a translated config holds beside the file's own numbers.
FIXED = {
    "architectures", "vocab_size", "hidden_act", "tie_word_embeddings", "decoder_sparse_step", "mlp_only_layers", "qkv_bias",
    "moe_layer_freq", "rope_interleave", "attention_bias", "use_qk_norm", "lm_head_bias", "swiglu_limit", "long_factor",
    "short_factor", "truncate",
}  # fmt: skip


def test_every_setting_has_a_word_for_messages(made: Made):
    config = GgufCheckpoint(made.path).config
    names = set(config) | set(config.get("rope_scaling", {}))
    assert names - FIXED <= set(words._WORDS)


def test_tensors_come_back_under_their_names_with_their_values(made: Made):
    checkpoint = GgufCheckpoint(made.path)
    assert set(checkpoint.tensors) == set(made.saved)
    for name, value in made.saved.items():
        view = checkpoint.tensors[name]
        assert view.shape == value.shape, name
        if view.transposed or view.interleave > 1:
            _check_experts(checkpoint, name, view, value)
        else:
            ref = TensorRef(name, value.shape)
            rows = checkpoint.read_rows(ref)
            if view.undo is None:
                np.testing.assert_array_equal(rows.reshape(value.shape), value, name)
            else:
                # Adding one and taking it away again, or an exponential and its logarithm, round.
                np.testing.assert_allclose(rows.reshape(value.shape), value, 1e-6, 1e-6, err_msg=name)
            middle = checkpoint.read_rows(ref, len(rows) // 3, len(rows) // 2)
            np.testing.assert_array_equal(middle, rows[len(rows) // 3 :][: len(rows) // 2], name)


def _check_experts(checkpoint: GgufCheckpoint, name: str, view: View, value: np.ndarray) -> None:
    """Expert by expert, as gpt-oss's family refers to them."""
    for expert in range(value.shape[0]):
        for first in range(view.interleave):
            ref = TensorRef(name, value.shape, expert, first, 0, view.interleave, view.transposed)
            wanted = value[expert].T if view.transposed else value[expert]
            found = checkpoint.read_float32(ref)
            np.testing.assert_array_equal(found, wanted[first :: view.interleave], name)


def test_a_part_of_a_fused_tensor_is_what_its_reference_says(made: Made):
    checkpoint = GgufCheckpoint(made.path)
    fused = [n for n, v in checkpoint.tensors.items() if len(v.shape) == 3 and not v.transposed and "conv1d" not in n]
    assert bool(fused) == (made.case.architecture == "granitemoe")
    for name in fused:
        value = made.saved[name]
        ref = TensorRef(name, value.shape, expert=2, first_row=5, all_rows=20)
        np.testing.assert_array_equal(checkpoint.read_rows(ref), value[2, 5:25])
        np.testing.assert_array_equal(checkpoint.read_rows(ref, 3, 4), value[2, 8:12])


def test_settings_come_back_in_the_words_of_config_json(made: Made):
    checkpoint, config = GgufCheckpoint(made.path), made.config.to_dict()
    assert checkpoint.config["architectures"] == [f"{made.case.model}ForCausalLM"]
    for key in (*BASE, *made.case.same):
        assert checkpoint.config[key] == config[key], key
    for key, value in made.case.expected.items():
        assert checkpoint.config[key] == value, key


def test_what_predicts_several_tokens_at_once_is_left_out_and_said(made: Made):
    notes = " ".join(GgufCheckpoint(made.path).notes)
    assert ("left out: 1 tensors for multi-token prediction" in notes) == (made.case.architecture == "glm4moe")


HYBRIDS = {"qwen3next": "qwen3_next", "qwen35moe": "qwen3_5_moe"}


@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrids_compute_the_same_from_either_format(name: str, tmp_path: Path):
    """Norms above all: conversion adds one to them, and the families do."""
    case = CASES[name]
    model = make_tiny(tmp_path / "hf", HYBRIDS[name], BASE | case.shape)
    write(tmp_path / "model.gguf", case, model.config, load_file(tmp_path / "hf/model.safetensors"))
    found = []
    for source in ("hf", "model.gguf"):
        package = convert(tmp_path / source, tmp_path / f"{source}.estream", ConvertOptions(8, 32))
        with estream.load(package.path, activations="float") as loaded:
            found.append(loaded.prefill(range(90), positions=range(90)).logits)
    assert np.abs(found[1] - found[0]).max() <= GGUF_LOGITS * np.abs(found[0]).max()


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("value_dim", [16, 32])
def test_codes_follow_the_order_of_heads_where_it_keeps_groups_whole(name: str, value_dim: int, tmp_path: Path):
    case = CASES[name]
    shape = case.shape | {"linear_value_head_dim": value_dim}
    case = replace(case, shape=shape, keys=case.keys | {"ssm.inner_size": 6 * value_dim})
    model = make_tiny(tmp_path / "hf", HYBRIDS[name], BASE | shape)
    write(tmp_path / "model.gguf", case, model.config, load_file(tmp_path / "hf/model.safetensors"), Kind.Q8_0)
    checkpoint = GgufCheckpoint(tmp_path / "model.gguf")
    kept = 0
    for tensor, view in checkpoint.tensors.items():
        ref = TensorRef(tensor, view.shape)
        if "linear_attn" not in tensor or checkpoint.code_format(ref) is None:
            continue
        codes = checkpoint.read_codes(ref, 3, view.rows // 2)
        assert codes is not None
        scales = codes.scales.view(np.float16).astype(np.float32).repeat(32, 1)
        np.testing.assert_array_equal(codes.codes * scales, checkpoint.read_rows(ref, 3, view.rows // 2), tensor)
        kept += tensor.endswith("out_proj.weight")
    assert kept == (name == "qwen3next" or value_dim == 32)


def test_halves_that_do_not_belong_together_are_refused(tmp_path: Path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "granitemoe")
    keys = CASES["granitemoe"].keys | {"block_count": 1, "context_length": 8, "embedding_length": 64, "expert_used_count": 2}
    keys |= {"attention.head_count": 4, "attention.layer_norm_rms_epsilon": 1e-5}
    set_keys(writer, {f"granitemoe.{name}": value for name, value in keys.items()})
    writer.add_tensor("token_embd.weight", np.ones((96, 64), np.float32))
    writer.add_tensor("blk.0.ffn_gate_exps.weight", np.ones((4, 32, 64), np.float32))
    writer.add_tensor("blk.0.ffn_up_exps.weight", np.ones((3, 32, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"'blk.0.ffn_gate_exps.weight' \(4, 32, 64\), .* do not fit together"):
        GgufCheckpoint(tmp_path / "model.gguf")
