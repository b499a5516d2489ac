"""``manifest.json``: what a package holds, validated whole before anything is read from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct

from estream.errors import PackageError
from estream.host import sizes
from estream.models.config import ModelConfig
from estream.models.consistency import check_consistency
from estream.package.document import FORMAT, VERSION, Document, read_document, seal
from estream.package.expert_order import ExpertOrder, check_expert_order
from estream.package.expert_use import ExpertUse
from estream.package.layout import PAGE_ALIGNMENT, PageSpec, Quantization
from estream.package.npu.section import NpuSection
from estream.package.parts import GROUPS
from estream.package.quantization_report import QuantizationReport
from estream.package.tapes import count_pages, tape_of
from estream.schema import SchemaError, to_plain

MANIFEST = "manifest.json"
PAGES = "pages.bin"
EMBEDDING = "embedding.bin"
RESIDENT = "resident.safetensors"
TOKENIZER = "tokenizer.json"

EMBEDDING_SEAL_BYTES = 8
EMBEDDING_ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


class Page(Struct, frozen=True, dict=True):
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
    """Everything of a package but its bytes. Without an ``expert_order`` a layer's experts lie by id; ``use`` is what a text
    has shown of them.
    """

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
    expert_order: ExpertOrder | None = None
    use: ExpertUse | None = None

    @property
    def use_tokens(self) -> int:
        """Tokens of the text that has shown the use of experts; 0 without one."""
        return round(max((layer.tokens for layer in self.use.layers), default=0.0)) if self.use else 0

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
                "model": to_plain(self.config),
                "quantization": to_plain(self.quantization),
                "embedding": {"dtype": self.embedding_dtype},
                **({"npu": to_plain(self.npu)} if self.npu else {}),
                "report": to_plain(self.report),
                "files": {name: f"{checksum:016x}" for name, checksum in self.files.items()},
                "expert_order": to_plain(self.expert_order),
                "use": to_plain(self.use),
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
    def from_json(path: Path, text: bytes) -> "Manifest":
        """Parse and check every field against the layout that config and quantization imply.

        Raises:
            PackageError: anything is missing, unknown, contradictory or of another format version.

        """
        try:
            return _manifest(read_document(path, text))
        except SchemaError as error:
            raise PackageError(f"{path}: {error}; convert the model again") from error


def _manifest(document: Document) -> Manifest:
    config, quantization = document.model, document.quantization
    check_consistency(config)
    if quantization.group not in GROUPS:
        raise SchemaError(f"'quantization.group' must be one of {GROUPS}, found {quantization.group}")
    if document.npu is None:
        _check_slices(config, quantization)
    else:
        _check_npu(config, document.npu, document.files)
    if document.expert_order is not None:
        _check_order(document.expert_order, document)
    if document.use is not None:
        document.use.check(config)
    return Manifest(
        device=document.device,
        config=config,
        quantization=quantization,
        tape=_tape(document),
        embedding_dtype=document.embedding.dtype,
        files={name: int(checksum, 16) for name, checksum in document.files.items()},
        synthetic=document.synthetic,
        source=document.source,
        created_by=document.created_by,
        report=document.report,
        npu=document.npu,
        expert_order=document.expert_order,
        use=document.use,
    )


def _check_order(order: ExpertOrder, document: Document) -> None:
    if document.device == "qnn" or document.npu is not None:
        raise SchemaError("'expert_order' must be null in a package for the NPU: its experts lie by id")
    check_expert_order(order, document.model)


def _check_slices(config: ModelConfig, quantization: Quantization) -> None:
    widths = {
        "expert_slices": (config.moe.intermediate_size, quantization.expert_slices),
        "shared_slices": (config.moe.shared_intermediate_size, quantization.shared_slices),
        "dense_slices": (config.intermediate_size, quantization.dense_slices),
    }
    for name, (width, slices) in widths.items():
        if width % slices:
            raise SchemaError(f"'quantization.{name}' must divide the width {width}, found {slices}")


def _check_npu(config: ModelConfig, npu: NpuSection, files: Mapping[str, str]) -> None:
    """Sizes of graphs that the model has too: products of others would be cut into millions of blocks. Compiled graphs have
    checksums among the files.
    """
    for soc, graphs in npu.contexts.items():
        if lost := [graph for graph in graphs if NpuSection.file(soc, graph) not in files]:
            raise SchemaError(f"'files' lacks {NpuSection.file(soc, lost[0])}, which 'npu.contexts' names")
    shapes = npu.shapes
    attention, found = config.attention, shapes.attention
    pairs = {
        "hidden": (config.hidden, shapes.hidden),
        "attention.heads": (attention.heads, found.heads),
        "attention.kv_heads": (attention.kv_heads, found.kv_heads),
        "attention.qk_dim": (attention.head_dim, found.qk_dim),
        "attention.v_dim": (attention.value_dim, found.v_dim),
        "attention.rotated": (attention.rope.dims, found.rotated),
        "routing.experts": (config.moe.experts, shapes.routing.experts),
        "routing.top_k": (config.moe.top_k, shapes.routing.top_k),
    }
    for name, (expected, size) in pairs.items():
        if size != expected:
            raise SchemaError(f"'npu.shapes.{name}' must be the model's {expected}, found {size}")


def _tape(document: Document) -> tuple[Page, ...]:
    rows, config, quantization = document.tape, document.model, document.quantization
    shapes = document.npu.shapes if document.npu else None
    if len(rows) != (implied := count_pages(config, quantization, shapes)):
        raise SchemaError(
            f"'tape' has {len(rows)} pages, its config implies {implied}: {config.layers} layers, {config.moe.experts} experts "
            f"of {quantization.expert_slices} slices, {config.vocabulary} vocabulary rows"
        )
    pages: list[Page] = []
    end = 0
    specs = tape_of(config, quantization, shapes, document.expert_order)
    for index, (row, spec) in enumerate(zip(rows, specs, strict=True)):
        found = (row.kind, row.layer, row.expert, row.slice, row.length)
        expected = (spec.kind, spec.layer, spec.expert, spec.slice, spec.bytes)
        if found != expected:
            raise SchemaError(f"page {index} is {found}, its config implies {expected}")
        if row.offset != end:
            raise SchemaError(f"page {index} ({spec}) lies at {row.offset}, not at {end}")
        page = Page(index, spec, end, int(row.checksum, 16))
        end += page.padded_bytes
        pages.append(page)
    return tuple(pages)
