"""``manifest.json`` as it is written: which keys there are, and what each may hold."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from estream import _native
from estream.errors import PackageError
from estream.models.config import ModelConfig
from estream.package.expert_order import ExpertOrder
from estream.package.expert_use import ExpertUse
from estream.package.layout import PageKind, Quantization
from estream.package.npu.section import NpuSection
from estream.package.quantization_report import QuantizationReport
from estream.schema import (
    Bytes,
    Checksum,
    Folder,
    NotNegative,
    PackageFile,
    PathBelow,
    Record,
    SchemaError,
    decode,
    from_plain,
    parse,
    shown,
)

FORMAT = "estream"
VERSION = 3
#: Version 2 had neither an order nor the use of experts: they lie by id.
_READABLE = (2, VERSION)


class Header(Struct):
    """What is known before the rest is understood."""

    format: Any = None
    version: Any = None


class Embedding(Record, frozen=True):
    dtype: Literal["bfloat16", "float16", "float32"]


class Row(Record, frozen=True):
    """A page of the tape."""

    kind: PageKind
    layer: int
    expert: int
    slice: int
    offset: Bytes
    length: Bytes
    checksum: Checksum


class SourceFile(Struct):
    bytes: Bytes
    changed_ns: int
    checksum: Checksum


class Source(Struct):
    """What estream itself looks at of a source; the rest is for people."""

    kind: str
    name: str
    folder: Folder | None = None
    files: dict[PathBelow, SourceFile] = {}
    routing_skew: NotNegative = 0.0


class Document(Record, frozen=True):
    """``manifest.json`` as it is written."""

    format: str
    version: int
    device: Literal["cpu", "qnn"]
    created_by: str
    synthetic: bool
    source: dict[str, Any]
    model: ModelConfig
    quantization: Quantization
    embedding: Embedding
    files: dict[PackageFile, Checksum]
    tape: list[Row]
    checksum: str
    npu: NpuSection | None = None
    report: QuantizationReport | None = None
    expert_order: ExpertOrder | None = None
    use: ExpertUse | None = None


def checksum_of(data: bytes) -> int:
    """The XXH3-64 of some bytes."""
    return int(_native.checksum(np.frombuffer(data, np.uint8)))


def seal(data: dict[str, Any]) -> str:
    """The manifest's text: its values and, last, the checksum of the text without it."""
    text = json.dumps(data, separators=(",", ":"))
    return text[:-1] + _seal(text.encode()).decode()


def _seal(text: bytes) -> bytes:
    """What stands for the closing brace of a text."""
    return b',"checksum":"%016x"}' % checksum_of(text)


def _is_sealed(text: bytes) -> bool:
    end = len(text) - len(_seal(b""))
    return end > 0 and text[end:] == _seal(text[:end] + b"}")


def read_document(path: Path, text: bytes) -> Document:
    """Parse a manifest; ``path`` is for messages.

    Raises:
        PackageError: it is not a manifest, of another format version, edited or damaged.
        SchemaError: a value is missing, unknown or out of its range.

    """
    header = _header(text)
    if header.format != FORMAT:
        raise PackageError(f"{path}: not an estream package")
    if header.version not in _READABLE:
        raise PackageError(
            f"{path}: package format version {shown(header.version)}, but this estream reads versions "
            f"{' and '.join(map(str, _READABLE))}; convert the model again with this estream"
        )
    if not _is_sealed(text):
        raise PackageError(f"{path}: wrong checksum, the manifest was edited or damaged; convert the model again")
    document = decode(text, Document)
    if document.version < VERSION and (document.expert_order is not None or document.use is not None):
        raise SchemaError(f"'expert_order' and 'use' belong to version {VERSION}, found version {document.version}")
    source = from_plain({"source": document.source}, dict[str, Source])["source"]
    if source.files and source.folder is None:
        raise SchemaError("'source.folder' is missing")
    return document


def _header(text: bytes) -> Header:
    try:
        return decode(text, Header)
    except SchemaError:
        if isinstance(parse(text), dict):
            raise
        return Header()
