"""Converts text to token ids and back with the checkpoint's tokenizer."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from estream.errors import PackageError, PromptError
from estream.host.regular_file import read_regular
from estream.text.chat_template import ChatTemplate, RenderedChat

CONFIG, TOKENS_MAP, TEMPLATE = "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TextTokenizer:
    """A package's tokenizer, from its ``tokenizer.json``; without one (``path`` None), ``encode`` raises PromptError.

    ``chat`` renders conversations with the package's chat template.
    """

    def __init__(self, path: Path | None, package: Path) -> None:
        self._package = package
        self._tokenizer: Tokenizer | None = None
        config = _read_json(package / CONFIG)
        special = _special_tokens(config, _read_json(package / TOKENS_MAP))
        self.chat = ChatTemplate(package, _templates(package / TEMPLATE, config), special)
        self._before: list[int] = []
        self._after: list[int] = []
        if path is not None:
            try:
                self._tokenizer = Tokenizer.from_file(str(path))
            except Exception as error:  # tokenizers raises plain Exception
                raise PackageError(f"{path}: the tokenizer cannot be read ({error})") from error
            # The file may ask for truncation or padding; a prompt is read as it is.
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self._before = self._missing("bos_token", config, special)
            self._after = self._missing("eos_token", config, special)

    def _missing(self, name: str, config: dict[str, Any], special: dict[str, str]) -> list[int]:
        """The id of a special token that the config wants added and ``tokenizer.json`` does not add; else empty."""
        assert self._tokenizer is not None
        if config.get(f"add_{name}") is not True or name not in special:
            return []
        token = self._tokenizer.token_to_id(special[name])
        if token is None:
            raise PackageError(f"{self._package / CONFIG}: '{name}' {special[name]!r} is not in the tokenizer's vocabulary")
        return [] if token in self._tokenizer.encode("").ids else [token]

    def encode(self, text: str) -> list[int]:
        """Return token ids with the special tokens that the tokenizer adds; a rendered chat has its own and gets none.

        Raises:
            PromptError: the package has no tokenizer, or the text is not valid Unicode.

        """
        if self._tokenizer is None:
            raise PromptError(f"{self._package}: the checkpoint came without a tokenizer, so prompts must be token ids")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(f"the prompt is not valid Unicode text ({error.reason})") from error
        if isinstance(text, RenderedChat):
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        return [*self._before, *self._tokenizer.encode(text).ids, *self._after]

    def piece(self, token: int) -> str | None:
        """Return the text of one token; None without a tokenizer."""
        if self._tokenizer is None:
            return None
        return str(self._tokenizer.decode([token], skip_special_tokens=False))


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one if there is no such file."""
    try:
        data = json.loads(read_regular(path).decode("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
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
            return {"default": read_regular(file).decode("utf-8")}
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
