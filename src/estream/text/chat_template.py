"""Conversations to text, by the chat template that comes with a checkpoint.

The conventions are those of transformers, for which templates are written: which blocks trim what, which functions exist,
which fields of a message are known by two names. Templates are programs from the network, so they run in a sandbox.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from estream.errors import PromptError

#: One message: at least ``role`` and ``content``.
Message = Mapping[str, Any]
_REASONING = ("reasoning_content", "thinking", "reasoning")


class RenderedChat(str):
    """A rendered conversation. Its special tokens are written out in it, so that encoding it adds none."""

    __slots__ = ()


class ChatTemplate:
    """The chat templates of one checkpoint; there may be none, and then rendering is refused."""

    def __init__(self, package: Path, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._package = package
        self._templates = templates
        self._special_tokens = special_tokens

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        template: str | None = None,
        **variables: Any,
    ) -> RenderedChat:
        """The text of a conversation.

        Args:
            messages: dicts of plain JSON values, first to last.
            add_generation_prompt: end with the header of the answer that is to come.
            template: the name of a template, where the checkpoint has several.
            variables: what else the template knows, such as ``tools`` or ``enable_thinking``.

        Raises:
            PromptError: there is no template, the messages are not messages, or the template refuses them: its own words.

        """
        source = self._choose(template, variables.get("tools") is not None)
        known: dict[str, Any] = {**self._special_tokens, "tools": None, "documents": None}
        known |= {name: _plain(value, name) for name, value in variables.items()}
        known |= {"messages": _messages(messages), "add_generation_prompt": add_generation_prompt}
        try:
            return RenderedChat(_environment().from_string(source).render(known))
        except _RefusedError as error:
            raise PromptError(f"the chat template refuses these messages: {error}") from error
        except Exception as error:  # a template is a program: it may fail in any way
            raise PromptError(f"the chat template fails with these messages ({type(error).__name__}: {error})") from error

    def _choose(self, name: str | None, tools: bool) -> str:
        if not self._templates:
            raise PromptError(f"{self._package}: the checkpoint came without a chat template; give a plain prompt")
        if name is None:
            name = "tool_use" if tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise PromptError(f"there is no chat template '{name}'; there are: {', '.join(sorted(self._templates))}")
        return self._templates[name]


class _RefusedError(TemplateError):
    """Raised by the template itself."""


class _Generation(Extension):
    """``{% generation %}`` marks what an assistant said, for training: here it is its content."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """Without names that begin with an underscore, through which a template could reach into the interpreter."""

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a chat template must not set the attribute {name!r}")
        super().__setitem__(name, value)


def _namespace(**values: Any) -> _Namespace:
    space = _Namespace()
    for name, value in values.items():
        space[name] = value
    return space


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _Generation],
        autoescape=False,  # the text goes to a model, not to a browser
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "namespace": _namespace,
        "dict": lambda *values, **named: dict(*values, **named),
    }
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Not jinja's own, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise _RefusedError(message)


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies without keys whose value is None, which templates would print; reasoning under each of its names."""
    if isinstance(messages, str | Mapping) or not messages:
        raise PromptError("messages must be a list of at least one message, such as {'role': 'user', 'content': 'Hello'}")
    copies = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise PromptError(f"message {index} must be an object with a 'role', found {message!r}")
        copy = {str(key): _plain(value, f"message {index}") for key, value in message.items() if value is not None}
        reasoning = next((copy[key] for key in _REASONING if key in copy), None)
        if reasoning is not None:
            copy = {"thinking": reasoning} | copy | {"reasoning_content": reasoning}
        copies.append(copy)
    return copies


def _plain(value: Any, where: str) -> Any:
    """A copy in plain JSON types, whose methods the sandbox knows."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    raise PromptError(f"{where} holds a {type(value).__name__}; chat templates take plain JSON values only")
