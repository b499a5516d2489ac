"""The prompt options of a command: a text, a file, a conversation, or a number of random ids."""

import codecs
import json
import logging
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estream.errors import OptionError, PromptError
from estream.host.sizes import MiB, format_bytes

logger = logging.getLogger("estream")

#: A file of more bytes for each token of the context is refused unread. The longest tokens of published models are runs of
#: spaces, of 128 bytes.
MOST_BYTES_PER_TOKEN = 256
#: What a prompt may have at least, also with a short context: templates and JSON are longer than what becomes of them.
LEAST_LIMIT_BYTES = MiB


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

    def check(self) -> None:
        """Raise OptionError where none or several of the options are given, or a number is out of range."""
        if sum(value is not None for value in vars(self).values()) != 1:
            raise OptionError("give one of --prompt, --prompt-file, --chat, --messages and --tokens")
        if self.tokens is not None and self.tokens < 1:
            raise OptionError(f"--tokens must be at least 1, not {self.tokens}")


def limit_bytes(context: int) -> int:
    """Bytes of a file that a context of so many tokens could hold at the very most."""
    return max(LEAST_LIMIT_BYTES, context * MOST_BYTES_PER_TOKEN)


def one_prompt(given: GivenPrompt, context: int) -> str | Conversation | int:
    """Return the prompt: a text, a conversation, or a number of random ids.

    Raises:
        OptionError: none or several of the options are given.
        PromptError: a file cannot be read, is larger than the context could hold, is not UTF-8, or does not hold messages.

    """
    given.check()
    if given.prompt is not None:
        return _argument("--prompt", given.prompt)
    if given.prompt_file is not None:
        text = _read_text(given.prompt_file, context)
        # Editors add a newline at the end of a file.
        return text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")
    if given.chat is not None:
        return Conversation([{"role": "user", "content": _argument("--chat", given.chat)}])
    if given.messages is not None:
        return _read_conversation(given.messages, context)
    assert given.tokens is not None
    return given.tokens


def _argument(option: str, text: str) -> str:
    """A text of the command line, where Python keeps bytes that are no text as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(f"{option}: not UTF-8 text (at character {error.start})") from error
    return text


def _read_text(path: Path, context: int) -> str:
    """The text of a file, or of standard input for "-": UTF-8 whatever the locale, newlines as they are."""
    name, largest = "standard input" if str(path) == "-" else str(path), limit_bytes(context)
    try:
        data = _read_bytes(path, largest)
    except OSError as error:
        raise PromptError(f"{name}: cannot be read ({error.strerror})") from error
    if data is None or len(data) > largest:
        raise PromptError(
            f"{name}: more than {format_bytes(largest)}, which the model's context of {context} tokens cannot hold"
        )
    start = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
    if start:
        logger.warning("%s: begins with a byte order mark, which is left out", name)
    try:
        return data[start:].decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{name}: not UTF-8 text ({error.reason} at byte {start + error.start})") from error


def _read_bytes(path: Path, largest: int) -> bytes | None:
    """The content, of which one byte more than the largest says that it is too large. None for a file whose size says so."""
    if str(path) == "-":
        if sys.stdin is None:
            raise PromptError("standard input is closed, so there is no prompt to read from it")
        return sys.stdin.buffer.read(largest + 1)
    found = path.stat()
    if stat.S_ISREG(found.st_mode) and found.st_size > largest:
        return None
    with open(path, "rb") as file:  # a pipe too, as the shell's <(...) makes them
        return file.read(largest + 1)


def _read_conversation(path: Path, context: int) -> Conversation:
    """Read a list of messages, or an object with ``messages`` and other variables of the template, such as ``tools``."""
    try:
        data = json.loads(_read_text(path, context))
    except ValueError as error:
        raise PromptError(f"{path}: the messages are not valid JSON ({error})") from error
    except RecursionError as error:
        raise PromptError(f"{path}: the messages are nested too deeply") from error
    variables = {}
    if isinstance(data, dict):
        variables = {str(name): value for name, value in data.items() if name != "messages"}
        data = data.get("messages")
    if not isinstance(data, list):
        raise PromptError(f"{path}: expected a list of messages, or an object that has one under 'messages'")
    return Conversation(data, variables)
