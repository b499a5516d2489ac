"""``manifest.json``: what a package holds, validated whole before anything is read from it."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from estream import _native
from estream.errors import PackageError
from estream.host import sizes
from estream.models.config import ModelConfig
from estream.package.layout import PAGE_ALIGNMENT, PageSpec, Quantization
from estream.package.npu.section import NpuSection
from estream.package.parts import GROUPS
from estream.package.quantization_report import QuantizationReport
from estream.package.tapes import tape_of

FORMAT = "estream"
VERSION = 2

MANIFEST = "manifest.json"
PAGES = "pages.bin"
EMBEDDING = "embedding.bin"
RESIDENT = "resident.safetensors"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"

EMBEDDING_SEAL_BYTES = 8
EMBEDDING_ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class Page:
    """One page of the tape and where it lies in ``pages.bin``. ``checksum`` is the XXH3-64 of its ``bytes``."""

    index: int
    spec: PageSpec
    offset: int
    checksum: int

    @cached_property
    def bytes(self) -> int:
        return self.spec.bytes

    @cached_property
    def padded_bytes(self) -> int:
        return sizes.round_up(self.spec.bytes, PAGE_ALIGNMENT)


@dataclass(frozen=True)
class Manifest:
    """Everything of a package but its bytes."""

    device: str
    config: ModelConfig
    quantization: Quantization
    tape: tuple[Page, ...]
    embedding_dtype: str
    files: dict[str, int]
    synthetic: bool
    source: dict[str, Any]
    created_by: str
    report: QuantizationReport | None = None
    npu: NpuSection | None = None

    @property
    def pages_bytes(self) -> int:
        return self.tape[-1].offset + self.tape[-1].padded_bytes

    @property
    def embedding_row_bytes(self) -> int:
        return self.config.hidden * EMBEDDING_ITEM_BYTES[self.embedding_dtype]

    @property
    def embedding_record_bytes(self) -> int:
        """A row is followed by its own checksum, because rows are read one by one."""
        return self.embedding_row_bytes + EMBEDDING_SEAL_BYTES

    @property
    def embedding_bytes(self) -> int:
        return sizes.round_up(self.config.vocabulary * self.embedding_record_bytes, PAGE_ALIGNMENT)

    def to_json(self) -> str:
        return seal(
            {
                "format": FORMAT,
                "version": VERSION,
                "device": self.device,
                "created_by": self.created_by,
                "synthetic": self.synthetic,
                "source": self.source,
                "model": self.config.to_json(),
                "quantization": self.quantization.to_json(),
                "embedding": {"dtype": self.embedding_dtype},
                **({"npu": self.npu.to_json()} if self.npu else {}),
                "report": self.report.to_json() if self.report else None,
                "files": {name: f"{checksum:016x}" for name, checksum in self.files.items()},
                "tape": [
                    {
                        "kind": page.spec.kind,
                        "layer": page.spec.layer,
                        "expert": page.spec.expert,
                        "slice": page.spec.slice,
                        "offset": page.offset,
                        "length": page.bytes,
                        "checksum": f"{page.checksum:016x}",
                    }
                    for page in self.tape
                ],
            }
        )

    @staticmethod
    def from_json(path: Path, text: str) -> "Manifest":
        """Parse and check every field against the layout that config and quantization imply.

        Raises:
            PackageError: anything is missing, unknown, contradictory or of another format version.

        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise PackageError(f"{path}: not valid JSON ({error}); convert the model again") from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise PackageError(f"{path}: not an estream package")
        if data.get("version") != VERSION:
            raise PackageError(
                f"{path}: package format version {data.get('version')!r}, but this estream reads version {VERSION}; "
                "convert the model again with this estream"
            )
        if data.pop("checksum", None) != _own_checksum(data):
            raise PackageError(f"{path}: wrong checksum, the manifest was edited or damaged; convert the model again")
        try:
            return _parse(path, data)
        except (KeyError, TypeError, ValueError) as error:
            detail = f"{type(error).__name__}: {error}"
            raise PackageError(f"{path}: the manifest is damaged ({detail}); convert the model again") from error


def checksum_of(data: bytes) -> int:
    """The XXH3-64 of some bytes."""
    return int(_native.checksum(np.frombuffer(data, np.uint8)))


def _own_checksum(data: dict[str, Any]) -> str:
    return f"{checksum_of(json.dumps(data, separators=(',', ':')).encode()):016x}"


def seal(data: dict[str, Any]) -> str:
    """The manifest's text: its values and, last, the checksum of their canonical JSON."""
    return json.dumps(data | {"checksum": _own_checksum(data)}, separators=(",", ":"))


def _parse(path: Path, data: dict[str, Any]) -> Manifest:
    config = ModelConfig.from_json(data["model"])
    quantization = Quantization(**data["quantization"])
    slices = (quantization.expert_slices, quantization.shared_slices, quantization.dense_slices)
    if (
        quantization.group not in GROUPS
        or {quantization.expert_bits, quantization.dense_bits} - {4, 8}
        or min(*slices, quantization.head_rows) < 1
    ):
        raise PackageError(f"{path}: quantization {quantization} is not one that this estream computes")
    if data["embedding"]["dtype"] not in EMBEDDING_ITEM_BYTES:
        raise PackageError(f"{path}: embedding dtype {data['embedding']['dtype']!r} is not known")
    npu = NpuSection.from_json(data["npu"]) if "npu" in data else None
    return Manifest(
        device=str(data["device"]),
        config=config,
        quantization=quantization,
        tape=_parse_tape(path, data["tape"], list(tape_of(config, quantization, npu.shapes if npu else None))),
        embedding_dtype=data["embedding"]["dtype"],
        files={str(name): int(checksum, 16) for name, checksum in data["files"].items()},
        synthetic=bool(data["synthetic"]),
        source=dict(data["source"]),
        created_by=str(data["created_by"]),
        report=QuantizationReport.from_json(data["report"]) if data.get("report") else None,
        npu=npu,
    )


def _parse_tape(path: Path, rows: list[dict[str, Any]], specs: list[PageSpec]) -> tuple[Page, ...]:
    if len(rows) != len(specs):
        raise PackageError(f"{path}: the tape has {len(rows)} pages, its config implies {len(specs)}")
    pages: list[Page] = []
    end = 0
    for index, (row, spec) in enumerate(zip(rows, specs, strict=True)):
        found = (row["kind"], row["layer"], row["expert"], row["slice"], row["length"])
        expected = (spec.kind, spec.layer, spec.expert, spec.slice, spec.bytes)
        if found != expected:
            raise PackageError(f"{path}: page {index} is {found}, its config implies {expected}")
        if row["offset"] != end:
            raise PackageError(f"{path}: page {index} ({spec}) lies at {row['offset']}, not at {end}")
        page = Page(index, spec, end, int(row["checksum"], 16))
        end += page.padded_bytes
        pages.append(page)
    return tuple(pages)
