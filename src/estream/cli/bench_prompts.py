"""What ``estream bench`` reads: token ids drawn for the package, or cut from a text."""

import codecs
from collections.abc import Callable
from pathlib import Path

import numpy as np

from estream.errors import OptionError, PromptError
from estream.host.sizes import MiB, format_bytes
from estream.package.package import Package
from estream.package.topics import prompt_ids
from estream.text.tokenizer import TextTokenizer

#: Of a longer text the rest is not read.
MOST_BYTES = MiB

#: The ids of a prompt, int32 [tokens], by its tokens and its number.
Prompts = Callable[[int, int], np.ndarray]


def bench_prompts(package: Package, corpus: Path | None, longest: int, count: int) -> Prompts:
    """Return what makes ``count`` different prompts of each length up to ``longest``.

    Raises:
        OptionError: the corpus cannot be read or has fewer than ``longest`` tokens.
        PromptError: the package has no tokenizer, or the corpus cannot be tokenized.

    """
    if corpus is None:
        return lambda tokens, number: prompt_ids(package.manifest, tokens, number)
    text = _read(corpus)
    ids = TextTokenizer(package.tokenizer_path, package.path).ids(text, which=f"--corpus {corpus}")
    if len(ids) < longest:
        raise OptionError(f"--corpus {corpus}: {len(ids)} tokens, too few for a prompt of {longest}; give a longer text")
    return lambda tokens, number: cut(ids, tokens, number, count)


def cut(ids: np.ndarray, tokens: int, number: int, count: int) -> np.ndarray:
    """The prompt ``number`` of ``count``: they begin at even distances, and overlap only where the ids are too few."""
    first = number * (len(ids) - tokens) // max(count - 1, 1)
    return ids[first : first + tokens]


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES)
    except OSError as error:
        raise OptionError(f"--corpus {path}: cannot be read ({error.strerror})") from error
    try:
        # A character that the limit cuts is left out.
        return codecs.getincrementaldecoder("utf-8-sig")().decode(data, final=len(data) < MOST_BYTES)
    except UnicodeDecodeError as error:
        raise PromptError(f"--corpus {path}: not UTF-8 text ({error.reason} at byte {error.start})") from error


HELP = (
    "Cut the prompts from this UTF-8 text instead of drawing token ids; of one longer than "
    f"{format_bytes(MOST_BYTES)} only the beginning is read."
)
