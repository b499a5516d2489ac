"""Every layout of a checkpoint gives the package that its plain values give."""

import json
import shutil
from pathlib import Path

import layouts
import numpy as np
import pytest
import torch
from command import run
from layouts import AWQ, FP8, GPTQ, SHAPE, data
from reference import PackageWeights, unpack
from safetensors.torch import save_file
from tiny import FAMILIES, make_olmoe, make_tiny
from tiny_usual import QWEN3_SHAPES
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import estream
from estream.checkpoint.decoders import Mxfp4Tensor
from estream.checkpoint.huggingface import HfCheckpoint
from estream.checkpoint.int4 import AwqTensor, GptqTensor
from estream.conversion.convert import ConvertOptions, convert
from estream.errors import CheckpointError
from estream.models.config import TensorRef
from estream.package.package import Package

#: Neither rows nor columns are multiples of 128.
ODD = SHAPE | {"hidden_size": 320, "intermediate_size": 160, "num_hidden_layers": 2}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whatever_transformers_writes_of_one_model_gives_one_package(family: str, tied: bool, dtype, tmp_path: Path):
    shape = next(iter(FAMILIES[family].shapes.values())) | {"tie_word_embeddings": tied}
    model = make_tiny(tmp_path / "first", family, shape).to(dtype)
    ways = {
        "one file": {},
        "shards": {"max_shard_size": "100KB"},
        "new names": {"save_original_format": False},
        "new names in shards": {"save_original_format": False, "max_shard_size": "200KB"},
    }
    packages = []
    for name, options in ways.items():
        model.save_pretrained(tmp_path / name, **options)
        packages.append(convert(tmp_path / name, tmp_path / f"{name}.estream"))
    assert any(name.endswith("gate_up_proj") for name in layouts.load(tmp_path / "new names"))
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    for package in packages[1:]:
        assert data(package) == data(packages[0])
    with estream.load(packages[0].path) as one, estream.load(packages[-1].path) as other:
        np.testing.assert_array_equal(one.prefill([1, 2, 3]).logits, other.prefill([1, 2, 3]).logits)


@pytest.mark.parametrize("spelling", ["num_experts", "num_local_experts", "n_routed_experts"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_number_of_experts_has_many_spellings(family: str, spelling: str, tmp_path: Path):
    make_tiny(tmp_path / "source", family, next(iter(FAMILIES[family].shapes.values())))
    expected = data(convert(tmp_path / "source", tmp_path / "a.estream"))
    config = json.loads((tmp_path / "source/config.json").read_text())
    (count,) = {config.pop(name) for name in ("num_experts", "num_local_experts", "n_routed_experts") if name in config}
    (tmp_path / "source/config.json").write_text(json.dumps(config | {spelling: count}))
    assert data(convert(tmp_path / "source", tmp_path / "b.estream")) == expected


COMPRESSED = {
    "fp8": (layouts.fp8(), FP8),
    "fp8 with bfloat16 scales": (layouts.fp8(scale_dtype=torch.bfloat16), FP8),
    "fp8 with scales that are powers of two": (layouts.fp8(scale_dtype=torch.float8_e8m0fnu), FP8),
    "fp8 in small blocks": (layouts.fp8(96), FP8 | {"weight_block_size": [96, 96]}),
    "fp8, a scale a tensor": (layouts.fp8_whole(False), {"quant_method": "fp8"}),
    "fp8, a scale a row": (layouts.fp8_whole(True), {"quant_method": "fp8"}),
    "gptq": (layouts.gptq(32, True), GPTQ),
    "gptq, asymmetric": (layouts.gptq(32, False), GPTQ | {"sym": False}),
    "gptq, version 2": (layouts.gptq(32, False, 0), GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"}),
    "gptq, one group": (layouts.gptq(-1, True), GPTQ | {"group_size": -1}),
    "awq": (layouts.awq(32), AWQ),
}


@pytest.mark.parametrize("kind", COMPRESSED)
def test_compressed_checkpoints_give_what_their_values_give(kind: str, tmp_path: Path):
    one, settings = COMPRESSED[kind]
    make_olmoe(tmp_path / "source", ODD)
    packed, plain = layouts.compress(layouts.load(tmp_path / "source"), one)
    assert not any(
        torch.equal(plain[name], value) for name, value in layouts.load(tmp_path / "source").items() if "_proj" in name
    )
    layouts.write(tmp_path / "source", tmp_path / "packed", packed, quantization_config=settings)
    layouts.write(tmp_path / "source", tmp_path / "plain", plain)
    package = convert(tmp_path / "packed", tmp_path / "packed.estream")
    again = convert(tmp_path / "plain", tmp_path / "plain.estream", ConvertOptions(group=package.manifest.quantization.group))
    if any(entry["kept"] for entry in package.manifest.source["conversion"]["weights"]):
        _holds_exactly_or_anew(package, again, plain)
    else:
        assert data(package) == data(again)
    assert package.manifest.source["compression"].lower().startswith(settings["quant_method"])
    checkpoint = HfCheckpoint(tmp_path / "packed")
    for name, values in plain.items():
        tensor = checkpoint.tensors[name]
        assert tensor.shape == values.shape
        if layouts.is_linear(name):
            for first, count in ((0, None), (5, 1), (130, 29)):
                end = None if count is None else first + count
                np.testing.assert_array_equal(tensor.read_rows(first, count), values[first:end].numpy())


def _holds_exactly_or_anew(package: Package, again: Package, plain: dict[str, torch.Tensor]) -> None:
    """Each matrix of the experts has the values of the source, or, where its codes do not fit, those of quantising anew."""
    weights, others, exact = PackageWeights(package), PackageWeights(again), []
    for layer in range(package.manifest.config.layers):
        for e in range(package.manifest.config.moe.experts):
            for name, mine, anew in zip(
                ("gate", "up", "down"), weights.mlp("expert", layer, e), others.mlp("expert", layer, e), strict=True
            ):
                value = plain[f"model.layers.{layer}.mlp.experts.{e}.{name}_proj.weight"].float().numpy()
                exact.append(np.array_equal(mine, value))
                assert exact[-1] or np.array_equal(mine, anew)
    (said,) = [entry for entry in package.manifest.source["conversion"]["weights"] if entry["kind"] == "expert"]
    assert any(exact)
    assert all(exact) == (said["requantised"] == 0)


def test_fp8_of_fused_experts(tmp_path: Path):
    """Blocks of each expert begin anew, though its rows are no multiple of 128."""
    make_olmoe(tmp_path / "source", ODD)
    tensors = layouts.fuse(layouts.load(tmp_path / "source"), 8)
    packed, plain = {}, {}
    for name, value in tensors.items():
        packed[name] = plain[name] = value
        if name.endswith(("gate_up_proj", "down_proj")):
            parts = [layouts.fp8()(expert) for expert in value]
            packed[name] = torch.stack([part["weight"].view(torch.uint8) for part, _ in parts]).view(torch.float8_e4m3fn)
            packed[f"{name}_scale_inv"] = torch.stack([part["weight_scale_inv"] for part, _ in parts])
            plain[name] = torch.stack([values for _, values in parts])
    layouts.write(tmp_path / "source", tmp_path / "packed", packed, quantization_config=FP8)
    layouts.write(tmp_path / "source", tmp_path / "plain", plain)
    assert data(convert(tmp_path / "packed", tmp_path / "a.estream")) == data(
        convert(tmp_path / "plain", tmp_path / "b.estream")
    )


@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 1), (3, 10), (3, 10, 1)], ids=str)
def test_fp8_of_fused_experts_without_blocks(shape: tuple[int, ...], tmp_path: Path):
    """One scale for the tensor, for each expert, or for each row of each expert."""
    codes, scales = torch.randn(3, 10, 64).to(torch.float8_e4m3fn), torch.rand(shape) + 0.5
    tensor = _checkpoint(tmp_path / "source", {"x": codes, "x_scale": scales}, {"quant_method": "fp8"}).tensors["x"]
    wide = scales if scales.ndim in (0, 3) else scales[..., None] if scales.ndim == 2 else scales[None, None]
    expected = (codes.float() * wide).reshape(30, 64).numpy()
    for first, count in ((0, 30), (7, 5), (20, 10)):
        np.testing.assert_array_equal(tensor.read_rows(first, count), expected[first : first + count])


@pytest.mark.parametrize("shape", [(10,), (10, 1), (3,), (30,)], ids=str)
def test_fp8_scales_that_do_not_say_which_expert_are_refused(shape: tuple[int, ...], tmp_path: Path):
    codes = torch.randn(3, 10, 64).to(torch.float8_e4m3fn)
    with pytest.raises(CheckpointError, match=r"'x_scale' is .*, expected \(\) or \(1,\) or \(3, 1, 1\) or \(3, 10\)"):
        _checkpoint(tmp_path / "source", {"x": codes, "x_scale": torch.ones(shape)}, {"quant_method": "fp8"})


def _checkpoint(folder: Path, tensors: layouts.Tensors, method: dict) -> HfCheckpoint:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": method}))
    return HfCheckpoint(folder)


def test_fp8_is_what_transformers_makes_of_it(tmp_path: Path):
    codes = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    codes[:, [127, 255]] = 0  # the two that are not numbers
    codes = codes.view(torch.float8_e4m3fn)
    scales = torch.tensor([[0.3, 1e-5], [7.0, 2.0**-20]])
    checkpoint = _checkpoint(tmp_path / "x", {"a.weight": codes, "a.weight_scale_inv": scales}, FP8)
    expected = Fp8Dequantize(None)._dequantize_one(codes, scales, torch.float32)
    np.testing.assert_array_equal(checkpoint.tensors["a.weight"].read_rows(), expected.numpy())


def test_mxfp4_is_what_transformers_makes_of_it(tmp_path: Path):
    rng = np.random.default_rng(0)
    blocks = torch.from_numpy(rng.integers(0, 256, (3, 6, 4, 16), dtype=np.uint8))
    scales = torch.from_numpy(rng.integers(90, 160, (3, 6, 4), dtype=np.uint8))
    method = {"quant_method": "mxfp4"}
    tensor = _checkpoint(tmp_path / "x", {"a_blocks": blocks, "a_scales": scales}, method).tensors["a"]
    assert isinstance(tensor, Mxfp4Tensor)
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert tensor.shape == expected.shape == (3, 128, 6)
    rows = expected.reshape(-1, 6).numpy()
    np.testing.assert_array_equal(tensor.read_rows(), rows)
    for first, count in ((0, 128), (128, 1), (100, 200), (383, 1)):
        np.testing.assert_array_equal(tensor.read_rows(first, count), rows[first : first + count])
    weight = torch.randn(2, 5, 64)
    blocks, scales = layouts.mxfp4(weight)
    read = _checkpoint(tmp_path / "y", {"a_blocks": blocks, "a_scales": scales}, method).tensors["a"]
    error = np.abs(read.read_rows().reshape(2, 64, 5) - weight.transpose(1, 2).numpy())
    assert (error <= 0.25 * weight.transpose(1, 2).abs().numpy() + 0.25).all()


def test_gpt_oss_as_published_is_what_its_values_say(tmp_path: Path):
    """Experts in MXFP4, all else in bfloat16."""
    make_tiny(tmp_path / "source", "gpt_oss", next(iter(FAMILIES["gpt_oss"].shapes.values())) | {"intermediate_size": 64})
    packed, plain = {}, {}
    for name, value in layouts.load(tmp_path / "source").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            packed[name] = plain[name] = value.bfloat16()
            continue
        packed[f"{name}_blocks"], packed[f"{name}_scales"] = blocks, scales = layouts.mxfp4(value.transpose(1, 2))
        plain[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    published = layouts.write(tmp_path / "source", tmp_path / "a", packed, quantization_config={"quant_method": "mxfp4"})
    expected = layouts.write(tmp_path / "source", tmp_path / "b", plain)
    assert data(convert(published, tmp_path / "a.estream")) == data(convert(expected, tmp_path / "b.estream"))


def test_every_code_of_gptq_and_awq_has_its_place(tmp_path: Path):
    """More outputs than are decoded together, and every code and zero in every nibble."""
    weight = torch.randn(600, 64) * torch.linspace(0.1, 4, 600)[:, None]
    for name, kind, one, settings in (
        ("g", GptqTensor, layouts.gptq(32, False), GPTQ),
        ("a", AwqTensor, layouts.awq(32), AWQ),
    ):
        parts, plain = one(weight)
        tensors = {f"x.{part}": value.contiguous() for part, value in parts.items()}
        tensor = _checkpoint(tmp_path / name, tensors, settings).tensors["x.weight"]
        assert isinstance(tensor, kind)
        for first, count in ((0, 600), (3, 300), (250, 9), (599, 1)):
            np.testing.assert_array_equal(tensor.read_rows(first, count), plain[first : first + count].numpy())


@pytest.mark.parametrize("kind", ["symmetric", "asymmetric"])
def test_codes_can_be_had_as_they_are_where_four_bits_hold_them(kind: str, tmp_path: Path):
    """Code less zero lies in -8..7 where the zero is 8, elsewhere it need not."""
    weight = torch.randn(40, 64) + (kind == "asymmetric")
    parts, plain = layouts.gptq(32, kind == "symmetric")(weight)
    tensors = {f"x.{part}": value.contiguous() for part, value in parts.items()}
    checkpoint = _checkpoint(tmp_path / "x", tensors, GPTQ)
    ref = TensorRef("x.weight", (40, 64))
    assert checkpoint.code_format(ref) == (4, 32)
    found = checkpoint.read_codes(ref, 3, 20)
    if kind == "asymmetric":
        assert found is None
        return
    assert found is not None
    assert found.codes.min() >= -8
    assert found.codes.max() <= 7
    values = found.codes * np.repeat(found.scales.view(np.float16).astype(np.float32), 32, 1)
    np.testing.assert_array_equal(values, plain[3:23].numpy())


@pytest.mark.parametrize("group", [64, 128])
def test_symmetric_4_bit_weights_whose_largest_code_is_the_lowest_come_back_as_they_were(group: int, tmp_path: Path):
    """Where a group reaches code -8, the search for a scale finds the source's own, and requantising changes nothing."""
    make_olmoe(tmp_path / "source", SHAPE | {"hidden_size": 128, "intermediate_size": 128})
    scales = torch.tensor(0.02).half().float() * torch.arange(1, 9).float()

    def one(weight: torch.Tensor) -> tuple[layouts.Tensors, torch.Tensor]:
        rows, columns = weight.shape
        codes = torch.randint(1, 16, (rows, columns), generator=torch.Generator().manual_seed(1))
        codes[:, :: min(group, columns)] = 0
        scale = scales[torch.arange(rows) % 8][:, None].expand(rows, columns // group).half()
        zeros = torch.full_like(scale, 8).int()
        straight = list(range(8))
        parts = {
            "qweight": layouts.pack_words(codes, straight).T,
            "qzeros": layouts.pack_words((zeros - 1).T, straight),
            "scales": scale.T,
        }
        return parts, layouts.int4_values(codes, zeros, scale)

    packed, plain = layouts.compress(layouts.load(tmp_path / "source"), one)
    layouts.write(tmp_path / "source", tmp_path / "packed", packed, quantization_config=GPTQ | {"group_size": group})
    package = convert(tmp_path / "packed", tmp_path / "p.estream", ConvertOptions(group=group))
    page = next(p for p in package.manifest.tape if p.spec.kind == "expert")
    raw = np.fromfile(package.pages_path, np.uint8, page.spec.bytes, offset=page.offset)
    stored = unpack(page.spec.layout.matrix("down"), raw)
    np.testing.assert_array_equal(stored, plain["model.layers.0.mlp.experts.0.down_proj.weight"].numpy())


def test_a_compressed_checkpoint_says_what_was_done(tmp_path: Path):
    make_olmoe(tmp_path / "source", SHAPE)
    packed, _ = layouts.compress(layouts.load(tmp_path / "source"), layouts.awq(32))
    layouts.write(tmp_path / "source", tmp_path / "packed", packed, quantization_config=AWQ)
    shown = run("convert", tmp_path / "packed", tmp_path / "out.estream")
    assert "compressed (AWQ, 4 bits, asymmetric, groups of 32)" in shown.stdout
    assert "expert (AWQ, 4 bits, asymmetric, groups of 32): " in shown.stdout
    facts = json.loads(run("inspect", tmp_path / "out.estream", "--json").stdout)
    assert facts["source"]["compression"] == "AWQ, 4 bits, asymmetric, groups of 32"


def test_unquantised_parts_of_a_compressed_checkpoint_are_read_as_they_are(tmp_path: Path):
    make_tiny(tmp_path / "source", "qwen3_moe", QWEN3_SHAPES["20 experts, tied"])
    shutil.copytree(tmp_path / "source", tmp_path / "copy")
    config = json.loads((tmp_path / "copy/config.json").read_text())
    (tmp_path / "copy/config.json").write_text(json.dumps(config | {"quantization_config": GPTQ}))
    a, b = (convert(tmp_path / name, tmp_path / f"{name}.estream") for name in ("source", "copy"))
    assert data(a) == data(b)
