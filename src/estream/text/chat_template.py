"""Renders conversations to text with the chat template of a checkpoint.

Templates are written for transformers, so its conventions apply: whitespace control, functions, and fields of a message with
two names. Templates are programs from the network, so they run in a sandbox.
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
    """A rendered conversation. It contains its special tokens as text, so encoding it adds none."""

    __slots__ = ()


class ChatTemplate:
    """The chat templates of a checkpoint by name. Without templates, ``render`` raises PromptError."""

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
        """Render a conversation to text.

        Args:
            messages: dicts of JSON values with ``role`` and ``content``, first to last.
            add_generation_prompt: end with the header of the assistant's next message.
            template: the name of a template, if the checkpoint has several.
            variables: other variables of the template, such as ``tools`` or ``enable_thinking``.

        Raises:
            PromptError: there is no such template, ``messages`` has another form, or the template fails or refuses them.

        """
        source = self._choose(template, variables.get("tools") is not None)
        context: dict[str, Any] = {**self._special_tokens, "tools": None, "documents": None}
        context |= {name: _json_copy(value, name) for name, value in variables.items()}
        context |= {"messages": _messages(messages), "add_generation_prompt": add_generation_prompt}
        try:
            return RenderedChat(_environment().from_string(source).render(context))
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
    """The template called ``raise_exception``."""


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's text for training; here the block renders as its content."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """Refuses names that begin with an underscore, through which a template could reach into the interpreter."""

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
    """Replaces jinja's filter, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise _RefusedError(message)


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copy messages without keys whose value is None, which templates would print, and with reasoning under both its names."""
    if isinstance(messages, str | Mapping) or not messages:
        raise PromptError("messages must be a list of at least one message, such as {'role': 'user', 'content': 'Hello'}")
    copies = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise PromptError(f"message {index} must be an object with a 'role', found {message!r}")
        copy = {str(key): _json_copy(value, f"message {index}") for key, value in message.items() if value is not None}
        reasoning = next((copy[key] for key in _REASONING if key in copy), None)
        if reasoning is not None:
            copy = {"thinking": reasoning} | copy | {"reasoning_content": reasoning}
        copies.append(copy)
    return copies


def _json_copy(value: Any, where: str) -> Any:
    """Copy a JSON value into built-in types, whose methods the sandbox can check."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _json_copy(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_copy(item, where) for item in value]
    raise PromptError(f"{where} holds a {type(value).__name__}; chat templates take plain JSON values only")
