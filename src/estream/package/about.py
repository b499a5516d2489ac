"""Small JSON files that came with a checkpoint and say how it is meant to be used. A package may lack each of them."""

import json
from pathlib import Path
from typing import Any

from estream.errors import PackageError
from estream.host.regular_file import read_regular
from estream.host.sizes import MiB
from estream.schema import SchemaError, parse

GENERATION, MODULES, POOLING = "generation_config.json", "modules.json", "pooling.json"
SENTENCE_TRANSFORMERS = "config_sentence_transformers.json"
NAMES = (GENERATION, MODULES, POOLING, SENTENCE_TRANSFORMERS)
#: Bytes of one of them: prompts are the longest that they hold.
LARGEST_ABOUT = 1 * MiB


def parsed(text: bytes) -> Any:
    """The JSON of such a file: an object or a list. Raises SchemaError."""
    found = parse(text)
    if not isinstance(found, dict | list):
        raise SchemaError(f"expected a JSON object or list, found {type(found).__name__}")
    return found


def checked(text: bytes) -> bytes:
    """Such a file's bytes, which are JSON within bounds. Raises SchemaError."""
    if len(text) > LARGEST_ABOUT:
        raise SchemaError(f"{len(text)} bytes, at most {LARGEST_ABOUT} are expected")
    try:
        # Numbers that are none, and texts that are not Unicode, end here.
        json.dumps(parsed(text), allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise SchemaError(str(error)) from error
    return text


def read_about(package: Path, files: Any) -> dict[str, Any]:
    """What the package has of them, by name; ``files`` are the names in its manifest.

    Raises:
        PackageError: one cannot be read.

    """
    found = {}
    for name in NAMES:
        if name not in files:
            continue
        try:
            found[name] = parsed(read_regular(package / name, LARGEST_ABOUT))
        except (OSError, SchemaError) as error:
            raise PackageError(f"{package / name}: cannot be read ({error}); convert the model again") from error
    return found
