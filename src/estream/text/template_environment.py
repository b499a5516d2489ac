"""What chat templates are rendered with: jinja's sandbox, with a bound on steps, time, and the size of what is made.

Of estream only the meter and the rewriting are imported here: a child process renders a template with these files alone.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from estream.text.template_meter import (
    BINARY,
    METHODS,
    BoundError,
    check_copy,
    check_join,
    check_replace,
    check_search,
    counted,
    listed,
    looked,
    meter,
    size_of,
    sliced,
    text_size,
)
from estream.text.template_rewrite import COUNTED, JOINED, LOOKED, SLICED, metered

#: Characters of a form of the time; each two may become dozens.
_LONGEST_FORM = 256
#: Filters whose result is as long as a text that they are given.
_COPYING = frozenset(["upper", "lower", "trim", "capitalize", "title", "reverse"])
#: Characters of a template. The longest that are published have some 30,000.
LONGEST_TEMPLATE = 131_072


class RefusedError(TemplateError):
    """The template called ``raise_exception``."""


def compiled(made: ImmutableSandboxedEnvironment, source: str) -> Template:
    """Compile a template; constants are computed here already, within the bounds of one render."""
    meter.begin()
    return made.from_string(source)


def render(template: Template, context: dict[str, Any]) -> str:
    """Render within the bounds. Raises whatever a template may raise."""
    meter.begin()
    return template.render(context)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return metered(super()._parse(source, name, filename))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        BINARY[operator](left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        meter.step()
        if isinstance(obj, LoopContext):
            args = (counted(args[0]), *args[1:])
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str) and args and getattr(obj, "__name__", "") == "join":
            args = (listed(args[0]), *args[1:])
        if isinstance(owner, str):
            check: Callable[..., None] = METHODS.get(getattr(obj, "__name__", ""), check_search)
            check(owner, *args, **kwargs)
        else:
            looked(owner)
        return super().call(context, obj, *args, **kwargs)


def _measured(value: Any) -> Any:
    """What is written must not be too long; called before it becomes text."""
    meter.take(text_size(len(value), value) if isinstance(value, str) else size_of(value))
    return value


def _joined(values: tuple[Any, ...]) -> str:
    return _concatenated([value if isinstance(value, str) else str(_measured(value)) for value in values])


def _concatenated(parts: Iterable[str]) -> str:
    whole = list(parts)
    meter.take(text_size(sum(map(len, whole)), *whole))
    return "".join(whole)


def _with_meter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of jinja's that measures the texts it makes others of."""
    check = check_copy if name in _COPYING else looked

    @wraps(function)  # the marks that jinja has on a filter are kept
    def measured(*values: Any, **named: Any) -> Any:
        for value in values:
            if isinstance(value, str):
                check(value)
            else:
                looked(value)
        return function(*values, **named)

    return measured


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

    def __repr__(self) -> str:
        # Of one that holds others, jinja's own text could be of any length.
        return "<Namespace>"


def _namespace(**values: Any) -> _Namespace:
    space = _Namespace()
    for name, value in values.items():
        space[name] = value
    return space


def environment() -> ImmutableSandboxedEnvironment:
    """An environment as transformers has it."""
    made = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _Generation],
        autoescape=False,  # the text goes to a model, not to a browser
        finalize=_measured,
    )
    made.concat = _concatenated  # type: ignore[method-assign]
    join, replace = made.filters["join"], made.filters["replace"]

    def measured_join(context: Any, values: Any, d: str = "", attribute: str | None = None) -> Any:
        values = listed(values)
        check_join(str(d), values)
        return join(context, values, d, attribute)

    def measured_replace(context: Any, text: Any, old: str, new: str, count: int | None = None) -> Any:
        check_replace(str(_measured(text)), old, new, -1 if count is None else count)
        return replace(context, text, old, new, count)

    measured_join.jinja_pass_arg = join.jinja_pass_arg  # type: ignore[attr-defined]
    measured_replace.jinja_pass_arg = replace.jinja_pass_arg  # type: ignore[attr-defined]
    made.filters = {name: _with_meter(name, function) for name, function in made.filters.items()}
    made.filters |= {
        COUNTED: counted,
        JOINED: _joined,
        SLICED: sliced,
        LOOKED: looked,
        "join": measured_join,
        "list": listed,
        "replace": measured_replace,
        "string": lambda value: str(_measured(value)),
        "tojson": _to_json,
    }
    for name in ("lipsum", "cycler", "joiner"):
        del made.globals[name]
    made.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "namespace": _namespace,
        "dict": lambda *values, **named: dict(*values, **named),
    }
    return made


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replaces jinja's filter, which escapes for HTML."""
    widest = max([indent if isinstance(indent, int) else len(indent or ""), *map(len, separators or ())])
    if widest > 64:
        raise BoundError("it indents JSON by a large number")
    if isinstance(value, Undefined):
        raise TypeError("an undefined value has no JSON")
    meter.take(size_of(value) * (6 if ensure_ascii else 2))
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return encoder.encode(value) if indent is None else _concatenated(_each_measured(encoder.iterencode(value)))


def _each_measured(parts: Iterable[str]) -> Iterator[str]:
    for part in parts:
        meter.take(len(part))
        yield part


def _strftime_now(form: str) -> str:
    if len(form) > _LONGEST_FORM:
        raise BoundError(f"it writes the time in a form of {len(form)} characters")
    return datetime.now().strftime(form)


def _raise_exception(message: str) -> None:
    raise RefusedError(str(_measured(message)))
