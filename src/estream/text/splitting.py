"""For which tokenizers a text may be cut in pieces: those of which it is known that no token spans a cut.

A tokenizer splits a text at its added tokens, normalizes what lies between, splits that into words, and each word into tokens.
Most split words from left to right and know nothing of what came before, so a piece that begins with a word has the words that
the whole has. Others have one word, a whole text; they can be cut before a space where no token has one inside.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, models

LETTER = r"[^\W\d_]"
#: What a word may begin with before its first letter, where texts are cut.
BEGINS = "[ ,;\uff0c\u3002\u3001\uff1b\uff1a\uff01\uff1f]"
_OVER_A_CUT = re.compile(f"{LETTER}{BEGINS}")
_LETTER_AT_AN_END = re.compile(rf"\A{LETTER}|{LETTER}\Z")
#: What looks at the text before a match: behind, at a word's edge, at the beginning.
_LOOKS_BACK = re.compile(r"\(\?<[=!]|\\[bBAGKyY]|(?<!\[)\^")
_SPACE = "\u2581"
_INNER_SPACE = re.compile(f"[^{_SPACE}]{_SPACE}")


@dataclass(frozen=True)
class Splitting:
    """How a text is cut: where a word begins, or else where a token begins with a space; that space is dropped where the
    tokenizer itself adds one before every piece.
    """

    by_word: bool
    drops_space: bool = False


def splitting_of(tokenizer: Tokenizer) -> Splitting | None:
    """How a tokenizer's texts may be cut; None where nothing is known."""
    if any(_crosses_a_cut(token) for token in tokenizer.get_added_tokens_decoder().values()):
        return None
    normalizer = parts_of(state(tokenizer.normalizer))
    words = parts_of(state(tokenizer.pre_tokenizer))
    if words:
        plain = all(part.get("type") == "NFC" for part in normalizer)
        return Splitting(by_word=True) if plain and all(_is_memoryless(part) for part in words) else None
    adds_space = normalizer[:1] == [{"type": "Prepend", "prepend": _SPACE}]
    if normalizer[adds_space:] != [{"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]:
        return None
    return Splitting(by_word=False, drops_space=adds_space) if _has_spaces_in_front_alone(tokenizer) else None


def bytes_per_token(tokenizer: Tokenizer) -> int | None:
    """The most bytes of text that one token stands for; None where there is no such bound.

    There is none where something shortens the text before the vocabulary sees it, joins unknown characters into one token, or
    swallows the spaces beside a special token.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    words = parts_of(state(tokenizer.pre_tokenizer))
    if not splitting_of(tokenizer) or any(token.lstrip or token.rstrip for token in added):
        return None
    if not any(part.get("type") == "ByteLevel" for part in words):
        return None
    # NFC makes one character of up to three, and no more than three bytes into one.
    shortened = 1 if tokenizer.normalizer is None else 3
    return shortened * max((len(token.encode()) for token in _vocabulary(tokenizer)), default=1)


def state(part: Any) -> dict[str, Any]:
    """A tokenizer's part as it stands in ``tokenizer.json``; an empty one where there is none."""
    return {} if part is None else dict(json.loads(part.__getstate__()))


def parts_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of a sequence, or the one step."""
    for key in ("normalizers", "pretokenizers"):
        if key in found:
            return [part for each in found[key] for part in parts_of(each)]
    return [found] if found else []


def _vocabulary(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.id_to_token(number) or "" for number in range(tokenizer.get_vocab_size())]


def _is_memoryless(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    if kind == "Split":
        pattern = part["pattern"].get("Regex")
        kept = (part["behavior"], part["invert"]) in (("Isolated", False), ("Removed", True))
        return kept and pattern is not None and not _LOOKS_BACK.search(pattern)
    if kind == "Metaspace":
        return bool(part.get("split", True))
    return kind in ("ByteLevel", "Digits")


def _has_spaces_in_front_alone(tokenizer: Tokenizer) -> bool:
    """Whether tokens are made by merging, and none has a space behind another character: so none is merged over a cut."""
    model = tokenizer.model
    if not isinstance(model, models.BPE) or model.dropout or model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    return model.token_to_id(_SPACE) is not None and not any(_INNER_SPACE.search(token) for token in _vocabulary(tokenizer))


def _crosses_a_cut(token: Any) -> bool:
    looks_around = token.lstrip or token.rstrip or token.single_word
    return bool(_OVER_A_CUT.search(token.content) or (looks_around and _LETTER_AT_AN_END.search(token.content)))
