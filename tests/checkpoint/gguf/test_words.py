"""Settings that a model family refuses are named as the file names them."""

from pathlib import Path

import pytest
from gguf_files import GgufModel
from tiny import make_tiny
from tiny_usual import MIXTRAL_SHAPES

from estream.checkpoint.gguf.keys import Keys
from estream.checkpoint.gguf.words import in_gguf_words
from estream.conversion.convert import convert
from estream.errors import CheckpointError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GgufModel:
    source = make_tiny(tmp_path_factory.mktemp("tiny") / "hf", "mixtral", MIXTRAL_SHAPES["8 experts, grouped queries"])
    return GgufModel.of(source, "mixtral")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("expert_used_count", 9, "'llama.expert_used_count' 9 exceeds 'llama.expert_count' 8"),
        ("attention.layer_norm_rms_epsilon", -1.0, "'llama.attention.layer_norm_rms_epsilon' must be"),
        ("rope.freq_base", 0.0, "'llama.rope.freq_base' must be"),
        ("context_length", 1 << 31, "'llama.context_length' must be at most"),
        ("attention.key_length", 15, "a head size of 15 .'llama.attention.key_length', else 'llama.embedding_length' /"),
    ],
)
def test_a_refused_setting_is_named_by_file_and_key(name: str, value: float, message: str, model: GgufModel, tmp_path: Path):
    path = tmp_path / "model.gguf"
    keys = {"llama.attention.value_length": value, "llama.rope.dimension_count": value} if name.endswith("key_length") else {}
    GgufModel("mixtral", model.config, model.tensors, extra_keys=keys | {f"llama.{name}": value}).write(path)
    with pytest.raises(CheckpointError, match=f"^{path}: {message}") as error:
        convert(path, tmp_path / "out.estream")
    assert "config.json" not in str(error.value)


def test_of_several_keys_the_one_that_the_file_has_is_named():
    keys = Keys(Path("a.gguf"), {"general.architecture": "x", "x.expert_feed_forward_length": 3})
    assert in_gguf_words("config.json: 'intermediate_size' is 3", keys) == "a.gguf: 'x.expert_feed_forward_length' is 3"
    assert in_gguf_words("config.json: 'v_head_dim' is 3", keys) == "a.gguf: 'x.attention.value_length_mla' is 3"
    assert in_gguf_words("a.gguf: 'hidden_size' is 3", keys) == "a.gguf: 'hidden_size' is 3"
