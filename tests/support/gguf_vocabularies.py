"""Vocabularies of GGUF files, written with the ``gguf`` package as llama.cpp's conversion writes them."""

import json
from typing import Any

import gguf
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from estream.checkpoint.gguf.pretokenizers import word_rule

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
TEXTS = [
    "Description: A web server written in C\nSection:",
    "  two spaces,\ttabs and\n\n\nlines   ",
    "I'm sure they'll say 12345 is 3.14159, DON'T you?",
    "Zürich naïve 日本語 한국어 Россия 🦙🦙 e\u0301",
    "<|user|>hello<|end|> world <extra>x",
    "",
    " ",
    "a" * 300,
]


PRES = ["gpt-2", "olmo", "qwen2", "qwen35", "llama-bpe", "glm4", "gpt-4o", "deepseek-v3", "deepseek-llm", "refact"]


CORPUS = [line for text in TEXTS for line in [text] * 3] + ["the quick brown fox jumps over the lazy dog " * 4] * 5


def byte_level() -> Tokenizer:
    """As Qwen's: byte-level BPE with NFC, special tokens behind the others."""
    rule = word_rule("qwen2")
    assert rule is not None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = rule.pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens(["<|user|>", "<|end|>"])
    tokenizer.add_tokens([AddedToken("<extra>", normalized=False)])
    return tokenizer


def sentencepiece() -> tuple[Tokenizer, np.ndarray]:
    """As Mixtral's, with the scores that its SentencePiece model would have: tokens by order of their merge."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    plain = [text for text in CORPUS if text.isascii()]
    trained.train_from_iterator(plain, trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False))
    state = json.loads(trained.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if t["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    merged = {"".join(pair): rank for rank, pair in enumerate(state["model"]["merges"])}
    ordered = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    scores = np.array([-float(merged.get(token, len(merged) + number)) for token, number in ordered], np.float32)
    scores[:259] = 0
    return tokenizer, scores


def vocabulary(tokenizer: Tokenizer, kind: str, pre: str, scores: np.ndarray | None = None, **keys: Any) -> dict[str, Any]:
    """The metadata that describes a tokenizer."""
    ordered = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    added = tokenizer.get_added_tokens_decoder()
    types = [(CONTROL if added[n].special else USER_DEFINED) if n in added else NORMAL for _, n in ordered]
    if kind == "llama":
        types = [
            BYTE if t.startswith("<0x") else UNKNOWN if t == "<unk>" else k for (t, _), k in zip(ordered, types, strict=True)
        ]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    found: dict[str, Any] = {
        "model": kind,
        "pre": pre,
        "tokens": [token for token, _ in ordered],
        "token_type": np.array(types, np.int32),
        "merges": [" ".join(pair) for pair in merges],
    } | ({} if scores is None else {"scores": scores})
    return {f"tokenizer.ggml.{name}": value for name, value in (found | keys).items()}


def write_vocabulary(metadata: dict[str, Any]):
    """Puts such metadata into a file."""

    def write(writer: gguf.GGUFWriter) -> None:
        for name, value in metadata.items():
            if isinstance(value, bool):
                writer.add_bool(name, value)
            elif isinstance(value, int):
                writer.add_uint32(name, value)
            elif isinstance(value, str):
                writer.add_string(name, value)
            else:
                writer.add_array(name, value if isinstance(value, list) else value.tolist())

    return write
