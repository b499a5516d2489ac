"""Tokenizing a long text in pieces, so that what the tokenizer takes does not grow with the text.

A text is cut only behind a letter, before a space or a comma and another letter, where the tokenizer itself begins a word.
:mod:`estream.text.splitting` says for which tokenizers the pieces have the ids that the whole has.
"""

import re
from collections.abc import Callable, Iterator

import numpy as np
from tokenizers import Encoding, Tokenizer

from estream.text.splitting import BEGINS, LETTER, Splitting

#: Characters of a piece. The tokenizer takes up to 400 bytes for each byte of it.
PIECE = 16_384
#: A piece without a place to cut grows up to this many characters.
_LONGEST_PIECE = 16 * PIECE
_CUT = re.compile(f"(?<={LETTER}){BEGINS}(?={LETTER})")
#: How tokens write a space.
_SPACES = ("\u0120", "\u2581")


def encode_pieces(
    tokenizer: Tokenizer, splitting: Splitting, text: str, check: Callable[[int], None], check_whole: Callable[[str], None]
) -> Iterator[np.ndarray]:
    """The ids of a text without special tokens, int32, piece by piece.

    Where a piece has no place to cut, ``check`` gets the fewest tokens that it has; where a long one has none, ``check_whole``
    gets the rest of the text, which is tokenized at once. Both may raise.
    """
    begin, size = 0, PIECE
    while len(text) - begin > size:
        part = text[begin : begin + size]
        encoding = tokenizer.encode(part, add_special_tokens=False)
        found = _cut(part, encoding, splitting)
        if found is not None:
            characters, tokens = found
            yield np.array(encoding.ids[:tokens], np.int32)
            begin, size = begin + characters + splitting.drops_space, PIECE
            continue
        check(_fewest(len(encoding)))
        if size == _LONGEST_PIECE:
            check_whole(text[begin:])
            break
        size *= 2
    yield np.array(tokenizer.encode(text[begin:], add_special_tokens=False).ids, np.int32)


def fewest_tokens(tokenizer: Tokenizer, text: str, limit: int) -> int:
    """At least so many tokens has a text; counting ends above ``limit``. A cut may add tokens, which are not counted."""
    count = 0
    for begin in range(0, len(text), PIECE):
        part = text[begin : begin + PIECE]
        count += _fewest(len(tokenizer.encode(part, add_special_tokens=False)))
        if count > limit:
            break
    return count


def normalized_bytes(tokenizer: Tokenizer, text: str) -> int:
    """About how many bytes a text has once it is normalized, or before where that is more: a ligature may become a sentence."""
    size, normalizer = 0, tokenizer.normalizer
    for begin in range(0, len(text), PIECE):
        part = text[begin : begin + PIECE]
        longest = len(part.encode())
        if normalizer is not None:
            longest = max(longest, len(normalizer.normalize_str(part).encode()))
        size += longest
    return size


def _fewest(tokens: int) -> int:
    """How many tokens of a piece are tokens of the whole too: a cut changes those of the words around it alone."""
    return max(tokens - tokens // 100 - 32, 0)


def _cut(part: str, encoding: Encoding, splitting: Splitting) -> tuple[int, int] | None:
    """Where a piece may end: after how many characters and tokens. The last words are left to the next piece, since the
    tokenizer does not see what follows them.
    """
    find = _word_that_begins if splitting.by_word else _token_that_begins
    for match in reversed(list(_CUT.finditer(part, len(part) // 2, len(part) - 64))):
        at = match.start()
        token = find(part, at, encoding)
        if token is not None:
            return at, token
    return None


def _word_that_begins(part: str, at: int, encoding: Encoding) -> int | None:
    """The first token of the word that begins here; None where none does."""
    # Spaces may lie outside of all words; then the word's first token tells whether the space is its own.
    word = encoding.char_to_word(at + 1) if part[at] == " " else encoding.char_to_word(at)
    tokens = None if word is None else encoding.word_to_tokens(word)
    if word is None or tokens is None or encoding.char_to_word(at - 1) == word:
        return None
    characters = encoding.word_to_chars(word)
    begins_here = characters is not None and characters[0] == at
    return tokens[0] if begins_here or (part[at] == " " and encoding.tokens[tokens[0]].startswith(_SPACES)) else None


def _token_that_begins(part: str, at: int, encoding: Encoding) -> int | None:
    """The token that begins with the space here; None where none does."""
    before, token = encoding.char_to_token(at - 1), encoding.char_to_token(at)
    if part[at] != " " or before is None or token != before + 1:
        return None
    return token if encoding.tokens[token].startswith(_SPACES) else None
