"""Long texts in pieces: the ids of the whole, or a refusal that costs little."""

import random
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import ROOT
from text_tokenizers import KINDS, TEXTS, byte_level, load, save
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from estream.errors import PromptError
from estream.text import pieces
from estream.text.splitting import splitting_of
from estream.text.tokenizer import TextTokenizer

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(*patterns: str) -> pre_tokenizers.PreTokenizer:
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _llama3() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _split(LLAMA3)
    tokenizer.add_special_tokens([AddedToken("<|user|>", normalized=False), AddedToken("<mask>", lstrip=True)])
    return tokenizer


def _deepseek() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = _split(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", LLAMA3)
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", bos), ("</s>", 2)])
    return tokenizer


def _metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<unk>", "<s>", "</s>", "<|user|>"]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([*TEXTS, "what is a good day to say hello"] * 3, trainer)
    return tokenizer


def _sentencepiece(prefix: bool) -> Tokenizer:
    """One word a text, tokens with spaces in front alone."""
    tokenizer = _metaspace()
    tokenizer.pre_tokenizer = None
    steps = [normalizers.Replace(" ", "\u2581")]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), *steps]) if prefix else steps[0]
    return tokenizer


SPLIT = {"byte level": byte_level, "llama 3": _llama3, "deepseek": _deepseek, "metaspace": _metaspace}
SPLIT |= {"sentencepiece": lambda: _sentencepiece(False), "with prefix": lambda: _sentencepiece(True)}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TextTokenizer]:
    folder, loaded = tmp_path_factory.mktemp("tokenizers"), {}
    for name, make in SPLIT.items():
        save(folder / name, make())
        loaded[name] = load(folder / name)
    return loaded


WORDS = st.sampled_from(
    ["hello", " world", " a", "day", " ", "  ", "\n", ", ", "12345", "7", "\u4f60\u597d", "\uff0c", "\u3002", "caf\u00e9",
     "e\u0301", "\u0301", "'s", "'", "<s>", " <mask>", "<|user|>", "\t", "...", "\U0001f600", "\u0416\u0438", "\u2581",
     "\u0e01\u0e33", "A", ";b"]
)  # fmt: skip


@pytest.mark.parametrize("name", SPLIT)
@settings(max_examples=60)
@given(parts=st.lists(WORDS, min_size=200, max_size=600))
def test_pieces_have_the_ids_of_the_whole(name: str, tokenizers: dict[str, TextTokenizer], parts: list[str]):
    text, ours = "".join(parts), tokenizers[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("estream.text.pieces.PIECE", 200)
        patch.setattr("estream.text.tokenizer.PIECE", 200)
        long = ours.encode(text)
    assert long == ours.encode(text)


@pytest.mark.parametrize("name", SPLIT)
def test_a_real_text_is_cut_and_keeps_its_ids(name: str, tokenizers: dict[str, TextTokenizer], monkeypatch: pytest.MonkeyPatch):
    text, ours = (ROOT / "demo/calibration.txt").read_text(), tokenizers[name]
    seen = []
    original = pieces._cut
    monkeypatch.setattr(pieces, "_cut", lambda *given: seen.append(original(*given)) or seen[-1])
    np.testing.assert_array_equal(ours.ids(text), ours._whole(text))
    assert len(seen) > 5
    assert ours._splitting is not None
    assert None not in seen


def test_what_looks_back_or_spans_words_is_not_split():
    def but(**parts) -> Tokenizer:
        tokenizer = byte_level()
        for name, part in parts.items():
            setattr(tokenizer, name, part)
        return tokenizer

    assert splitting_of(byte_level())
    assert not splitting_of(but(pre_tokenizer=None))
    assert not splitting_of(but(normalizer=normalizers.Strip()))
    assert not splitting_of(but(pre_tokenizer=_split(r"(?<=a) b")))
    assert not splitting_of(but(pre_tokenizer=_split(r"\bword")))
    assert not splitting_of(KINDS["llama with bos"]())
    spanning = byte_level()
    spanning.add_tokens(["two words"])
    assert not splitting_of(spanning)


@pytest.mark.parametrize("kind", [*KINDS, "deepseek", "with prefix"])
@pytest.mark.parametrize("text", ["a word and ", "x", "\u4f60", " "])
def test_a_text_far_over_the_context_is_refused_at_once(kind: str, text: str, tmp_path: Path):
    save(tmp_path, (KINDS | SPLIT)[kind]())
    ours = load(tmp_path)
    text = text * (4_000_000 // len(text))
    begin = time.perf_counter()
    with pytest.raises(PromptError, match="prompt 3 has more than 2048 tokens, the model's context is 2048"):
        ours.ids(text, 2048, "prompt 3")
    assert time.perf_counter() - begin < 1


def test_what_must_be_seen_whole_is_announced(tmp_path: Path):
    save(tmp_path, KINDS["llama with bos"]())
    ours, asked = load(tmp_path), []
    text = "".join(random.Random(1).choices("abc ", k=20_000))
    expected = ours.encode(text)
    assert ours.ids(text, 100_000, check=asked.append).tolist() == expected
    # Each space becomes three bytes, and three stand before each of two pieces.
    assert asked == [(20_000 + 2 * text.count(" ") + 6) * 400]
