"""The prompt options of a command: a text, a file, a conversation, or a number of random ids."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from estream.errors import OptionError, PromptError
from estream.schema import SchemaError, parse


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
    """Read the text of a file, or of standard input for "-"."""
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise PromptError(f"{path}: cannot be read ({error.strerror})") from error


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
