"""Against llama.cpp itself, which reads the same files. Needs ``llama-cpp-python``: CONTRIBUTING.md."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_cases import BASE, CASES, write
from gguf_files import SHAPES, GgufModel
from gguf_vocabularies import PRES, TEXTS, byte_level, sentencepiece, vocabulary, write_vocabulary
from safetensors.numpy import load_file
from tiny import logits, make_tiny
from tokenizers import Tokenizer
from tolerances import GGUF_LOGITS, LLAMA_LOGITS

import estream
from estream.conversion.convert import ConvertOptions, convert

pytestmark = pytest.mark.llama
TOKENS = 90


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GgufModel:
    return GgufModel.of(make_tiny(tmp_path_factory.mktemp("llama") / "hf", request.param, SHAPES[request.param]), request.param)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "MXFP4"])
def test_logits_are_those_of_llama(model: GgufModel, kind: str, tmp_path: Path):
    """llama.cpp rounds activations to 8 bits where weights are quantised, so it is given the file's values in float32."""
    from llama import Llama

    stored = GgufModel(model.family, model.config, model.tensors, lambda name: Kind[kind])
    stored.write(tmp_path / "model.gguf")
    GgufModel(model.family, model.config, stored.dequantised()).write(tmp_path / "values.gguf")
    ids = np.random.default_rng(5).integers(0, model.config.vocab_size, TOKENS).astype(np.int32)
    with Llama(tmp_path / "values.gguf") as reference:
        expected = reference.logits(ids)
    package = convert(tmp_path / "model.gguf", tmp_path / "out.estream", ConvertOptions(4 if kind == "Q4_0" else 8))
    assert all(entry["requantised"] == 0 for entry in package.manifest.source["conversion"]["weights"])
    with estream.load(package.path, activations="float") as loaded:
        found = loaded.prefill(ids, positions=range(TOKENS)).logits
    assert np.abs(found - expected).max() <= GGUF_LOGITS * np.abs(expected).max()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.model in ("Qwen3Next", "Qwen3_5Moe")])
def test_hybrids_are_read_as_llama_reads_them(name: str, tmp_path: Path):
    """llama.cpp gives transformers' logits from the file, and we the same from the file as from the checkpoint."""
    from llama import Llama

    case = CASES[name]
    family = {"Qwen3Next": "qwen3_next", "Qwen3_5Moe": "qwen3_5_moe"}[case.model]
    model = make_tiny(tmp_path / "hf", family, BASE | case.shape)
    write(tmp_path / "model.gguf", case, model.config, load_file(tmp_path / "hf/model.safetensors"))
    ids = np.random.default_rng(5).integers(0, model.config.vocab_size, TOKENS).astype(np.int32)
    expected = logits(model, ids)
    with Llama(tmp_path / "model.gguf") as reference:
        assert np.abs(reference.logits(ids) - expected).max() <= LLAMA_LOGITS * np.abs(expected).max()
    found = []
    for source in ("hf", "model.gguf"):
        package = convert(tmp_path / source, tmp_path / f"{source}.estream", ConvertOptions(8, 32))
        with estream.load(package.path, activations="float") as loaded:
            found.append(loaded.prefill(ids, positions=range(TOKENS)).logits)
    assert np.abs(found[1] - found[0]).max() <= GGUF_LOGITS * np.abs(found[0]).max()


@pytest.mark.parametrize("pre", [*PRES, "sentencepiece"])
def test_text_becomes_the_ids_that_llama_gives(pre: str, tmp_path: Path):
    """llama.cpp does not compose characters (NFC) as some of the original tokenizers do: texts that are composed already."""
    from llama import Llama

    kind = "llama" if pre == "sentencepiece" else "gpt2"
    tokenizer, scores = (byte_level(), None) if kind == "gpt2" else sentencepiece()
    first, last = ("<|user|>", "<|end|>") if kind == "gpt2" else ("<s>", "</s>")
    ends = {"bos_token_id": tokenizer.token_to_id(first), "eos_token_id": tokenizer.token_to_id(last)}
    metadata = vocabulary(tokenizer, kind, pre, scores, add_bos_token=True, **ends)
    vocabulary_size = {"vocab_size": tokenizer.get_vocab_size()}
    file = GgufModel.of(make_tiny(tmp_path / "hf", "mixtral", SHAPES["mixtral"] | vocabulary_size), "mixtral")
    file.vocabulary = write_vocabulary(metadata)
    file.write(tmp_path / "model.gguf")
    package = convert(tmp_path / "model.gguf", tmp_path / "out.estream")
    ours = Tokenizer.from_file(str(package.path / "tokenizer.json"))
    with Llama(tmp_path / "model.gguf") as reference:
        for text in TEXTS:
            composed = unicodedata.normalize("NFC", text)
            assert ours.encode(composed).ids == reference.encode(composed), text
