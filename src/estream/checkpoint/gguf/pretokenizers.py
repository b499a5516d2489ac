"""How byte-level BPE tokenizers of the families cut text into words, by the name that a GGUF file gives it
(``tokenizer.ggml.pre``). Each is written as the tokenizer's own ``tokenizer.json`` writes it; the names are those of llama.cpp.
"""

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"

_QWEN = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_LLAMA = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"

_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_GPT_4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
)


@dataclass(frozen=True)
class WordRule:
    """``whole_words``: a word that is a token is taken without looking at merges. ``add_bos`` where the file does not say."""

    cut: PreTokenizer
    normalizer: Normalizer | None = None
    whole_words: bool = False
    add_bos: bool = False


def _split(*patterns: str) -> PreTokenizer:
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt_2() -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def word_rule(name: str) -> WordRule | None:
    """None where the name is not known here; then the text would be cut wrongly."""
    if name == "gpt-2":
        return WordRule(_gpt_2())
    if name == "olmo":
        return WordRule(_gpt_2(), normalizers.NFC())
    if name == "qwen2":
        return WordRule(_split(_QWEN), normalizers.NFC())
    if name in ("llama-bpe", "llama3", "llama-v3"):
        return WordRule(_split(_LLAMA), whole_words=True, add_bos=True)
    if name == "glm4":
        return WordRule(_split(_LLAMA), whole_words=True)
    if name == "gpt-4o":
        return WordRule(_split(_GPT_4O))
    if name == "deepseek-v3":
        return WordRule(_split(*_DEEPSEEK_V3))
    if name == "refact":
        return WordRule(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt_2()]))
    return None
