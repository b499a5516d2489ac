"""Prompts from parts: what a template says and what others wrote.

Special tokens that a document spells out stay characters. Where none does, which is nearly always, the whole is tokenized at
once, as its author would; else the template's own special tokens, which split a text anyway, are set between the stretches.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from estream.errors import PromptError
from estream.models.config import ModelConfig
from estream.text.tokenizer import BYTES_PER_BYTE, TextTokenizer

#: Texts of more bytes for each token of the context are refused untokenized. The longest tokens are runs of spaces.
MOST_BYTES_PER_TOKEN = 256
#: Shortening is tried so often: each cut may change the tokens beside it.
_MOST_CUTS = 12


@dataclass(frozen=True)
class Segment:
    """A part of a prompt. ``content``: others wrote it; ``document``: it may be shortened, and is content too."""

    text: str
    content: bool = False
    document: bool = False


def document(text: str) -> Segment:
    """A text that others wrote and that may be shortened."""
    return Segment(text, content=True, document=True)


@dataclass(frozen=True)
class TextRule:
    """How texts become ids.

    Args:
        allow_special: special tokens that a text spells out are meant: the caller rendered it.
        truncate: a document that is too long is shortened; else it is refused.
        keep: the part of it that is kept, its "start" or its "end".

    """

    allow_special: bool = False
    truncate: bool = False
    keep: Literal["start", "end"] = "start"


@dataclass(frozen=True)
class Built:
    """``ids`` int32 [tokens], and how many tokens of the prompt were left out."""

    ids: np.ndarray
    truncated_tokens: int = 0


@dataclass(frozen=True)
class PromptBuilder:
    """Makes prompts for a model. ``check`` as in :meth:`TextTokenizer.ids`."""

    tokenizer: TextTokenizer
    config: ModelConfig
    check: Callable[[int], None]

    @property
    def context(self) -> int:
        """Tokens of the longest prompt."""
        return self.config.context

    def build(self, segments: Sequence[Segment], rule: TextRule, which: str, room: int = 0, *, end: bool = False) -> Built:
        """The ids of a prompt, begun as the tokenizer's rules say, and with ``end`` ended so, neither twice.

        Args:
            segments: its parts; at most one is a document.
            rule: how texts become ids.
            which: how messages name the prompt.
            room: tokens of the context that must be left for what follows.
            end: whether the prompt is a whole text.

        Raises:
            PromptError: it is too long, and cannot or must not be shortened; it cannot be tokenized.

        """
        limit = self.context - room
        ids = self.ids(segments, rule, which, room, end=end)
        if len(ids) <= limit:
            return Built(ids)
        if not rule.truncate or not any(part.document for part in segments):
            raise PromptError(f"{which} has {len(ids)} tokens, {_room(limit, room)}{_hint(segments)}")
        return self._shortened(segments, rule, which, limit, end)

    def ids(self, segments: Sequence[Segment], rule: TextRule, which: str, room: int = 0, *, end: bool = False) -> np.ndarray:
        """As :meth:`build`, of any length that the context may hold, and with permission of any length at all."""
        size, limit = sum(len(part.text.encode(errors="replace")) for part in segments), self.context - room
        if not rule.truncate and size > MOST_BYTES_PER_TOKEN * max(limit, 1):
            raise PromptError(f"{which} has {size} bytes, more than fit: {_room(limit, room)}{_hint(segments)}")
        before, after = self.tokenizer.around
        ids = encode_segments(self.tokenizer, segments, rule, which, self.check)
        if before and ids[: len(before)].tolist() != before:
            ids = np.concatenate([np.array(before, np.int32), ids])
        if end and after and ids[-len(after) :].tolist() != after:
            ids = np.concatenate([ids, np.array(after, np.int32)])
        return ids

    def _shortened(self, segments: Sequence[Segment], rule: TextRule, which: str, limit: int, end: bool) -> Built:
        index = next(i for i, part in enumerate(segments) if part.document)
        text = segments[index].text
        whole = len(self.ids(segments, rule, which, end=end))
        own = len(self.tokenizer.inner(text, which, self.check))
        keep = own - (whole - limit)
        for _ in range(_MOST_CUTS):
            if keep < 0:
                break
            part = self._cut(text, keep, rule.keep)
            parts = [*segments[:index], Segment(part, True, True), *segments[index + 1 :]]
            ids = self.ids(parts, rule, which, end=end)
            if len(ids) <= limit:
                return Built(ids, whole - len(ids))
            keep -= len(ids) - limit
        raise PromptError(
            f"{which}: what stands around the document has {whole - own} tokens, which leaves no room for any of its {own}; "
            f"the model's context is {self.context}"
        )

    def _cut(self, text: str, tokens: int, keep: str) -> str:
        """So many tokens of a text from its start or its end."""
        if tokens == 0:
            return ""
        # Only so much of it is looked at as is needed.
        size = 8 * tokens + 64
        while True:
            window = text[:size] if keep == "start" else text[-size:]
            self.check(len(window.encode(errors="replace")) * BYTES_PER_BYTE)
            at = self.tokenizer.offsets(window)
            # The window's own edge may have changed a token or two.
            if len(at) > tokens + 8 or size >= len(text):
                break
            size *= 2
        if len(at) <= tokens:
            return window
        return window[: at[tokens - 1][1]] if keep == "start" else window[at[-tokens][0] :]


def encode_segments(
    tokenizer: TextTokenizer, segments: Sequence[Segment], rule: TextRule, which: str, check: Callable[[int], None]
) -> np.ndarray:
    """The ids of parts one after another, int32; nothing is added to them. Raises PromptError."""
    whole = "".join(part.text for part in segments)
    foreign = _foreign(segments)
    if rule.allow_special or not foreign or not tokenizer.added:
        return tokenizer.inner(whole, which, check)
    spelled = _spelled(tuple(tokenizer.added))
    # Characters that the vocabulary lacks are no spelling of a token.
    reserved = [token.id for token in tokenizer.added.values() if token.id != tokenizer.unknown]
    matches = list(spelled.finditer(whole))
    if not any(_overlaps(m.span(), foreign) for m in matches):
        ids = tokenizer.inner(whole, which, check)
        if np.isin(ids, reserved).sum() <= len(matches):
            return ids
    # Some vocabularies merge characters to what looks like a special token; nothing is merged over a cut.
    for cuts in (False, True):
        stretches = list(_stretches(tokenizer, whole, foreign, spelled, cuts=cuts))
        parts = [part if isinstance(part, int) else tokenizer.inner(part, which, check, characters=True) for part in stretches]
        if not any(np.isin(part, reserved).any() for part in parts if not isinstance(part, int)):
            return np.concatenate([np.atleast_1d(np.asarray(part, np.int32)) for part in parts])
    raise PromptError(
        f"{which} holds a special token in a spelling that this tokenizer cannot keep as characters; take it out, or allow "
        "special tokens"
    )


def _stretches(
    tokenizer: TextTokenizer, whole: str, foreign: Sequence[tuple[int, int]], spelled: re.Pattern[str], *, cuts: bool
) -> Iterator[str | int]:
    """The template's special tokens as ids, and the texts between them; with ``cuts``, each other one is cut in two."""
    begin = at = 0
    while found := spelled.search(whole, at):
        token = tokenizer.added[found[0]]
        if _overlaps(found.span(), foreign):
            at = found.start() + 1
            # The library's setting keeps special ones as characters, and others only where they are cut.
            cut = None if token.special and not cuts else at
        else:
            cut = found.start()
            at = found.end()
        if cut is not None:
            if cut > begin:
                yield whole[begin:cut]
            begin = at
            if not _overlaps(found.span(), foreign):
                yield token.id
    if begin < len(whole):
        yield whole[begin:]


@lru_cache(maxsize=16)
def _spelled(tokens: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)))


def _foreign(segments: Sequence[Segment]) -> list[tuple[int, int]]:
    """Where others' texts lie in the whole, in characters."""
    found, at = [], 0
    for part in segments:
        if part.content and part.text:
            found.append((at, at + len(part.text)))
        at += len(part.text)
    return found


def _overlaps(span: tuple[int, int], ranges: Sequence[tuple[int, int]]) -> bool:
    return any(span[0] < end and begin < span[1] for begin, end in ranges)


def _room(limit: int, room: int) -> str:
    kept = f", of which {room} are needed for what follows" if room else ""
    return f"the model's context is {limit + room} tokens{kept}"


def _hint(segments: Sequence[Segment]) -> str:
    return "; permission to truncate shortens it" if any(part.document for part in segments) else ""
