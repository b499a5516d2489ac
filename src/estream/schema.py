"""JSON against types: what a field may hold stands in its type, and a refusal names the field, what was expected and found."""

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")
#: Makes a value of a type that msgspec does not know; raises ValueError where that is impossible.
Hook = Callable[[Any, Any], Any]

_NAME = r"(?!\.{1,2}(?:/|\Z))[^/\\\0]{1,255}"
_PLAIN: Final = rf"\A{_NAME}\Z"
_IN_PACKAGE: Final = rf"\A(?:{_NAME}|contexts/{_NAME}/{_NAME}\.onnx)\Z"
_BELOW: Final = rf"\A(?:{_NAME}/)*{_NAME}\Z"
_HEX_64: Final = r"\A[0-9a-f]{16}\Z"
_HEX_256: Final = r"\A[0-9a-f]{64}\Z"
_FOLDER: Final = r"\A[^\0]*\Z"
_LARGEST_FLOAT: Final = 3.4e38
#: Larger texts are refused in the parser's own words: looking for better ones takes much more memory than they have bytes.
_EXPLAINED: Final = 32 << 20
#: Characters of a message.
_LONGEST: Final = 400

#: Floats that float32 holds too.
Finite = Annotated[float, Meta(ge=-_LARGEST_FLOAT, le=_LARGEST_FLOAT)]
Positive = Annotated[float, Meta(gt=0, le=_LARGEST_FLOAT)]
NotNegative = Annotated[float, Meta(ge=0, le=_LARGEST_FLOAT)]
#: Sizes of one dimension of a matrix, and how many there are of something.
Count = Annotated[int, Meta(ge=1, le=1 << 24)]
CountOrZero = Annotated[int, Meta(ge=0, le=1 << 24)]
Bytes = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
#: A name that joined to a folder stays in it.
PlainName = Annotated[str, Meta(pattern=_PLAIN)]
#: The name of a package's file: compiled graphs of a chip lie in a folder of their own.
PackageFile = Annotated[str, Meta(pattern=_IN_PACKAGE)]
#: A path that joined to a folder stays in it.
PathBelow = Annotated[str, Meta(pattern=_BELOW)]
#: A folder's path, which may be absolute.
Folder = Annotated[str, Meta(pattern=_FOLDER)]
#: The XXH3-64 and the SHA-256 of something.
Checksum = Annotated[str, Meta(pattern=_HEX_64)]
Digest = Annotated[str, Meta(pattern=_HEX_256)]

_IN_WORDS = {
    _PLAIN: "a file name without a folder",
    _IN_PACKAGE: "a file name without a folder, or contexts/CHIP/GRAPH.onnx",
    _BELOW: "a path below the folder",
    _FOLDER: "a path without NUL",
    _HEX_64: "16 hexadecimal digits",
    _HEX_256: "64 hexadecimal digits",
}


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An immutable value with a form in JSON. Types and ranges are checked where it is read, not where it is made."""


class SchemaError(ValueError):
    """A value is not what its type allows. The message has the field, what was expected and what was found."""


def decode(text: bytes, kind: type[T]) -> T:
    """Parse JSON.

    Raises:
        SchemaError: it is no JSON, or not of this type.

    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        if len(text) > _EXPLAINED:
            raise SchemaError(_one_line(str(error))) from error
        # Slower, but it says what is wrong. It also reads lone surrogates, which stand for file names that are not UTF-8.
        return from_plain(parse(text), kind)


def parse(text: bytes) -> Any:
    """JSON without a type. A whole number may be written 2e9.

    Raises:
        SchemaError: it is no JSON, or nested too deeply.

    """
    try:
        return json.loads(text.decode("utf-8"), parse_float=_number)
    except RecursionError as error:
        raise SchemaError("nested too deeply to be read") from error
    except ValueError as error:
        raise SchemaError(f"not valid JSON ({error})") from error


def from_plain(data: Any, kind: type[T], hook: Hook | None = None) -> T:
    """A value of this type from plain ones.

    Raises:
        SchemaError: it is not of this type.

    """
    try:
        return msgspec.convert(data, kind, str_keys=True, dec_hook=hook)
    except msgspec.ValidationError as error:
        raise SchemaError(_explain(str(error), data, kind, hook)) from error
    except UnicodeEncodeError as error:
        raise SchemaError("it holds text that is not valid Unicode") from error
    except RecursionError as error:
        raise SchemaError("nested too deeply to be read") from error


def to_plain(value: Any, hook: Callable[[Any], Any] | None = None) -> Any:
    """Dicts, lists and scalars that stand for a value in JSON, by their keys there. ``hook`` makes them of other types."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=hook)


def shown(value: Any) -> str:
    """A value for a message, cut to a few words."""
    try:
        text = repr(value) if not isinstance(value, str) else repr(value[:60])
    except (RecursionError, ValueError):
        # Nested too deeply, or a number of more digits than Python writes.
        text = f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= 60 else f"{text[:56]} ..."


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _explain(error: str, data: Any, kind: Any, hook: Hook | None) -> str:
    """A message of msgspec with the value that was found and the keys of mappings, both of which it leaves out."""
    message, _, place = error.rpartition(" - at `") if " - at `" in error else (error, "", "")
    try:
        text = _located(message, place, copy.deepcopy(data), lambda root: _error(root, kind, hook) == error, kind)
    except (LookupError, TypeError, AttributeError):
        # A name in the data reads like a part of the message.
        text = error
    return _one_line(text)


def _one_line(text: str) -> str:
    """What a file brings into a message may be long, and more than one line."""
    return "".join(c if c.isprintable() else "?" for c in text[:_LONGEST])


def _located(message: str, place: str, root: Any, fails: Callable[[Any], bool], kind: Any) -> str:
    at_key = place.startswith("key` in `")
    path = re.findall(r"\.([^.\[`]+)|\[(\d+|\.\.\.)\]", place + ("[...]" if at_key else ""))
    steps, found = [], root
    for name, index in path:
        step: Any = int(index) if index.isdigit() else name or _culprit(found, lambda: fails(root))
        found = found[step]
        steps.append(f"[{step}]" if index.isdigit() else f".{step}")
    if at_key:
        key = steps.pop()[1:]
        return f"'{_field(steps)}' has a key {shown(key)}, which must be {_expected(message)}"
    return _sentence(message, _field(steps), found, _literals(msgspec.inspect.type_info(kind), iter(steps)))


def _field(steps: Iterable[str]) -> str:
    return "".join(steps).removeprefix(".")


def _sentence(message: str, field: str, found: Any, allowed: tuple[Any, ...]) -> str:
    subject = f"'{field}'" if field else "it"
    if name := re.fullmatch("Object (missing|contains).* field `(.*)`", message, re.DOTALL):
        whole = f"{field}.{name[2]}".removeprefix(".")
        return f"'{whole}' is missing" if name[1] == "missing" else f"'{whole}' is not known"
    if message.startswith("Expected"):
        return f"{subject} must be {_expected(message)}, found {shown(found)}"
    if message.startswith("Invalid enum"):
        return f"{subject} must be {' or '.join(map(repr, allowed))}, found {shown(found)}"
    if message.startswith("Number out of range"):
        return f"{subject} must be a finite number, found {shown(found)}"
    # A sentence of a hook, about a part of the value.
    if message.startswith("'"):
        return f"'{field}{'' if message[1] == '[' else '.'}{message[1:]}"
    return f"{subject} {message.removeprefix('it ')}"


def _expected(message: str) -> str:
    """What follows "Expected" in a message of msgspec, in words."""
    expected = message.removeprefix("Expected ").partition(", got")[0]
    for pattern, words in _IN_WORDS.items():
        expected = expected.replace(f"`str` matching regex {pattern!r}", words)
    return expected.replace("`", "")


def _error(root: Any, kind: Any, hook: Hook | None) -> str:
    try:
        msgspec.convert(root, kind, str_keys=True, dec_hook=hook)
    except msgspec.ValidationError as error:
        return str(error)
    except UnicodeEncodeError:
        # The part that is looked at holds a lone surrogate, and not what the message is about.
        return ""
    return ""


def _culprit(mapping: dict[str, Any], fails: Callable[[], bool]) -> str:
    """The key of a mapping for which converting fails, by bisection; the others are removed."""
    items = list(mapping.items())
    while len(items) > 1:
        half = items[: len(items) // 2]
        mapping.clear()
        mapping.update(half)
        if not fails():
            half = items[len(items) // 2 :]
            mapping.clear()
            mapping.update(half)
        items = half
    return items[0][0]


def _literals(info: msgspec.inspect.Type, steps: Iterator[str]) -> tuple[Any, ...]:
    """The values that a type allows at a place; none where that is no enumeration."""
    if isinstance(info, msgspec.inspect.Metadata):
        return _literals(info.type, steps)
    if isinstance(info, msgspec.inspect.UnionType):
        record = next((t for t in info.types if not isinstance(t, msgspec.inspect.NoneType)), info)
        return _literals(record, steps)
    if isinstance(info, msgspec.inspect.LiteralType):
        return tuple(info.values)
    step = next(steps, None)
    if step is None:
        return ()
    if isinstance(info, msgspec.inspect.StructType):
        inner = next((f.type for f in info.fields if f".{f.encode_name}" == step), None)
        return () if inner is None else _literals(inner, steps)
    if isinstance(info, msgspec.inspect.DictType):
        return _literals(info.value_type, steps)
    if isinstance(info, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
        return _literals(info.item_type, steps)
    return ()
