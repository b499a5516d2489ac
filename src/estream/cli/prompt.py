"""The prompt options of a command: a text, a file, a conversation, or a number of random ids."""

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from estream.errors import OptionError, PromptError
from estream.host.sizes import MiB, format_bytes
from estream.schema import SchemaError, parse

#: Bytes of a prompt: one of a million tokens has some 4 MB.
_LARGEST_TEXT = 32 * MiB
_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class Conversation:
    """Messages for the model's chat template, and the template's other variables."""

    messages: list[Any]
    variables: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GivenPrompt:
    """The prompt options of a command; exactly one must be given."""

    prompt: str | None
    prompt_file: Path | None
    chat: str | None
    messages: Path | None
    tokens: int | None


def one_prompt(given: GivenPrompt) -> str | Conversation | int:
    """Return the prompt: a text, a conversation, or a number of random ids.

    Raises:
        OptionError: none or several of the options are given.
        PromptError: a file cannot be read, is not UTF-8, or does not hold messages.

    """
    if sum(value is not None for value in vars(given).values()) != 1:
        raise OptionError("give one of --prompt, --prompt-file, --chat, --messages and --tokens")
    if given.prompt is not None:
        return given.prompt
    if given.prompt_file is not None:
        # Editors add a newline at the end of a file.
        return _read_text(given.prompt_file).removesuffix("\n")
    if given.chat is not None:
        return Conversation([{"role": "user", "content": given.chat}])
    if given.messages is not None:
        return _read_conversation(given.messages)
    assert given.tokens is not None
    if given.tokens < 1:
        raise OptionError(f"--tokens must be at least 1, not {given.tokens}")
    return given.tokens


def _read_text(path: Path) -> str:
    """Read the text of a file, or of standard input for "-": UTF-8 whatever the locale, with newlines as they are."""
    try:
        content = _read_bytes(path)
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise PromptError(f"{path}: cannot be read ({error.strerror})") from error
    if text.startswith(_BYTE_ORDER_MARK):
        logging.getLogger("estream").info("%s: the byte order mark at its beginning is not read", path)
    return text.removeprefix(_BYTE_ORDER_MARK)


def _read_bytes(path: Path) -> bytes:
    if str(path) == "-":
        if sys.stdin is None:
            raise PromptError("-: standard input is closed")
        content = sys.stdin.buffer.read(_LARGEST_TEXT + 1)
    else:
        with open(path, "rb") as file:
            content = file.read(_LARGEST_TEXT + 1)
    if len(content) > _LARGEST_TEXT:
        raise PromptError(f"{path}: more than {format_bytes(_LARGEST_TEXT)} of text, which is beyond any model's context")
    return content


def _read_conversation(path: Path) -> Conversation:
    """Read a list of messages, or an object with ``messages`` and other variables of the template, such as ``tools``."""
    try:
        data = parse(_read_text(path).encode())
    except SchemaError as error:
        raise PromptError(f"{path}: the messages are {error}") from error
    variables = {}
    if isinstance(data, dict):
        variables = {str(name): value for name, value in data.items() if name != "messages"}
        data = data.get("messages")
    if not isinstance(data, list):
        raise PromptError(f"{path}: expected a list of messages, or an object that has one under 'messages'")
    return Conversation(data, variables)


def random_ids(count: int, seed: int, vocabulary: int) -> np.ndarray:
    """Return random token ids, int32 [count]; equal seeds give equal ids."""
    return np.random.default_rng(seed).integers(0, vocabulary, count, dtype=np.int32)
