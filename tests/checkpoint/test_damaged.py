"""Damaged and unknown checkpoints: each is refused by the name of what is wrong, and nothing is left behind."""

import os
import re
import shutil
import struct
from pathlib import Path

import layouts
import pytest
import torch
from damages import (
    FILE,
    INF,
    NAN,
    NORM,
    UP,
    Damage,
    Q,
    change_shard,
    config,
    config_text,
    device,
    drop,
    edit,
    elsewhere,
    eps,
    header,
    index,
    listed_twice,
    many_empty,
    many_metadata,
    mixed,
    nested,
    pipe,
    poke,
    put,
    quantization,
    raw,
    same_offsets,
    shard,
)
from layouts import AWQ, FP8, GPTQ, SHAPE
from tiny import make_olmoe

from estream.checkpoint.shards import INDEX
from estream.conversion.convert import convert
from estream.errors import CheckpointError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sound checkpoints by layout."""
    root = tmp_path_factory.mktemp("whole")
    make_olmoe(root / "plain", SHAPE)
    make_olmoe(root / "shards", SHAPE, max_shard_size="100KB")
    make_olmoe(root / "tied", SHAPE | {"tie_word_embeddings": True})
    tensors = layouts.load(root / "plain")
    layouts.write(root / "plain", root / "fused", layouts.fuse(tensors, 8))
    for name, one, settings in (
        ("fp8", layouts.fp8(), FP8),
        ("gptq", layouts.gptq(32, True), GPTQ),
        ("awq", layouts.awq(32), AWQ),
    ):
        layouts.write(root / "plain", root / name, layouts.compress(tensors, one)[0], quantization_config=settings)
    # In OLMoE mxfp4 is a tensor too many, and its damage is found before that.
    blocks, scales = layouts.mxfp4(torch.randn(2, 5, 64))
    more = {"a_blocks": blocks, "a_scales": scales}
    layouts.write(root / "plain", root / "mxfp4", tensors | more, quantization_config={"quant_method": "mxfp4"})
    return {path.name: path for path in root.iterdir()}


CASES: dict[str, tuple[str, Damage, str]] = {
    # Tensors.
    "a missing tensor": ("plain", drop(UP), f"tensor '{UP}' is missing"),
    "an extra tensor": ("plain", put("extra", torch.ones(3)), "tensor 'extra' is not part of"),
    "an extra bias": ("plain", put(f"{Q}bias", torch.ones(64)), f"'{Q}bias' is not part of"),
    "a wrong shape": ("plain", put(UP, lambda t: t[:-1]), rf"tensor '{UP}' is \(31, 64\), expected \(32, 64\)"),
    "a transposed tensor": ("plain", put(UP, lambda t: t.T), rf"tensor '{UP}' is \(64, 32\), expected \(32, 64\)"),
    "a flat tensor": ("plain", put(UP, lambda t: t.flatten()), rf"tensor '{UP}' is \(2048,\), expected"),
    "integers for weights": ("plain", put(UP, lambda t: t.int()), f"tensor '{UP}' is I32; supported are F32"),
    "doubles for weights": ("plain", put(UP, lambda t: t.double()), f"tensor '{UP}' is F64; supported are F32"),
    "a swapped type": ("plain", header(lambda h: h[UP].update(dtype="I32")), f"tensor '{UP}' is I32"),
    "a narrower type in the header alone": ("plain", header(lambda h: h[UP].update(dtype="F16")), f"{FILE}: not a whole"),
    "a weight that is not a number": ("plain", poke(UP, NAN), rf"tensor '{UP}' .layer 1 expert 3. holds a value in row 0"),
    "an infinite weight": ("plain", poke(f"{Q}weight", INF), f"tensor '{Q}weight' .layer 0 attention. holds a value in row 0"),
    "a weight too large for half precision": ("plain", poke("lm_head.weight", 1e30), "tensor 'lm_head.weight' .* too large"),
    "an infinite norm": ("plain", poke(NORM, INF), f"'{NORM}' holds values that are not finite"),
    "an embedding that is not a number": ("plain", poke("model.embed_tokens.weight", NAN), "'model.embed_tokens.weight' holds"),
    "a router that is not a number": ("plain", poke("model.layers.1.mlp.gate.weight", NAN), "'model.layers.1.mlp.gate.weight'"),
    "a tied head without embedding": (
        "tied", drop("model.embed_tokens.weight"), "tensor 'model.embed_tokens.weight' is missing"
    ),
    "an untied head that is missing": ("tied", config(tie_word_embeddings=False), "tensor 'lm_head.weight' is missing"),
    "experts fused and single": ("fused", edit(mixed), f"tensor '{UP}' is not part of"),
    "fused experts, one half missing": (
        "fused", drop("model.layers.2.mlp.experts.down_proj"), "tensor 'model.layers.2.mlp.experts.down_proj' is missing"
    ),
    # Files.
    "a truncated file": (
        "plain", lambda s: os.truncate(s / FILE, (s / FILE).stat().st_size - 10), f"{FILE}: not a whole safetensors file"
    ),
    "bytes behind the end": ("plain", raw(lambda d: d + bytes(16)), f"{FILE}: not a whole safetensors file"),
    "an empty file": ("plain", raw(lambda d: b""), f"{FILE}: not a whole safetensors file"),
    "not a safetensors file": ("plain", raw(lambda d: b"x" * 100), f"{FILE}: not a whole safetensors file"),
    "an absurd header length": (
        "plain", raw(lambda d: struct.pack("<Q", 1 << 60) + d[8:]), f"{FILE}: not a whole safetensors file"
    ),
    "a header that is not JSON": ("plain", raw(lambda d: d[:9] + b"}" + d[10:]), f"{FILE}: not a whole safetensors file"),
    "overlapping tensors": ("plain", header(same_offsets), f"{FILE}: not a whole .*experts"),
    "an unknown type in a header": ("plain", header(lambda h: h[UP].update(dtype="X9")), f"{FILE}: not a whole .*X9"),
    "a tensor listed twice in one file": ("plain", raw(listed_twice), f"{FILE}: not a whole"),
    "no weights": ("plain", lambda s: (s / FILE).unlink(), "no .safetensors file"),
    "an absent shard": (
        "shards", change_shard(lambda files: files[1].unlink()), f"{shard(2)}.*: this shard is missing, though {INDEX} lists it"
    ),
    "a truncated shard": (
        "shards", change_shard(lambda files: os.truncate(files[1], 1000)), f"{shard(2)}.*: not a whole safetensors file"
    ),
    "a shard twice": (
        "shards", change_shard(lambda files: shutil.copy(files[0], files[1])), f"{shard(2)}.* is also in {shard(1)}"
    ),
    "an index that names the wrong file": (
        "shards", index(lambda m: m.update({NORM: sorted(set(m.values()))[0]})), f"{shard(1)}.*: tensor '{NORM}' is missing"
    ),
    "an index with a tensor that is nowhere": (
        "shards", index(lambda m: m.update(ghost=m[NORM])), f"tensor 'ghost' is missing, though {INDEX}"
    ),
    "an index that is not JSON": ("shards", lambda s: (s / INDEX).write_text("{") and None, f"{INDEX}: cannot be read"),
    "an index without a map": ("shards", lambda s: (s / INDEX).write_text("{}") and None, f"{INDEX}: 'weight_map' must"),
    # config.json.
    "config.json absent": ("plain", lambda s: (s / "config.json").unlink(), "config.json: missing"),
    "config.json damaged": ("plain", lambda s: (s / "config.json").write_text("{") and None, "config.json: cannot be read"),
    "config.json a list": ("plain", lambda s: (s / "config.json").write_text("[]") and None, "config.json: expected a JSON"),
    "config.json not text": ("plain", lambda s: (s / "config.json").write_bytes(b"\xff\xfe{") and None, "config.json: cannot"),
    "an unknown architecture": ("plain", config(architectures=["LlamaForCausalLM"]), "'LlamaForCausalLM' is not supported"),
    "no architecture": ("plain", config(architectures=None), "'architectures' is missing, and 'model_type' 'olmoe' alone"),
    "an unknown activation": ("plain", config(hidden_act="relu"), "'hidden_act' is 'relu'"),
    "attention with biases": ("plain", config(attention_bias=True), "'attention_bias' is True"),
    "scaled rotary positions": (
        "plain", config(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}), "'factor' is missing"
    ),
    "a rotary base that is not a number": ("plain", config(rope_parameters={"rope_theta": "x"}), "'rope_theta' must be"),
    "more chosen experts than there are": ("plain", config(num_experts_per_tok=9), "num_experts_per_tok 9 exceeds"),
    "fewer experts than tensors": (
        "plain", config(num_experts=7), r"tensor 'model.layers.0.mlp.gate.weight' is \(8, 64\), expected \(7, 64\)"
    ),
    "more experts than tensors": ("plain", config(num_experts=9), r"tensor 'model.layers.0.mlp.gate.weight' is \(8, 64\)"),
    "two numbers of experts": ("plain", config(num_local_experts=4), "'num_experts' is 8 and 'num_local_experts' is 4"),
    "a missing key": ("plain", config_text(lambda t: t.replace('"vocab_size"', '"x"')), "'vocab_size' is missing"),
    "a null": ("plain", config(vocab_size=None), "'vocab_size' must be a positive whole number, found None"),
    "layers without end": ("plain", config(num_hidden_layers=10**9), "'num_hidden_layers' must be at most 4096, found 10000"),
    "more layers than tensors": ("plain", config(num_hidden_layers=4000), "'num_hidden_layers' is 4000, but there are"),
    "experts without end": ("plain", config(num_experts=10**9), "'num_experts' must be at most 65536, found 1000000000"),
    "experts without tensors": ("plain", config(num_experts=60000), "'num_experts' is 60000 in each of 3 layers, but the"),
    "an epsilon that is not a number": ("plain", config(rms_norm_eps=NAN), "'rms_norm_eps' must be a finite .* found nan"),
    "an infinite epsilon": ("plain", config_text(eps("1e400")), "'rms_norm_eps' must be a finite .* found inf"),
    "an epsilon of 400 digits": ("plain", config_text(eps("9" * 400)), "'rms_norm_eps' must be a finite number .* found 9999"),
    "an epsilon of 5000 digits": ("plain", config_text(eps("9" * 5000)), "config.json: cannot be read .*digits"),
    "an epsilon below zero": ("plain", config(rms_norm_eps=-1e-5), "'rms_norm_eps' must be a number of at least 0, found -1"),
    "a clip that is not a number": ("plain", config(clip_qkv=NAN), "'clip_qkv' must be a finite number"),
    "a base that is not a number": ("plain", config(rope_parameters=None, rope_theta=NAN), "'rope_theta' must be a finite"),
    "an architecture that is none": ("plain", config(architectures=5), "'architectures' must be a list of names, found 5"),
    "rotary parameters in a list": ("plain", config(rope_parameters=[1]), r"'rope_parameters' must be an object, found \[1\]"),
    "settings by layer": ("plain", config(per_layer_config={"0": {}}), "'per_layer_config' is {'0': {}}, but only None"),
    "half of a surrogate pair": ("plain", config(model_type="\ud800"), r"'model_type' has a text that is not Unicode"),
    "a config nested without end": ("plain", config_text(lambda t: "[" * 3000), "config.json: cannot be read .nested too"),
    "a config nested deeply": ("plain", config(x=nested(200)), "config.json: 'x' is nested too deeply, more than 32 levels"),
    "a config of a gigabyte": (
        "plain", lambda s: os.truncate(s / "config.json", 1 << 30), "config.json: cannot be read .1 GiB, at most 64 MiB"
    ),
    "a config that is a pipe": ("plain", pipe("config.json"), "config.json: cannot be read .not a regular file"),
    "weights that are a pipe": ("plain", pipe(FILE), f"{FILE}: cannot be read .not a regular file"),
    "weights that are a device": ("plain", device(FILE), f"{FILE}: cannot be read .not a regular file"),
    "a tokenizer that is a device": ("plain", device("tokenizer.json"), "tokenizer.json: cannot be read .not a regular"),
    "an index that leads outside": ("shards", elsewhere("../x.safetensors"), "'weight_map.*' must be a path below the folder"),
    "an index with an absolute name": ("shards", elsewhere("/dev/zero"), "must be a path below the folder, found '/dev/zero'"),
    "an index with a NUL": ("shards", elsewhere("a\0b"), "must be a path below the folder"),
    "metadata twice": ("plain", raw(many_metadata), f"{FILE}: not a whole safetensors file .*'k0' is listed twice"),
    "60,000 empty tensors": ("plain", raw(many_empty), "'num_hidden_layers' is 3, but there are 0 tensors with values"),
    "a negative size": ("plain", config(hidden_size=-64), "'hidden_size' must be a positive whole number, found -64"),
    "a truth value for a number": ("plain", config(num_experts=True), "'num_experts' must be a positive whole number, found T"),
    "a text for a number": ("plain", config(num_hidden_layers="3"), "'num_hidden_layers' must be a positive whole"),
    "a fraction for a number": ("plain", config(num_hidden_layers=2.5), "'num_hidden_layers' must be a positive whole"),
    "a number for a truth value": ("plain", config(tie_word_embeddings=1), "'tie_word_embeddings' must be true or false"),
    "a routing that is not known": ("plain", config(norm_topk_prob="sigmoid"), "'norm_topk_prob' must be true or false"),
    "fewer layers than tensors": ("plain", config(num_hidden_layers=2), "'model.layers.2.input_layernorm.weight' and"),
    "heads that do not divide": ("plain", config(num_attention_heads=5), "num_attention_heads 5 is not a multiple of"),
    # Compressed weights.
    "an unknown method": ("plain", config(quantization_config={"quant_method": "bitsandbytes"}), "'bitsandbytes' is not"),
    "another unknown method": (
        "plain", config(quantization_config={"quant_method": "compressed-tensors"}), "'compressed-tensors' is not supported"
    ),
    "a method that is not named": ("plain", config(quantization_config={}), "'quant_method' None is not supported"),
    "a method that is no object": ("plain", config(quantization_config="fp8"), "'quantization_config' must be an object"),
    "fp8 without a config": ("fp8", config(quantization_config=None), "is F8_E4M3, but config.json has no"),
    "fp8 without a scale": ("fp8", drop(f"{Q}weight_scale_inv"), f"tensor '{Q}weight_scale_inv' is missing"),
    "an fp8 scale without its codes": ("fp8", put(f"{Q}weight", torch.ones(64, 64)), f"'{Q}weight_scale_inv' is not part of"),
    "an fp8 scale of a wrong shape": (
        "fp8", put(f"{Q}weight_scale_inv", torch.ones(2, 1)), rf"'{Q}weight_scale_inv' is \(2, 1\), expected \(1, 1\)"
    ),
    "an fp8 scale of a wrong type": (
        "fp8", put(f"{Q}weight_scale_inv", lambda t: t.int()), f"'{Q}weight_scale_inv' holds scales as I32"
    ),
    "an fp8 scale that is not a number": (
        "fp8", poke(f"{Q}weight_scale_inv", NAN, 0), f"'{Q}weight_scale_inv' holds scales that are not finite"
    ),
    "an fp8 weight that is not a number": ("fp8", poke(f"{Q}weight", NAN), f"'{Q}weight' .layer 0 attention. holds a value"),
    "fp8 with fixed activation scales": ("fp8", quantization(activation_scheme="static"), "'activation_scheme' is 'static'"),
    "fp8 blocks that are none": ("fp8", quantization(weight_block_size=[128]), "'weight_block_size' must be two counts"),
    "gptq with another number of bits": ("gptq", quantization(bits=3), "'bits' is 3, only 4 is supported"),
    "gptq without a group": ("gptq", quantization(group_size=None), "'group_size' must be a count or -1, found None"),
    "gptq in another format": ("gptq", quantization(checkpoint_format="marlin"), "'checkpoint_format' is 'marlin'"),
    "gptq without zeros": ("gptq", drop(f"{Q}qzeros"), f"tensor '{Q}qzeros' is missing"),
    "gptq with the wrong group": ("gptq", quantization(group_size=64), "qweight' has 32 inputs .* multiples of the group, 64"),
    "gptq with scales of a wrong type": ("gptq", put(f"{Q}scales", lambda t: t.float()), f"'{Q}scales' is F32, expected F16"),
    "gptq with an infinite scale": ("gptq", poke(f"{Q}scales", INF), f"'{Q}scales' holds scales that are not finite"),
    "gptq with act order": ("gptq", put(f"{Q}g_idx", lambda t: t.flip(0)), f"'{Q}g_idx' permutes the inputs"),
    "gptq stored plain too": ("gptq", put(f"{Q}weight", torch.ones(64, 64)), f"'{Q}weight' is stored compressed and"),
    "awq in another version": ("awq", quantization(version="gemv"), "'version' is 'gemv'"),
    "awq with codes of a wrong shape": ("awq", put(f"{Q}qweight", lambda t: t[:-1]), f"'{Q}qweight' has 63 inputs"),
    "awq with zeros of a wrong shape": ("awq", put(f"{Q}qzeros", lambda t: t[:-1]), rf"'{Q}qzeros' is \(1, 8\), expected"),
    "mxfp4 without scales": ("mxfp4", drop("a_scales"), "tensor 'a_scales' is missing, without which 'a_blocks'"),
    "mxfp4 scales of a wrong shape": ("mxfp4", put("a_scales", lambda t: t[:, :-1]), r"'a_scales' is \(2, 4, 2\), expected"),
    "mxfp4 blocks of a wrong size": ("mxfp4", put("a_blocks", lambda t: t[..., :8]), r"'a_blocks' is \(2, 5, 2, 8\), expected"),
    "mxfp4 blocks of a wrong type": ("mxfp4", put("a_blocks", lambda t: t.int()), "'a_blocks' is I32, expected U8"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_checkpoint_is_refused_by_name_and_nothing_is_left(case: str, whole: dict[str, Path], tmp_path: Path):
    layout, damage, message = CASES[case]
    shutil.copytree(whole[layout], tmp_path / "source")
    damage(tmp_path / "source")
    with pytest.raises(CheckpointError) as caught:
        convert(tmp_path / "source", tmp_path / "out.estream")
    assert re.search(message, str(caught.value)), str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_the_checkpoints_that_are_damaged_here_are_sound(whole: dict[str, Path], tmp_path: Path):
    with pytest.raises(CheckpointError, match="tensor 'a' is not part of"):
        convert(whole["mxfp4"], tmp_path / "out.estream")
    for name in set(whole) - {"mxfp4"}:
        convert(whole[name], tmp_path / f"{name}.estream")
