"""Renders conversations to text with the chat template of a checkpoint.

Templates are written for transformers, so its conventions apply: whitespace control, functions, and fields of a message with
two names. Templates are programs from the network, so they run in a sandbox with bounds (docs/design.md): in this process
where everything that they use is known to be bounded, else in a child process under the system's limits.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

from estream.errors import PromptError
from estream.schema import shown
from estream.text import template_child
from estream.text.tame import is_tame
from estream.text.template_environment import LONGEST_TEMPLATE, RefusedError, compiled, environment, render
from estream.text.template_meter import BoundError

#: One message: at least ``role`` and ``content``.
Message = Mapping[str, Any]
_REASONING = ("reasoning_content", "thinking", "reasoning")
#: Levels of lists and objects in a message.
_DEEPEST = 100
#: Seconds that a child process may take by the clock, on a busy machine too.
_CHILD_SECONDS = 20


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
        /,
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
            PromptError: there is no such template, ``messages`` has another form, or the template fails, refuses them, or takes
                more than one render may.

        """
        name = self._choose(template, variables.get("tools") is not None)
        context: dict[str, Any] = {**self._special_tokens, "tools": None, "documents": None}
        context |= {key: _json_copy(value, shown(key)) for key, value in variables.items()}
        context |= {"messages": _messages(messages), "add_generation_prompt": add_generation_prompt}
        try:
            return RenderedChat(_rendered(self._templates[name], context))
        except RefusedError as error:
            raise PromptError(f"the chat template {shown(name)} refuses these messages: {_line(error)}") from error
        except _ChildError as error:
            raise PromptError(f"the chat template {shown(name)} fails with these messages ({_line(error)})") from error
        except Exception as error:  # a template is a program: it may fail in any way
            what = f"{type(error).__name__}: {_line(error)}"
            raise PromptError(f"the chat template {shown(name)} fails with these messages ({what})") from error

    def text(self, name: str | None = None) -> str:
        """The template itself, by its name. Raises PromptError where there is none."""
        return self._templates[self._choose(name, tools=False)]

    def _choose(self, name: Any, tools: bool) -> str:
        if not self._templates:
            raise PromptError(f"{self._package}: the checkpoint came without a chat template; give a plain prompt")
        if name is None:
            name = "tool_use" if tools and "tool_use" in self._templates else "default"
        if not isinstance(name, str):
            raise PromptError(f"'template' must be the name of a chat template, found {shown(name)}")
        if name not in self._templates:
            raise PromptError(f"there is no chat template {shown(name)}; there are: {', '.join(sorted(self._templates))}")
        return name


class _ChildError(Exception):
    """A render in a child process failed; the message says how."""


def _rendered(source: str, context: dict[str, Any]) -> str:
    if len(source) > LONGEST_TEMPLATE:
        raise BoundError(f"it has {len(source)} characters, at most {LONGEST_TEMPLATE} are read")
    template = _compiled(source)
    return _in_child(source, context) if template is None else render(template, context)


@lru_cache(maxsize=16)
def _compiled(source: str) -> Template | None:
    """A template that may be rendered here; None for another one."""
    made = _environment()
    return compiled(made, source) if is_tame(made.parse(source)) else None


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    return environment()


def _in_child(source: str, context: dict[str, Any]) -> str:
    program = Path(template_child.__file__)
    asked = {"template": source, "context": context, "path": sys.path, "package": str(program.parents[1])}
    try:
        done = subprocess.run(  # noqa: S603  # this interpreter, a file of ours
            [sys.executable, "-I", "-S", str(program)],
            input=json.dumps(asked).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_CHILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _ChildError(f"it takes more than {_CHILD_SECONDS} s") from error
    except OSError as error:
        raise _ChildError(f"the process that renders it cannot be started: {error.strerror}") from error
    if done.returncode != 0:
        raise _ChildError("it takes more memory or time than one render may")
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise RefusedError(answer["refused"])
    if "failed" in answer:
        raise _ChildError(answer["failed"])
    return str(answer["text"])


def _line(error: Exception) -> str:
    """What an exception says, in one line."""
    return " ".join(str(error)[:1000].split())[:300]


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copy messages without keys whose value is None, which templates would print, and with reasoning under both its names."""
    if isinstance(messages, str | Mapping) or not messages:
        raise PromptError("messages must be a list of at least one message, such as {'role': 'user', 'content': 'Hello'}")
    copies = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise PromptError(f"message {index} must be an object with a 'role', found {shown(message)}")
        copy = {str(key): _json_copy(value, f"message {index}") for key, value in message.items() if value is not None}
        reasoning = next((copy[key] for key in _REASONING if key in copy), None)
        if reasoning is not None:
            copy = {"thinking": reasoning} | copy | {"reasoning_content": reasoning}
        copies.append(copy)
    return copies


def _json_copy(value: Any, where: str, depth: int = 0) -> Any:
    """Copy a JSON value into built-in types, whose methods the sandbox can check."""
    if depth > _DEEPEST:
        raise PromptError(f"{where} is nested more than {_DEEPEST} levels deep")
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _json_copy(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_copy(item, where, depth + 1) for item in value]
    raise PromptError(f"{where} holds a {type(value).__name__}; chat templates take plain JSON values only")
