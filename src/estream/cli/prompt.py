"""The prompt that a command is given: text, a file, a conversation, or a number of random ids."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from estream.errors import OptionError, PromptError


@dataclass(frozen=True)
class Conversation:
    """Messages for the model's chat template, and what else the template is to know."""

    messages: list[Any]
    variables: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GivenPrompt:
    """The options of a command that say what to read; exactly one of them must be given."""

    prompt: str | None
    prompt_file: Path | None
    chat: str | None
    messages: Path | None
    tokens: int | None


def one_prompt(given: GivenPrompt) -> str | Conversation | int:
    """A text, a conversation, or how many random ids.

    Raises:
        OptionError: none or several of the options were given.
        PromptError: a file cannot be read or does not hold what it should.

    """
    if sum(value is not None for value in vars(given).values()) != 1:
        raise OptionError("give one of --prompt, --prompt-file, --chat, --messages and --tokens")
    if given.prompt is not None:
        return given.prompt
    if given.prompt_file is not None:
        # Without the newline that editors put at the end.
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
    """The text of a file, or of standard input for "-"."""
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise PromptError(f"{path}: cannot be read ({error.strerror})") from error


def _read_conversation(path: Path) -> Conversation:
    """A list of messages, or an object with ``messages`` and what else the template is to know, such as ``tools``."""
    try:
        data = json.loads(_read_text(path))
    except ValueError as error:
        raise PromptError(f"{path}: not JSON ({error})") from error
    variables = {}
    if isinstance(data, dict):
        variables = {str(name): value for name, value in data.items() if name != "messages"}
        data = data.get("messages")
    if not isinstance(data, list):
        raise PromptError(f"{path}: expected a list of messages, or an object that has one under 'messages'")
    return Conversation(data, variables)


def random_ids(count: int, seed: int, vocabulary: int) -> np.ndarray:
    """int32 [count] token ids, the same for the same seed."""
    return np.random.default_rng(seed).integers(0, vocabulary, count, dtype=np.int32)
