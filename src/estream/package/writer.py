"""Writing a package beside its final place and renaming it when it is whole."""

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from safetensors.numpy import save

from estream import _native
from estream.errors import PackageError
from estream.host import system
from estream.host.buffers import BUFFERS
from estream.host.direct_file import DirectFile
from estream.host.sizes import format_bytes, round_up
from estream.host.version import VERSION
from estream.models.config import ModelConfig
from estream.models.consistency import check_config
from estream.package.document import checksum_of
from estream.package.expert_order import ExpertOrder
from estream.package.expert_use import ExpertUse
from estream.package.layout import PAGE_ALIGNMENT, PageSpec, Quantization
from estream.package.manifest import (
    EMBEDDING,
    EMBEDDING_ITEM_BYTES,
    EMBEDDING_SEAL_BYTES,
    MANIFEST,
    PAGES,
    RESIDENT,
    Manifest,
    Page,
)
from estream.package.npu.section import NpuSection
from estream.package.quantization_report import QuantizationReport
from estream.package.tapes import tape_of
from estream.schema import SchemaError

_PARTIAL, _ASIDE = ".partial-", ".old"


@dataclass(frozen=True)
class PackageSpec:
    """What a package will be, known before the first byte is written."""

    device: str
    config: ModelConfig
    quantization: Quantization
    embedding_dtype: str
    synthetic: bool
    source: dict[str, Any]
    npu: NpuSection | None = None

    def tape(self) -> Iterator[PageSpec]:
        """Its pages in tape order."""
        return tape_of(self.config, self.quantization, self.npu.shapes if self.npu else None)

    @property
    def bytes(self) -> int:
        pages = sum(round_up(spec.bytes, PAGE_ALIGNMENT) for spec in self.tape())
        record = self.config.hidden * EMBEDDING_ITEM_BYTES[self.embedding_dtype] + EMBEDDING_SEAL_BYTES
        return pages + round_up(self.config.vocabulary * record, PAGE_ALIGNMENT)


@dataclass
class PackageWriter:
    """Appends embedding rows and pages in tape order; used through :func:`write_package`."""

    spec: PackageSpec
    folder: Path
    _pages_file: DirectFile
    _embedding_file: DirectFile
    _pages: list[Page] = field(default_factory=list)
    _files: dict[str, int] = field(default_factory=dict)
    _offset: int = 0
    report: QuantizationReport | None = None
    #: Known once the pages are written: in which order experts were appended (None: by id), and how a text used them.
    expert_order: ExpertOrder | None = None
    use: ExpertUse | None = None

    def add_embedding_rows(self, rows: np.ndarray) -> None:
        """Append rows [count, hidden] of the embedding's dtype, each sealed with its checksum."""
        data = np.ascontiguousarray(rows).view(np.uint8)
        row = data.shape[1] + EMBEDDING_SEAL_BYTES
        records = BUFFERS.take(len(data) * row).reshape(len(data), row)
        _native.seal_rows(data, records)
        self._embedding_file.write(records.reshape(-1))

    def add_page(self, spec: PageSpec, data: np.ndarray) -> None:
        """Append one page, uint8 [spec.bytes]."""
        if data.size != spec.bytes:
            raise ValueError(f"{spec}: {data.size} bytes, expected {spec.bytes}")
        page = Page(len(self._pages), spec, self._offset, _native.checksum(data))
        self._pages_file.write(data)
        self._pages_file.pad(PAGE_ALIGNMENT)
        self._offset += page.padded_bytes
        self._pages.append(page)

    def add_final_norm(self, weight: np.ndarray, bias: np.ndarray | None = None) -> None:
        """The last norm, float32 [hidden]; the bias where the model has layer norms."""
        tensors = {"final_norm": weight} if bias is None else {"final_norm": weight, "final_norm_bias": bias}
        self.add_file(RESIDENT, save({name: np.ascontiguousarray(values, np.float32) for name, values in tensors.items()}))

    def add_file(self, name: str, data: bytes) -> None:
        """Take a small file along as it is."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self._files[name] = checksum_of(data)

    def _finish(self) -> Manifest:
        self._embedding_file.pad(PAGE_ALIGNMENT)
        self._embedding_file.sync()
        self._pages_file.sync()
        manifest = Manifest(
            device=self.spec.device,
            config=self.spec.config,
            quantization=self.spec.quantization,
            tape=tuple(self._pages),
            embedding_dtype=self.spec.embedding_dtype,
            files=self._files,
            synthetic=self.spec.synthetic,
            source=self.spec.source,
            created_by=f"estream {VERSION}",
            report=self.report,
            npu=self.spec.npu,
            expert_order=self.expert_order,
            use=self.use,
        )
        with open(self.folder / MANIFEST, "w", encoding="utf-8") as handle:
            handle.write(manifest.to_json())
            handle.flush()
            os.fsync(handle.fileno())
        return manifest


class write_package(AbstractContextManager[PackageWriter]):  # noqa: N801
    """Write a package; it appears at ``destination`` only when the block ends without an exception.

    A class, not a generator: wherever an interrupt comes, what was written is removed.

    Raises:
        PackageError: no package can hold this model, the destination exists and ``force`` is false, it does not fit on the
            disk, or writing failed. What was written is removed.

    """

    def __init__(self, destination: Path, spec: PackageSpec, force: bool) -> None:
        self._destination = destination.resolve()
        self._spec = spec
        self._force = force
        name = f".{self._destination.name}{_PARTIAL}{os.getpid()}-{uuid.uuid4().hex[:8]}"
        #: Beside the destination, locked while this process writes it.
        self._folder = self._destination.with_name(name)
        self._open = ExitStack()

    def __enter__(self) -> PackageWriter:
        try:
            self._writer = self._begin()
        except BaseException as error:
            self._abandon(error)
            raise
        return self._writer

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._writer._finish()
                self._open.close()
                _put_in_place(self._folder, self._destination, self._force)
        except BaseException as failure:
            self._abandon(failure)
            raise
        self._abandon(error)

    def _begin(self) -> PackageWriter:
        parent = self._destination.parent
        if not parent.is_dir():
            raise PackageError(f"{parent}: no such folder to write a package into")
        _remove_stale(parent, self._destination.name)
        _check_destination(self._destination, self._force)
        try:
            check_config(self._spec.config)
        except SchemaError as error:
            raise PackageError(f"{self._destination}: a package cannot hold this model: {error}") from error
        self._folder.mkdir()
        self._open.enter_context(system.hold_folder(self._folder))
        free = shutil.disk_usage(parent).free
        if free < self._spec.bytes:
            raise PackageError(f"{parent}: the package needs {format_bytes(self._spec.bytes)}, {format_bytes(free)} are free")
        pages, embedding = (self._open.enter_context(DirectFile(self._folder / name)) for name in (PAGES, EMBEDDING))
        return PackageWriter(self._spec, self._folder, pages, embedding)

    def _abandon(self, error: BaseException | None) -> None:
        """Close and remove what is still there. Raises PackageError in place of an OSError of writing."""
        try:
            self._open.close()
        finally:
            if self._folder.exists():
                shutil.rmtree(self._folder)
            _put_back(_aside(self._folder), self._destination)
        if isinstance(error, OSError):
            what = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
            raise PackageError(f"{self._destination}: cannot be written ({what})") from error


def _check_destination(destination: Path, force: bool) -> None:
    if not destination.exists():
        return
    if not (destination / MANIFEST).exists():
        raise PackageError(f"{destination}: exists and is not an estream package, so it is not replaced")
    if not force:
        raise PackageError(f"{destination}: exists already; --force replaces it")


def embedding_rows_per_write(spec: PackageSpec) -> int:
    """Rows of the embedding that make about 16 MiB."""
    return max(1, (16 << 20) // (spec.config.hidden * EMBEDDING_ITEM_BYTES[spec.embedding_dtype]))


def _put_in_place(folder: Path, destination: Path, force: bool) -> None:
    """Rename. A package that is replaced moves aside first; should this process be killed between the two renames, the
    next conversion puts it back.
    """
    _check_destination(destination, force)
    if force and destination.exists():
        destination.rename(_aside(folder))
    try:
        folder.rename(destination)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise PackageError(f"{destination}: exists already, another conversion was faster") from error
    system.sync_folder(destination.parent)


def _aside(folder: Path) -> Path:
    return folder.with_name(folder.name + _ASIDE)


def _put_back(aside: Path, destination: Path) -> None:
    """Remove a package that another has replaced; put it back where none has."""
    if aside.exists():
        if destination.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(destination)


def _remove_stale(parent: Path, name: str) -> None:
    """Remove what killed processes left, never what a living one is writing; put back a package that was moved aside."""
    for folder in parent.glob(f".{name}{_PARTIAL}*"):
        if _is_being_written(folder):
            continue
        if folder.name.endswith(_ASIDE) and not (parent / name).exists():
            folder.rename(parent / name)
        else:
            # Another conversion may be removing it too.
            shutil.rmtree(folder, ignore_errors=True)


def _is_being_written(folder: Path) -> bool:
    """Whether its writer lives: it holds a lock on the folder, or has just made it and not yet locked it."""
    writer = folder.name.rpartition(_PARTIAL)[2].partition("-")[0]
    return system.process_lives(writer) or system.is_held(folder)
