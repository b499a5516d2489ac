"""Tokenizers and chat templates out of GGUF files: the same ids as the tokenizer that the file was made from."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf_files import GgufModel
from gguf_vocabularies import PRES, TEXTS, byte_level, sentencepiece, vocabulary, write_vocabulary
from paths import DEMO, HELD_OUT
from tiny import OLMOE_SHAPES, make_tiny
from tokenizers import Tokenizer, decoders, processors
from transformers import OlmoeForCausalLM

import estream
from estream.checkpoint.gguf.pretokenizers import word_rule
from estream.checkpoint.gguf.tokenizer import tokenizer_files
from estream.conversion.convert import convert
from estream.package.package import Package


def built(metadata: dict[str, Any]) -> Tokenizer:
    files, problem = tokenizer_files(metadata, len(metadata["tokenizer.ggml.tokens"]))
    assert problem is None
    return Tokenizer.from_str(files["tokenizer.json"].decode())


def test_byte_level_gives_the_same_ids():
    tokenizer = byte_level()
    again = built(vocabulary(tokenizer, "gpt2", "qwen2"))
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert again.encode(text).ids == ids
        assert again.decode(ids) == tokenizer.decode(ids)


def test_sentencepiece_gives_the_same_ids_without_its_merges():
    tokenizer, scores = sentencepiece()
    metadata = vocabulary(tokenizer, "llama", "default", scores, add_bos_token=False)
    del metadata["tokenizer.ggml.merges"]
    again = built(metadata)
    assert tokenizer.encode(TEXTS[0]).ids != []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert again.encode(text).ids == ids, text
        assert again.decode(ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("pre", PRES)
def test_words_are_cut_without_losing_a_byte(pre: str):
    rule = word_rule(pre)
    assert rule is not None
    for text in TEXTS:
        words = [word for word, _ in rule.pre_tokenizer.pre_tokenize_str(text)]
        assert decoders.ByteLevel().decode(words) == text
    cut = [word for word, _ in rule.pre_tokenizer.pre_tokenize_str("ab 123456 cd")]
    digits = {
        "gpt-2": 1,
        "olmo": 1,
        "qwen2": 6,
        "qwen35": 6,
        "llama-bpe": 2,
        "glm4": 2,
        "gpt-4o": 2,
        "deepseek-v3": 2,
        "deepseek-llm": 1,
        "refact": 6,
    }
    assert sum(any(c.isdigit() for c in word) for word in cut) == digits[pre]


@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_first_token_is_added_exactly_once(kind: str, add: bool, tmp_path: Path):
    """By the package's tokenizer, and by transformers reading the package's files."""
    from transformers import AutoTokenizer

    tokenizer, scores = (byte_level(), None) if kind == "gpt2" else sentencepiece()
    bos, eos = (tokenizer.token_to_id(t) for t in (("<|user|>", "<|end|>") if kind == "gpt2" else ("<s>", "</s>")))
    metadata = vocabulary(tokenizer, kind, "qwen2", scores, add_bos_token=add, bos_token_id=bos, eos_token_id=eos)
    model = make_tiny(tmp_path / "hf", "olmoe", OLMOE_SHAPES["8 experts, grouped queries"] | {"vocab_size": 448})
    file = GgufModel.of(model, "olmoe")
    metadata["tokenizer.chat_template"] = "{{ bos_token }}{{ messages[0]['content'] }}"
    file.vocabulary = write_vocabulary(metadata)
    file.write(tmp_path / "model.gguf")
    package = convert(tmp_path / "model.gguf", tmp_path / "out.estream")
    assert (package.path / "chat_template.jinja").read_text() == metadata["tokenizer.chat_template"]
    expected = [bos] * add + tokenizer.encode(TEXTS[0]).ids
    with estream.load(package.path) as loaded:
        assert loaded.encode(TEXTS[0]) == expected
        assert loaded.prefill(TEXTS[0]).stats.prompt_tokens == len(expected)
    again = AutoTokenizer.from_pretrained(package.path)
    assert again.encode(TEXTS[0]) == expected
    assert (again.bos_token_id, again.eos_token_id) == (bos, eos)
    assert again.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == f"{again.bos_token}hi"
    assert package.manifest.source["conversion"]["notes"] == []


def test_the_demo_model_is_the_same_by_way_of_gguf(demo_package: Package, tmp_path: Path):
    """Every page, and the ids of texts that it never saw."""
    model = OlmoeForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    file = GgufModel.of(model, "olmoe", lambda name: gguf.GGMLQuantizationType.BF16)
    file.vocabulary = write_vocabulary(vocabulary(Tokenizer.from_file(str(DEMO / "tokenizer.json")), "gpt2", "gpt-2"))
    file.write(tmp_path / "demo.gguf")
    package = convert(tmp_path / "demo.gguf", tmp_path / "out.estream")
    for name in ("pages.bin", "embedding.bin", "resident.safetensors"):
        assert (package.path / name).read_bytes() == (demo_package.path / name).read_bytes()
    with estream.load(package.path) as ours, estream.load(demo_package.path) as expected:
        for line in HELD_OUT.read_text().splitlines():
            text = json.loads(line)["description"]
            assert ours.encode(text) == expected.encode(text)


def test_an_end_token_is_added_where_the_file_says_so():
    tokenizer = byte_level()
    user, end = tokenizer.token_to_id("<|user|>"), tokenizer.token_to_id("<|end|>")
    keys = {"add_bos_token": True, "add_eos_token": True, "bos_token_id": user, "eos_token_id": end}
    again = built(vocabulary(tokenizer, "gpt2", "qwen2", **keys))
    assert again.encode("a").ids == [user, *tokenizer.encode("a").ids, end]
    assert again.encode("a", "b").ids == [user, *tokenizer.encode("a").ids, end, user, *tokenizer.encode("b").ids, end]
    assert again.encode("a", add_special_tokens=False).ids == tokenizer.encode("a").ids


def test_llama_3_adds_its_first_token_and_takes_whole_words_unless_the_file_says_otherwise():
    tokenizer = byte_level()
    user = tokenizer.token_to_id("<|user|>")
    assert built(vocabulary(tokenizer, "gpt2", "llama-bpe", bos_token_id=user)).encode("a").ids[0] == user
    assert built(vocabulary(tokenizer, "gpt2", "llama-bpe", bos_token_id=user, add_bos_token=False)).encode("a").ids[0] != user


def _without(name: str):
    return lambda m: m.pop(f"tokenizer.ggml.{name}")


def _set(name: str, value: Any):
    return lambda m: m.__setitem__(f"tokenizer.ggml.{name}", value)


UNFAITHFUL = {
    "an unknown cut": (_set("pre", "viking"), "its pre-tokenizer 'viking' is not supported"),
    "an unnamed cut": (_without("pre"), "its pre-tokenizer 'default' is not supported"),
    "another kind": (_set("model", "bert"), "tokenizers of kind 'bert' are not built"),
    "no kind": (_without("model"), "the file holds none"),
    "no tokens": (_without("tokens"), "the file holds no tokens"),
    "two equal tokens": (lambda m: m["tokenizer.ggml.tokens"].__setitem__(1, "a"), "two tokens have the same text"),
    "no merges": (_without("merges"), "the file holds no merges"),
    "a merge of what is no token": (lambda m: m["tokenizer.ggml.merges"].append("a zzz"), "its parts do not fit together"),
    "no types": (_without("token_type"), "'tokenizer.ggml.token_type' does not hold a number for each of the"),
    "a first token that is none": (_set("bos_token_id", 99999), "'tokenizer.ggml.bos_token_id' is 99999, not one of the"),
    "no first token to add": (_set("add_bos_token", True), "it adds a token at the beginning or end, but does not say which"),
}


@pytest.mark.parametrize("damage", UNFAITHFUL)
def test_rather_none_than_a_wrong_one(damage: str):
    change, message = UNFAITHFUL[damage]
    metadata = vocabulary(byte_level(), "gpt2", "qwen2")
    count = len(metadata["tokenizer.ggml.tokens"])
    change(metadata)
    files, problem = tokenizer_files(metadata | {"tokenizer.chat_template": "x"}, count)
    assert list(files) == ["chat_template.jinja"]
    assert problem is not None
    assert problem.startswith(message)


def test_more_tokens_than_embedding_rows_are_not_a_tokenizer():
    metadata = vocabulary(byte_level(), "gpt2", "qwen2")
    count = len(metadata["tokenizer.ggml.tokens"])
    assert tokenizer_files(metadata, count - 1)[1] == f"the file holds {count} tokens for {count - 1} embedding rows"
    assert tokenizer_files(metadata, count + 10)[1] is None


def test_a_post_processor_is_there_only_where_something_is_added():
    tokenizer = byte_level()
    assert built(vocabulary(tokenizer, "gpt2", "qwen2")).post_processor is None
    user = tokenizer.token_to_id("<|user|>")
    again = built(vocabulary(tokenizer, "gpt2", "qwen2", bos_token_id=user, add_bos_token=True))
    assert isinstance(again.post_processor, processors.TemplateProcessing)


@pytest.mark.parametrize("text", ["$A", "$B:1", "a:b", "x:0", "$0"])
def test_tokens_around_a_prompt_are_added_by_id_whatever_their_text(text: str):
    tokenizer = byte_level()
    tokenizer.add_special_tokens([text])
    number = tokenizer.token_to_id(text)
    again = built(vocabulary(tokenizer, "gpt2", "gpt-2", bos_token_id=number, add_bos_token=True))
    assert again.encode("a").ids == [number, *tokenizer.encode("a").ids]
