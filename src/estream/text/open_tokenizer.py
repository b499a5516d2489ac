"""Opening ``tokenizer.json``, a file of strangers: what would take memory without bound, or change a prompt, is refused."""

import base64
import binascii
import json
import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from estream.errors import PackageError
from estream.host.regular_file import read_regular
from estream.host.sizes import MiB
from estream.text.quiet import TokenizerError, failures
from estream.text.splitting import parts_of, state

#: Bytes of ``tokenizer.json``; those of 256,000 tokens with all merges have some 40 MB.
LARGEST_FILE = 128 * MiB
#: How many times longer a normalizer may make a text.
_LARGEST_GROWTH = 16.0
#: Special tokens that a tokenizer may add to a text.
_MOST_ADDED = 64


def open_tokenizer(path: Path) -> tuple[Tokenizer, bool]:
    """A tokenizer without truncation and padding, and whether texts may make it panic.

    Raises:
        PackageError: the file cannot be read, or it is no tokenizer that may be used.

    """
    try:
        text = read_regular(path, LARGEST_FILE)
    except OSError as error:
        raise PackageError(f"{path}: the tokenizer cannot be read ({error.strerror})") from error
    try:
        return opened(text)
    except TokenizerError as error:
        raise PackageError(f"{path}: the tokenizer cannot be used ({error})") from error


def opened(text: bytes) -> tuple[Tokenizer, bool]:
    """What :func:`open_tokenizer` returns, from the bytes of the file. Raises TokenizerError."""
    mapped = b"precompiled_charsmap" in text
    with failures(hide_panics=True):
        if mapped:
            _check_maps(json.loads(text))
        tokenizer = Tokenizer.from_buffer(text)
        # The file may ask for truncation or padding; a prompt is read as it is.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        _check_growth(tokenizer)
        _check_added(tokenizer)
    return tokenizer, mapped


def _check_maps(found: Any) -> None:
    """The library takes the size that a map claims without a look at its bytes."""
    waiting = [found]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if "precompiled_charsmap" in value:
                _check_map(value["precompiled_charsmap"])
            waiting += value.values()
        elif isinstance(value, list):
            waiting += [each for each in value if isinstance(each, dict | list)]


def _check_map(encoded: Any) -> None:
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise ValueError("'precompiled_charsmap' is not base64") from error
    size = int.from_bytes(raw[:4], "little")
    if len(raw) < 8 or size % 4 or size > len(raw) - 4:
        raise ValueError(f"'precompiled_charsmap' claims {size} bytes and has {max(len(raw) - 4, 0)}")


def _check_growth(tokenizer: Tokenizer) -> None:
    growth = 1.0
    for part in parts_of(state(tokenizer.normalizer)):
        if part.get("type") == "Replace":
            growth *= _growth(part["pattern"], part["content"])
        if part.get("type") == "Prepend" and len(part["prepend"].encode()) > _LARGEST_GROWTH:
            growth = float("inf")
    if growth > _LARGEST_GROWTH:
        raise ValueError(
            f"its normalizer makes texts up to {growth:.0f} times as long, at most {_LARGEST_GROWTH:.0f} is allowed"
        )


def _growth(pattern: dict[str, str], content: str) -> float:
    size = len(content.encode())
    if "String" in pattern:
        return max(1.0, size / max(1, len(pattern["String"].encode())))
    # An expression may match single characters, or nothing between any two.
    simple = re.fullmatch(r"[\w ]+", pattern.get("Regex", ""))
    return max(1.0, size / len(simple[0]) if simple else size + 1.0)


def _check_added(tokenizer: Tokenizer) -> None:
    if (added := tokenizer.num_special_tokens_to_add(False)) > _MOST_ADDED:
        raise ValueError(f"it adds {added} special tokens to a text, at most {_MOST_ADDED} are allowed")
    alone = tokenizer.encode("a b", add_special_tokens=False).ids
    whole = tokenizer.encode("a b")
    if [token for token, own in zip(whole.ids, whole.sequence_ids, strict=True) if own is not None] != alone:
        raise ValueError("its post-processor changes or repeats the text")
