"""Opening a package: every file is there, of the right size and for the right device, before anything is read."""

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from estream import _native
from estream.errors import DeviceError, PackageError
from estream.host.fingerprint import changed_file
from estream.host.regular_file import checksum_regular, read_regular
from estream.host.sizes import KiB
from estream.package.about import read_about
from estream.package.manifest import EMBEDDING, MANIFEST, PAGES, RESIDENT, TOKENIZER, Manifest
from estream.package.parts import MatrixPart


class FinalNorm(NamedTuple):
    """Weights float32 [hidden], and the bias of a layer norm."""

    weight: np.ndarray
    bias: np.ndarray | None


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
        return self.path / TOKENIZER if TOKENIZER in self.manifest.files else None

    def about(self) -> dict[str, Any]:
        """JSON files that say how the model is meant to be used, by name. Raises PackageError where one cannot be read."""
        return read_about(self.path, self.manifest.files)

    def final_norm(self) -> FinalNorm:
        """The last norm, before the head."""
        path = self.path / RESIDENT
        layer = self.manifest.config.norm == "layer"
        try:
            # Two norms, names and padding.
            tensors = load(read_regular(path, 2 * 4 * self.manifest.config.hidden + 64 * KiB))
            weight, bias = tensors["final_norm"], tensors["final_norm_bias"] if layer else None
        except OSError as error:
            raise PackageError(f"{path}: cannot be read ({error.strerror})") from error
        except (SafetensorError, KeyError) as error:
            raise PackageError(f"{path}: damaged ({error}); convert the model again") from error
        for values in (weight,) if bias is None else (weight, bias):
            if values.shape != (self.manifest.config.hidden,) or values.dtype != np.float32:
                raise PackageError(f"{path}: final_norm is {values.dtype} {values.shape}; convert the model again")
            if not np.isfinite(values).all():
                raise PackageError(f"{path}: final_norm holds values that are no finite numbers; convert the model again")
        return FinalNorm(weight, bias)

    def open_reader(self, lanes: int, request_bytes: int, direct_io: bool) -> "_native.Reader":
        """Reader lanes over ``pages.bin`` (file 0) and ``embedding.bin`` (file 1).

        Raises:
            PackageError: one of them cannot be opened.
            DeviceError: the lanes cannot be started.

        """
        try:
            return _native.Reader([str(self.pages_path), str(self.embedding_path)], lanes, request_bytes, direct_io)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                raise DeviceError(
                    f"{lanes} threads that read cannot be started; end other processes or raise ulimit -u"
                ) from error
            raise PackageError(f"{self.path}: cannot be opened ({error.strerror})") from error

    @property
    def weights(self) -> int:
        """How many weights the packed matrices and the embedding stand for."""
        parts = (part for page in self.manifest.tape for part in page.spec.layout.parts)
        config = self.manifest.config
        return sum(p.outputs * p.source_inputs for p in parts if isinstance(p, MatrixPart)) + config.vocabulary * config.hidden

    @property
    def bytes(self) -> int:
        """Bytes of pages and embedding on disk."""
        return self.manifest.pages_bytes + self.manifest.embedding_bytes


def open_package(path: str | Path, device: str | None = None) -> Package:
    """Open a package folder.

    Args:
        path: the ``NAME.estream`` folder.
        device: the device that is to run it; a package made for another one, or from a checkpoint that has changed since,
            is refused. None to look at it only.

    Raises:
        PackageError: absent, incomplete, truncated, of another version or made for another device.

    """
    path = Path(path)
    if not path.is_dir():
        hint = "it is a file, not a package folder" if path.exists() else "there is no such folder"
        raise PackageError(f"{path}: {hint}; 'estream convert SRC {path}' makes a package")
    try:
        text = read_regular(path / MANIFEST)
    except FileNotFoundError as error:
        raise PackageError(f"{path}: no {MANIFEST}, so this is not an estream package") from error
    except OSError as error:
        raise PackageError(f"{path / MANIFEST}: cannot be read ({error.strerror})") from error
    package = Package(path, Manifest.from_json(path / MANIFEST, text))
    if device is not None:
        _check_use(package, device)
    _check_files(package)
    return package


def _check_use(package: Package, device: str) -> None:
    path, manifest = package.path, package.manifest
    if manifest.device != device:
        raise PackageError(
            f"{path}: made for device '{manifest.device}', not '{device}'; "
            f"'estream convert SRC DST --device {device}' makes the right one"
        )
    if changed := changed_file(manifest.source):
        raise PackageError(
            f"{path}: {changed} has changed since the package was made from it; convert it again with --force, or move "
            "the checkpoint away to keep the package as it is"
        )


def _check_files(package: Package) -> None:
    manifest = package.manifest
    for file, expected in ((package.pages_path, manifest.pages_bytes), (package.embedding_path, manifest.embedding_bytes)):
        if not file.is_file():
            what = "not a regular file" if file.exists() else "missing"
            raise PackageError(f"{file}: {what}; convert the model again")
        if (found := file.stat().st_size) != expected:
            raise PackageError(f"{file}: {found} bytes, expected {expected}; the file is damaged, convert the model again")
    for name, checksum in manifest.files.items():
        _check_small_file(package.path / name, checksum)


def _check_small_file(path: Path, checksum: int) -> None:
    try:
        found = checksum_regular(path)
    except FileNotFoundError as error:
        raise PackageError(f"{path}: missing; convert the model again") from error
    except OSError as error:
        raise PackageError(f"{path}: cannot be read ({error.strerror})") from error
    if found != checksum:
        raise PackageError(f"{path}: wrong checksum, the file was edited or damaged; convert the model again")
