"""The door for a checkpoint's JSON files: bounded in size and depth, and every text in it valid Unicode."""

from pathlib import Path
from typing import Any

from estream.errors import CheckpointError
from estream.host.regular_file import read_regular
from estream.host.sizes import MiB
from estream.schema import SchemaError, parse, shown

#: The largest index of a published checkpoint has 20 MiB.
_LARGEST = 64 * MiB
_DEEPEST = 32


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a checkpoint folder. Raises CheckpointError."""
    try:
        data = parse(read_regular(path, _LARGEST))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing, so this is not a Hugging Face checkpoint folder") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except (SchemaError, OverflowError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(data).__name__}")
    _check(path, data)
    return data


def _check(path: Path, data: dict[str, Any]) -> None:
    """Raise CheckpointError if values are nested too deeply, or a text has lone surrogates, which no file may get."""
    level: list[tuple[str, Any]] = list(data.items())
    for _ in range(_DEEPEST):
        below: list[tuple[str, Any]] = []
        for key, value in level:
            if not (_is_unicode(key) and (not isinstance(value, str) or _is_unicode(value))):
                raise CheckpointError(f"{path}: {shown(key)} has a text that is not Unicode, found {shown(value)}")
            if isinstance(value, dict):
                below += value.items()
            elif isinstance(value, list):
                below += ((key, item) for item in value)
        if not below:
            return
        level = below
    raise CheckpointError(f"{path}: '{level[0][0]}' is nested too deeply, more than {_DEEPEST} levels")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
