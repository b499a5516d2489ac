"""Opening a package: every file is there, of the right size and for the right device, before anything is read."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from estream.checkpoint.fingerprint import changed_file
from estream.errors import PackageError
from estream.package.manifest import EMBEDDING, MANIFEST, PAGES, RESIDENT, TOKENIZER, Manifest


@dataclass(frozen=True)
class Package:
    """A package folder whose manifest and file sizes have been checked."""

    path: Path
    manifest: Manifest

    @property
    def pages_path(self) -> Path:
        return self.path / PAGES

    @property
    def embedding_path(self) -> Path:
        return self.path / EMBEDDING

    @property
    def tokenizer_path(self) -> Path | None:
        """None for a checkpoint without a tokenizer: such a model takes ids only."""
        path = self.path / TOKENIZER
        return path if path.exists() else None

    def final_norm(self) -> np.ndarray:
        """Weights of the last RMSNorm, float32 [hidden]."""
        path = self.path / RESIDENT
        try:
            weight = load_file(path)["final_norm"]
        except (OSError, SafetensorError, KeyError) as error:
            raise PackageError(f"{path}: cannot be read ({error}); convert the model again") from error
        if weight.shape != (self.manifest.config.hidden,) or weight.dtype != np.float32:
            raise PackageError(f"{path}: final_norm is {weight.dtype} {weight.shape}; convert the model again")
        return weight

    @property
    def bytes(self) -> int:
        """Bytes of pages and embedding on disk."""
        return self.manifest.pages_bytes + self.manifest.embedding_bytes


def open_package(path: str | Path, device: str | None = None) -> Package:
    """Open a package folder.

    Args:
        path: the ``NAME.estream`` folder.
        device: refuse a package made for another device than this one.

    Raises:
        PackageError: absent, incomplete, truncated, of another version or made for another device.

    """
    path = Path(path)
    if not path.is_dir():
        hint = "it is a file, not a package folder" if path.exists() else "there is no such folder"
        raise PackageError(f"{path}: {hint}; 'estream convert SRC {path}' makes a package")
    try:
        text = (path / MANIFEST).read_text("utf-8")
    except FileNotFoundError as error:
        raise PackageError(f"{path}: no {MANIFEST}, so this is not an estream package") from error
    except (OSError, UnicodeDecodeError) as error:
        raise PackageError(f"{path / MANIFEST}: cannot be read ({error})") from error
    package = Package(path, Manifest.from_json(path / MANIFEST, text))
    manifest = package.manifest
    if device is not None and manifest.device != device:
        raise PackageError(
            f"{path}: made for device '{manifest.device}', not '{device}'; "
            f"'estream convert SRC DST --device {device}' makes the right one"
        )
    if changed := changed_file(manifest.source):
        raise PackageError(
            f"{path}: {changed} has changed since the package was made from it; 'estream convert {changed.parent} {path} "
            "--force' makes it anew, or move the checkpoint away to keep the package as it is"
        )
    for file, expected in ((package.pages_path, manifest.pages_bytes), (package.embedding_path, manifest.embedding_bytes)):
        if not file.is_file():
            raise PackageError(f"{file}: missing; convert the model again")
        if (found := file.stat().st_size) != expected:
            raise PackageError(f"{file}: {found} bytes, expected {expected}; the file is damaged, convert the model again")
    if not (path / RESIDENT).is_file():
        raise PackageError(f"{path / RESIDENT}: missing; convert the model again")
    return package
