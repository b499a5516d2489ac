"""Fingerprints of checkpoints: tell whether the source of a package has changed since the conversion."""

import stat
from pathlib import Path
from typing import Any

import numpy as np

from estream import _native

_SAMPLES = 64
_SAMPLE_BYTES = 64 << 10


def _sampled_checksum(path: Path) -> str:
    """XXH3-64 of a small file, or of 64 evenly spaced blocks of a large one, which suffices to detect other weights."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        if size <= _SAMPLES * _SAMPLE_BYTES:
            data = file.read()
        else:
            parts = []
            for i in range(_SAMPLES):
                file.seek(i * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                parts.append(file.read(_SAMPLE_BYTES))
            data = b"".join(parts)
    return f"{_native.checksum(np.frombuffer(data, np.uint8)):016x}"


def take_fingerprint(kind: str, folder: Path, files: list[Path]) -> dict[str, Any]:
    """Return the fingerprint of a source: its folder, and each file's size, time of change and sampled checksum."""
    return {
        "kind": kind,
        "name": folder.name,
        "folder": str(folder.absolute()),
        "files": {
            file.relative_to(folder).as_posix(): {
                "bytes": file.stat().st_size,
                "changed_ns": file.stat().st_mtime_ns,
                "checksum": _sampled_checksum(file),
            }
            for file in files
        },
    }


def changed_file(source: dict[str, Any]) -> Path | None:
    """Return the first file of a source whose content differs from the fingerprint; None if there is none.

    A moved or deleted file does not count as changed, nor a file with another time but the same checksum.
    """
    for name, known in source.get("files", {}).items():
        path = Path(str(source["folder"])) / str(name)
        try:
            now = path.stat()
            if not stat.S_ISREG(now.st_mode):
                return path
            if (now.st_size, now.st_mtime_ns) == (known["bytes"], known["changed_ns"]):
                continue
            if now.st_size != known["bytes"] or _sampled_checksum(path) != known["checksum"]:
                return path
        except OSError:
            # The file is gone or out of reach, so there is nothing to compare.
            continue
    return None
