"""Converts text to token ids and back with the checkpoint's tokenizer."""

import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from estream.errors import EstreamError, PackageError, PromptError
from estream.host.regular_file import read_regular
from estream.host.sizes import MiB
from estream.schema import SchemaError, parse
from estream.text.chat_template import ChatTemplate, RenderedChat
from estream.text.open_tokenizer import open_tokenizer
from estream.text.pieces import PIECE, encode_pieces, fewest_tokens, normalized_bytes
from estream.text.quiet import TokenizerError, failures
from estream.text.splitting import Splitting, bytes_per_token, splitting_of
from estream.text.token_bytes import TokenBytes

CONFIG, TOKENS_MAP, TEMPLATE = "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"
#: Bytes of those files. Configs list a few thousand added tokens at most.
LARGEST_CONFIG, LARGEST_TEMPLATE_FILE = 16 * MiB, 1 * MiB
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class AddedToken(NamedTuple):
    """The id of a token that a text may spell out, and whether the tokenizer calls it special."""

    id: int
    special: bool


class _TooLongError(EstreamError):
    """A text has more tokens than are wanted."""


def _allow(size: int) -> None:
    """Any number of bytes."""
    del size


#: What the tokenizer takes for each byte of a normalized text that it must see whole (docs/design.md).
BYTES_PER_BYTE = 400
#: What is taken for so many characters is not counted.
_SHORT = 2048


class TextTokenizer:
    """A package's tokenizer, from its ``tokenizer.json``; without one (``path`` None), ``encode`` raises PromptError.

    ``chat`` renders conversations with the package's chat template.
    """

    def __init__(self, path: Path | None, package: Path) -> None:
        self._package = package
        self._tokenizer: Tokenizer | None = None
        # A setting of the library's tokenizer is changed for some texts.
        self._lock = threading.RLock()
        config = _read_json(package / CONFIG)
        special = _special_tokens(config, _read_json(package / TOKENS_MAP))
        self._named = special
        self.chat = ChatTemplate(package, _templates(package / TEMPLATE, config), special)
        self._before: list[int] = []
        self._after: list[int] = []
        self._panics = False
        if path is not None:
            self._tokenizer, self._panics = open_tokenizer(path)
            self._before = self._missing("bos_token", config, special)
            self._after = self._missing("eos_token", config, special)

    def _missing(self, name: str, config: dict[str, Any], special: dict[str, str]) -> list[int]:
        """The id of a special token that the config wants added and ``tokenizer.json`` does not add; else empty."""
        assert self._tokenizer is not None
        if config.get(f"add_{name}") is not True or name not in special:
            return []
        try:
            with failures(hide_panics=self._panics):
                token = self._tokenizer.token_to_id(special[name])
                added = self._tokenizer.encode("").ids
        except TokenizerError as error:
            raise PackageError(f"{self._package / CONFIG}: '{name}' {special[name]!r} cannot be used ({error})") from error
        if token is None:
            raise PackageError(f"{self._package / CONFIG}: '{name}' {special[name]!r} is not in the tokenizer's vocabulary")
        return [] if token in added else [token]

    def encode(self, text: str) -> list[int]:
        """Return token ids with the special tokens that the tokenizer adds; a rendered chat has its own and gets none.

        Raises:
            PromptError: the package has no tokenizer, or the text is not valid Unicode.

        """
        return [int(token) for token in self.ids(text)]

    def ids(
        self, text: str, context: int | None = None, which: str = "the prompt", check: Callable[[int], None] = _allow
    ) -> np.ndarray:
        """What :meth:`encode` returns, as int32.

        Args:
            text: the text.
            context: the most tokens that are wanted.
            which: how a message names the text.
            check: called before a text must be tokenized whole, with the bytes of memory that this takes; it may raise.

        Raises:
            PromptError: as :meth:`encode`, or the text has more tokens than ``context``.

        """
        if self._tokenizer is None:
            raise PromptError(f"{self._package}: the checkpoint came without a tokenizer, so prompts must be token ids")
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise PromptError(f"{which} is not valid Unicode text ({error.reason})") from error
        try:
            with self._lock, failures(hide_panics=self._panics):
                if len(text) <= PIECE:
                    if len(text) > _SHORT and self._splitting is None:
                        check(normalized_bytes(self._tokenizer, text) * BYTES_PER_BYTE)
                    return self._whole(text)
                return self._long(text, size, context, check)
        except _TooLongError as error:
            raise PromptError(f"{which} has more than {context} tokens, the model's context is {context}") from error
        except TokenizerError as error:
            raise PromptError(f"{which} cannot be tokenized ({error})") from error

    def inner(
        self, text: str, which: str = "the prompt", check: Callable[[int], None] = _allow, *, characters: bool = False
    ) -> np.ndarray:
        """The ids of a part of a prompt, int32: nothing is added to it.

        ``characters``: what is written like a special token stays characters. Raises as :meth:`ids`.
        """
        if not characters or self._tokenizer is None:
            return self.ids(RenderedChat(text), None, which, check)
        with self._lock:
            self._tokenizer.encode_special_tokens = True
            try:
                return self.ids(RenderedChat(text), None, which, check)
            finally:
                self._tokenizer.encode_special_tokens = False

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Where each token of a part of a prompt begins and ends, in characters. Raises PromptError as :meth:`ids`."""
        if self._tokenizer is None:
            return []
        try:
            with self._lock, failures(hide_panics=self._panics):
                return list(self._tokenizer.encode(text, add_special_tokens=False).offsets)
        except TokenizerError as error:
            raise PromptError(f"the prompt cannot be tokenized ({error})") from error

    @cached_property
    def added(self) -> dict[str, AddedToken]:
        """Tokens that a text may spell out, by their text, each with its id; those of spaces alone are none of them."""
        if self._tokenizer is None:
            return {}
        found = self._tokenizer.get_added_tokens_decoder().items()
        spelled = ((number, token) for number, token in found if token.content.strip(" \n\t\r\u2581"))
        return {token.content: AddedToken(number, token.special) for number, token in spelled}

    @cached_property
    def unknown(self) -> int | None:
        """The id that stands for characters which the vocabulary lacks, if one does."""
        text = None if self._tokenizer is None else getattr(self._tokenizer.model, "unk_token", None)
        return None if self._tokenizer is None or text is None else self._tokenizer.token_to_id(text)

    @cached_property
    def around(self) -> tuple[list[int], list[int]]:
        """Ids that the tokenizer's own rules put before and behind a text."""
        return ([], []) if self._tokenizer is None else self._around

    def named(self, name: str) -> int | None:
        """The id of ``bos_token`` or another special token that the checkpoint names; None where there is none."""
        if self._tokenizer is None or name not in self._named:
            return None
        found = self._tokenizer.token_to_id(self._named[name])
        return None if found is None else int(found)

    def bytes_of(self, token: int) -> bytes:
        """What a token stands for, which may be a part of a character; empty without a tokenizer."""
        return b"" if self._token_bytes is None else self._token_bytes(token)

    @cached_property
    def _token_bytes(self) -> TokenBytes | None:
        return None if self._tokenizer is None else TokenBytes(self._tokenizer)

    def _whole(self, text: str) -> np.ndarray:
        assert self._tokenizer is not None
        if isinstance(text, RenderedChat):
            return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)
        return np.array([*self._before, *self._tokenizer.encode(text).ids, *self._after], np.int32)

    def _long(self, text: str, size: int, context: int | None, check: Callable[[int], None]) -> np.ndarray:
        """The ids of a text that is not to be tokenized at once where that can be helped."""
        assert self._tokenizer is not None
        tokenizer = self._tokenizer
        if context is not None and (self._bytes_per_token or size) * context < size:
            raise _TooLongError
        count = 0

        def check_count(further: int) -> None:
            if context is not None and count + further > context:
                raise _TooLongError

        def check_whole(rest: str) -> None:
            if context is not None:
                check_count(fewest_tokens(tokenizer, rest, context - count))
            check(normalized_bytes(tokenizer, rest) * BYTES_PER_BYTE)

        if self._splitting is None:
            check_whole(text)
            return self._whole(text)
        before, after = ([], []) if isinstance(text, RenderedChat) else self._around
        parts = [np.array(before, np.int32), np.array(after, np.int32)]
        count = len(before) + len(after)
        for part in encode_pieces(tokenizer, self._splitting, text, check_count, check_whole):
            parts.insert(-1, part)
            count += len(part)
            check_count(0)
        return np.concatenate(parts)

    @cached_property
    def _splitting(self) -> Splitting | None:
        assert self._tokenizer is not None
        return splitting_of(self._tokenizer)

    @cached_property
    def _bytes_per_token(self) -> int | None:
        assert self._tokenizer is not None
        return bytes_per_token(self._tokenizer)

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """Special tokens before and behind a text."""
        assert self._tokenizer is not None
        encoding = self._tokenizer.encode("a")
        own = [i for i, sequence in enumerate(encoding.sequence_ids) if sequence is not None]
        return [*self._before, *encoding.ids[: own[0]]], [*encoding.ids[own[-1] + 1 :], *self._after]

    def piece(self, token: int) -> str | None:
        """Return the text of one token; None without a tokenizer."""
        if self._tokenizer is None:
            return None
        try:
            with failures(hide_panics=self._panics):
                return str(self._tokenizer.decode([token], skip_special_tokens=False))
        except TokenizerError as error:
            raise PackageError(f"{self._package}: the text of token {token} cannot be told ({error})") from error


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one if there is no such file."""
    try:
        data = parse(read_regular(path, LARGEST_CONFIG))
    except FileNotFoundError:
        return {}
    except (OSError, SchemaError) as error:
        raise PackageError(f"{path}: cannot be read ({error})") from error
    if not isinstance(data, dict):
        raise PackageError(f"{path}: expected a JSON object")
    return data


def _special_tokens(config: dict[str, Any], mapping: dict[str, Any]) -> dict[str, str]:
    """Special tokens by name. A file holds each as a string or as an object with ``content``."""
    tokens = {}
    for name in _NAMED:
        value = config.get(name, mapping.get(name))
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _templates(file: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name: from the template file, else from the config, which has one text or a list of named ones."""
    if file.exists():
        try:
            return {"default": read_regular(file, LARGEST_TEMPLATE_FILE).decode("utf-8")}
        except (OSError, ValueError) as error:
            raise PackageError(f"{file}: cannot be read ({error})") from error
    given = config.get("chat_template")
    if given is None:
        return {}
    if isinstance(given, str):
        return {"default": given}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in given}
    except (TypeError, KeyError) as error:
        raise PackageError(f"{file.parent / CONFIG}: 'chat_template' must be a text or a list of named texts") from error
