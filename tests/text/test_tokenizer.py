"""Tokens against transformers' own tokenizer."""

from pathlib import Path

import pytest
from text_tokenizers import KINDS, TEXTS, byte_level, llama_style, load, save


@pytest.mark.parametrize("kind", KINDS)
def test_texts_get_the_ids_that_transformers_gives(kind: str, tmp_path: Path):
    theirs = save(tmp_path, KINDS[kind]())
    ours = load(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
    assert (ours.encode("x")[0] == theirs.bos_token_id) is (kind == "llama with bos")


@pytest.mark.parametrize("bos_by_post_processor", [True, False])
def test_what_the_config_adds_is_added_exactly_once(bos_by_post_processor: bool, tmp_path: Path):
    plain = llama_style(False)
    save(tmp_path, llama_style(bos_by_post_processor), add_bos_token=True, add_eos_token=True)
    ours = load(tmp_path)
    bos, eos = plain.token_to_id("<s>"), plain.token_to_id("</s>")
    for text in TEXTS:
        assert ours.encode(text) == [bos, *plain.encode(text).ids, eos]


def test_truncation_and_padding_of_a_tokenizer_are_not_applied_to_prompts(tmp_path: Path):
    tokenizer = byte_level()
    whole = tokenizer.encode(TEXTS[1]).ids
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    save(tmp_path, tokenizer)
    assert load(tmp_path).encode(TEXTS[1]) == whole
