"""GGUF models become the packages that the same weights make from a Hugging Face folder."""

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_files import SHAPES, GgufModel, permute
from peak import peak_bytes
from reference import PackageWeights
from safetensors.numpy import load_file, save_file
from tiny import make_tiny
from typer.testing import CliRunner

import estream
from estream.checkpoint.gguf.types import TYPES
from estream.cli.app import app
from estream.conversion.convert import ConvertOptions, convert
from estream.errors import CheckpointError
from estream.package.package import Package


@pytest.fixture(scope="module", params=SHAPES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GgufModel]:
    """A Hugging Face folder of two layers, and the same model for GGUF."""
    folder = tmp_path_factory.mktemp("gguf") / "hf"
    model = make_tiny(folder, request.param, SHAPES[request.param] | {"num_hidden_layers": 2})
    return folder, GgufModel.of(model, request.param)


def _same(a: Package, b: Package) -> None:
    assert a.manifest.config == b.manifest.config
    assert a.manifest.quantization == b.manifest.quantization
    for name in ("pages.bin", "embedding.bin", "resident.safetensors"):
        assert (a.path / name).read_bytes() == (b.path / name).read_bytes(), name


_PROJECTIONS = tuple(f"mlp.experts.{{e}}.{n}_proj" for n in ("gate", "up", "down"))
#: Names of the experts' matrices: gate, up, down.
_EXPERTS = {
    "olmoe": _PROJECTIONS,
    "mixtral": tuple(f"block_sparse_moe.experts.{{e}}.{n}" for n in ("w1", "w3", "w2")),
    "qwen3_moe": _PROJECTIONS,
}


def _with_values(source: Path, model: GgufModel, to: Path) -> Path:
    """The Hugging Face folder with the values that the GGUF file holds."""
    tensors, stored = load_file(source / "model.safetensors"), model.dequantised()
    heads = {"q": model.config.num_attention_heads, "k": model.config.num_key_value_heads}
    for name, value in stored.items():
        if not name.startswith("blk."):
            continue
        _, layer, rest = name.split(".", 2)
        for part, target in zip(("gate", "up", "down"), _EXPERTS[model.family], strict=True):
            if rest == f"ffn_{part}_exps.weight":
                for e, matrix in enumerate(value):
                    tensors[f"model.layers.{layer}.{target.format(e=e)}.weight"] = matrix
        for part, target in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("output", "o_proj")):
            if rest == f"attn_{part}.weight":
                original = tensors[f"model.layers.{layer}.self_attn.{target}.weight"]
                if model.family == "mixtral" and part in heads:
                    value = _unpermute(value, heads[part])
                assert value.shape == original.shape
                tensors[f"model.layers.{layer}.self_attn.{target}.weight"] = value
    tensors["model.embed_tokens.weight"] = stored["token_embd.weight"]
    if "output.weight" in stored:
        tensors["lm_head.weight"] = stored["output.weight"]
    to.mkdir()
    save_file({n: np.ascontiguousarray(v) for n, v in tensors.items()}, to / "model.safetensors", {"format": "pt"})
    (to / "config.json").write_bytes((source / "config.json").read_bytes())
    return to


def _unpermute(value: np.ndarray, heads: int) -> np.ndarray:
    """By the definition of the permutation: where each row went."""
    rows = permute(np.arange(len(value))[:, None], heads)[:, 0]
    result = np.empty_like(value)
    result[rows] = value
    return result


@pytest.mark.parametrize("kind", [TYPES[n].name for n in TYPES if TYPES[n].name not in ("Q4_K", "Q5_K", "Q6_K")])
def test_every_type_gives_the_package_of_its_values(tiny, kind: str, tmp_path: Path):
    """Whether codes are kept or values quantised anew, a package is what it would be from a folder of those values; where
    codes are kept it holds them exactly.
    """
    source, model = tiny
    model = GgufModel(model.family, model.config, model.tensors, lambda name: Kind[kind])
    model.write(tmp_path / "model.gguf")
    bits = 8 if kind in ("Q8_0", "MXFP4") else 4
    package = convert(tmp_path / "model.gguf", tmp_path / "gguf.estream", ConvertOptions(bits))
    group = 32 if kind in ("Q4_0", "Q8_0", "MXFP4") else 64
    assert package.manifest.quantization.group == group
    report = {entry["kind"]: entry for entry in package.manifest.source["conversion"]["weights"]}
    kept = kind in ("Q4_0", "Q8_0", "MXFP4")
    assert {entry["kept"] > 0 for entry in report.values()} == {kept}
    assert {entry["requantised"] == 0 for entry in report.values()} == {kept}
    assert {entry["stored_as"] for entry in report.values()} == {kind}
    values = _with_values(source, model, tmp_path / "values")
    if kept:
        _holds_exactly(package, values, model.family)
    elif kind in ("F16", "BF16"):
        again = convert(values, tmp_path / "values.estream", ConvertOptions(bits, group))
        assert (package.path / "pages.bin").read_bytes() == (again.path / "pages.bin").read_bytes()
        assert package.manifest.embedding_dtype == {"F16": "float16", "BF16": "bfloat16"}[kind]
    else:
        _same(package, convert(values, tmp_path / "values.estream", ConvertOptions(bits, group)))


def _holds_exactly(package: Package, folder: Path, family: str) -> None:
    weights, expected = PackageWeights(package), load_file(folder / "model.safetensors")
    for layer in range(package.manifest.config.layers):
        (attention,) = weights.page("attention", layer)
        for name in ("q", "k", "v", "o"):
            np.testing.assert_array_equal(
                weights.matrix(attention, name), expected[f"model.layers.{layer}.self_attn.{name}_proj.weight"]
            )
        for e in range(package.manifest.config.moe.experts):
            for name, value in zip(_EXPERTS[family], weights.mlp("expert", layer, e), strict=True):
                np.testing.assert_array_equal(value, expected[f"model.layers.{layer}.{name.format(e=e)}.weight"])
    head = "model.embed_tokens.weight" if package.manifest.config.tied_head else "lm_head.weight"
    np.testing.assert_array_equal(weights.head(), expected[head])


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_types_that_the_gguf_package_does_not_write(tiny, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Blocks of random bytes with small scales, dequantised by the ``gguf`` package."""
    source, model = tiny
    number = Kind[kind]
    made: dict[tuple[int, ...], np.ndarray] = {}

    def blocks(value: np.ndarray, wanted: Kind) -> np.ndarray:
        if wanted != number:
            return value.astype(np.float32)
        shape = (*value.shape[:-1], value.shape[-1] // 256 * TYPES[int(number)].bytes)
        if shape not in made:
            data = np.random.default_rng(len(made)).integers(0, 256, shape, dtype=np.uint8)
            each = data.reshape(-1, TYPES[int(number)].bytes)
            for at in (208,) if kind == "Q6_K" else (0, 2):
                each[:, at : at + 2] = np.float16(1e-3).reshape(1).view(np.uint8)
            made[shape] = data
        return made[shape]

    monkeypatch.setattr("gguf_files.quantize", blocks)
    model = GgufModel(model.family, model.config, model.tensors, lambda name: number)
    model.write(tmp_path / "model.gguf")
    package = convert(tmp_path / "model.gguf", tmp_path / "gguf.estream")
    _same(package, convert(_with_values(source, model, tmp_path / "values"), tmp_path / "values.estream"))


def test_parts_and_folders_give_the_same_package(tiny, tmp_path: Path):
    _, model = tiny
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    model.write(tmp_path / "whole/model.gguf")
    model.write(tmp_path / "parts/model.gguf", split=7)
    parts = sorted((tmp_path / "parts").glob("*.gguf"))
    assert len(parts) > 2
    whole = convert(tmp_path / "whole", tmp_path / "whole.estream")
    for index, source in enumerate((parts[0], parts[-1], tmp_path / "parts")):
        _same(convert(source, tmp_path / f"{index}.estream"), whole)


def test_a_folder_of_several_models_asks_which(tiny, tmp_path: Path):
    _, model = tiny
    model.write(tmp_path / "a.gguf")
    model.write(tmp_path / "b.gguf", split=20)
    with pytest.raises(CheckpointError, match=r"holds several models \(a.gguf, b-00001-of-0000\d.gguf\): name the file"):
        convert(tmp_path, tmp_path / "out.estream")
    with pytest.raises(CheckpointError, match="c.gguf: no such file"):
        convert(tmp_path / "c.gguf", tmp_path / "out.estream")


def test_experts_of_files_before_2024_04_are_tensors_of_their_own(tmp_path: Path):
    model = GgufModel.of(make_tiny(tmp_path / "hf", "mixtral", SHAPES["mixtral"]), "mixtral")
    model.write(tmp_path / "new.gguf")
    tensors = {n: v for n, v in model.tensors.items() if "_exps" not in n}
    for name, value in model.tensors.items():
        if "_exps" in name:
            for e, matrix in enumerate(value):
                tensors[name.replace("_exps", f".{e}")] = matrix
    GgufModel("mixtral", model.config, tensors).write(tmp_path / "old.gguf")
    _same(convert(tmp_path / "old.gguf", tmp_path / "a.estream"), convert(tmp_path / "new.gguf", tmp_path / "b.estream"))


def test_mixed_types_keep_what_they_can_and_say_what_the_rest_cost(tmp_path: Path):
    """As llama.cpp mixes them: most experts Q4_0, some matrices better."""
    model = GgufModel.of(make_tiny(tmp_path / "hf", "olmoe", SHAPES["olmoe"]), "olmoe")
    model.kind_of = lambda name: Kind.Q8_0 if "down" in name or name == "output.weight" else Kind.Q4_0
    model.write(tmp_path / "model.gguf")
    package = convert(tmp_path / "model.gguf", tmp_path / "out.estream")
    weights = {(e["kind"], e["stored_as"]): e for e in package.manifest.source["conversion"]["weights"]}
    assert {k: (e["kept"], e["requantised"]) for k, e in weights.items()} == {
        ("attention", "Q4_0"): (12, 0),
        ("expert", "Q4_0"): (24, 0),
        ("expert", "Q8_0"): (0, 24),
        ("head", "Q8_0"): (1, 0),
    }
    assert 0.01 < weights["expert", "Q8_0"]["relative_rms"] < 0.15
    assert weights["expert", "Q4_0"]["relative_rms"] == 0.0


def test_gate_and_up_may_be_of_different_types(tmp_path: Path):
    model = GgufModel.of(make_tiny(tmp_path / "hf", "olmoe", SHAPES["olmoe"]), "olmoe")
    model.kind_of = lambda name: Kind.F16 if "gate_exps" in name else Kind.BF16 if "up_exps" in name else Kind.Q5_0
    model.write(tmp_path / "model.gguf")
    values = _with_values(tmp_path / "hf", model, tmp_path / "values")
    _same(convert(tmp_path / "model.gguf", tmp_path / "out.estream"), convert(values, tmp_path / "values.estream"))


def test_the_command_line_says_what_was_kept_and_what_would_keep_more(tmp_path: Path):
    model = GgufModel.of(make_tiny(tmp_path / "hf", "olmoe", SHAPES["olmoe"]), "olmoe", lambda name: Kind.Q8_0)
    model.write(tmp_path / "model.gguf")
    path, out = str(tmp_path / "model.gguf"), str(tmp_path / "out.estream")
    said = CliRunner().invoke(app, ["convert", path, out]).stdout
    assert "attention (Q8_0): 12 quantised, relative RMS error" in said
    assert "experts of Q8_0 are quantised anew to 4 bits; --bits 8 --group 32 keeps them exactly" in said
    assert "in groups of 64" in said
    said = CliRunner().invoke(app, ["convert", path, out, "--bits", "8", "--group", "64", "--force"]).stdout
    assert "experts of Q8_0 are quantised anew in groups of 64; --group 32 keeps them exactly" in said
    said = CliRunner().invoke(app, ["convert", path, out, "--bits", "8", "--force"]).stdout
    assert "experts 8 bits, all else 8, in groups of 32" in said
    assert "expert (Q8_0): 48 kept exactly" in said
    assert "quantised" not in said
    assert "no tokenizer: tokenizers of kind 'no_vocab' are not built; prompts must be token ids" in said
    facts = json.loads(CliRunner().invoke(app, ["convert", path, out, "--bits", "8", "--force", "--json"]).stdout)
    assert facts["source"]["kind"] == "gguf"
    assert facts["source"]["conversion"]["weights"][1] == {
        "kind": "expert", "stored_as": "Q8_0", "kept": 48, "requantised": 0, "relative_rms": 0.0,
    }  # fmt: skip


def test_a_package_knows_its_gguf_source(tmp_path: Path):
    model = GgufModel.of(make_tiny(tmp_path / "hf", "olmoe", SHAPES["olmoe"]), "olmoe")
    model.write(tmp_path / "model.gguf")
    package = convert(tmp_path / "model.gguf", tmp_path / "out.estream")
    with estream.load(package.path) as loaded:
        loaded.prefill([1, 2, 3])
    model.tensors = {name: value * 2 for name, value in model.tensors.items()}
    model.write(tmp_path / "model.gguf")
    with pytest.raises(estream.errors.PackageError, match="model.gguf"):
        estream.load(package.path)


def test_conversion_holds_one_matrix_at_a_time(tmp_path: Path):
    """Peak memory stays far below the size of the file, whether codes are kept or values quantised anew."""
    shape = SHAPES["olmoe"] | {"hidden_size": 1024, "intermediate_size": 1024, "num_experts": 32, "num_hidden_layers": 1}
    model = GgufModel.of(make_tiny(tmp_path / "hf", "olmoe", shape), "olmoe", lambda name: Kind.Q8_0)
    model.write(tmp_path / "model.gguf")
    size = (tmp_path / "model.gguf").stat().st_size
    assert size > 100e6
    for bits in ("4", "8"):
        body = "convert(sys.argv[1], sys.argv[2], ConvertOptions(int(sys.argv[3]), force=True))"
        setup = "from estream.conversion.convert import ConvertOptions, convert"
        assert peak_bytes(setup, body, tmp_path / "model.gguf", tmp_path / "out.estream", bits) < 180e6 < 4 * size
