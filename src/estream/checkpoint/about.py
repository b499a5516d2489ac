"""The files of a checkpoint folder that say how it is meant to be used, as a package has them: under plain names."""

import re
from collections.abc import Iterator
from pathlib import Path

from estream.errors import CheckpointError
from estream.host.regular_file import read_regular
from estream.package.about import GENERATION, LARGEST_ABOUT, MODULES, POOLING, SENTENCE_TRANSFORMERS, checked, parsed
from estream.schema import SchemaError

#: Where sentence-transformers puts the pooling, unless ``modules.json`` says otherwise.
_POOLING_FOLDER = "1_Pooling"
_FOLDER = re.compile(r"[\w-]{1,64}")


def about_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of those that are there.

    Raises:
        CheckpointError: one cannot be read, is too large, or is no JSON.

    """
    modules = None
    for name in (GENERATION, MODULES, SENTENCE_TRANSFORMERS):
        if (text := _read(folder / name)) is not None:
            modules = text if name == MODULES else modules
            yield name, text
    if (text := _read(folder / _pooling_folder(folder, modules) / "config.json")) is not None:
        yield POOLING, text


def _pooling_folder(folder: Path, modules: bytes | None) -> str:
    for module in parsed(modules) if modules is not None else ():
        if isinstance(module, dict) and str(module.get("type")).endswith(".Pooling"):
            path = str(module.get("path"))
            if not _FOLDER.fullmatch(path):
                raise CheckpointError(
                    f"{folder / MODULES}: a pooling's 'path' must be the name of a folder, found {path[:60]!r}"
                )
            return path
    return _POOLING_FOLDER


def _read(path: Path) -> bytes | None:
    try:
        return checked(read_regular(path, LARGEST_ABOUT))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except SchemaError as error:
        raise CheckpointError(f"{path}: cannot be used ({error})") from error
