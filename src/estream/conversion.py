"""From a checkpoint to a package, tensor by tensor, in bounded memory."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from estream import _native
from estream.checkpoint.hub import resolve
from estream.checkpoint.huggingface import HfCheckpoint
from estream.errors import CheckpointError, OptionError
from estream.models import family_of
from estream.models.config import ModelConfig, ModelTensors, TensorRef
from estream.package.layout import GROUPS, LANES, FloatPart, MatrixPart, PageSpec, Quantization, build_tape
from estream.package.manifest import EMBEDDING_ITEM_BYTES
from estream.package.package import Package, open_package
from estream.package.writer import PackageSpec, PackageWriter, embedding_rows_per_write, write_package
from estream.pipeline import LastResult, Limits, ReadAhead, WriteBehind
from estream.units import MiB

DEFAULT_BITS = 4
#: Chosen by measured quality: docs/experiments.md.
DEFAULT_GROUP = 64
DENSE_BITS = 8
#: Three reads in flight keep a disk busy; what is ahead of packing is bounded.
READING = Limits(workers=3, bytes=64 * MiB)

_EXTRAS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")

#: Called with bytes written so far and in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ConvertOptions:
    """``bits`` of the experts (attention and head have 8), ``group`` inputs that share a scale, ``force`` to replace."""

    bits: int = DEFAULT_BITS
    group: int = DEFAULT_GROUP
    device: str = "cpu"
    force: bool = False

    def check(self) -> None:
        """Raises OptionError."""
        if self.bits not in (4, 8):
            raise OptionError(f"--bits must be 4 or 8, not {self.bits}")
        if self.group not in GROUPS:
            raise OptionError(f"--group must be one of {', '.join(map(str, sorted(GROUPS)))}, not {self.group}")
        if self.device != "cpu":
            raise OptionError(f"--device must be cpu, not '{self.device}'")


def convert(
    source: str | Path, destination: str | Path, options: ConvertOptions | None = None, progress: Progress | None = None
) -> Package:
    """Convert a Hugging Face folder or hub id to a package.

    Memory stays bounded for a model of any size: a few pages are read ahead of packing and written behind it.

    Raises:
        CheckpointError: the checkpoint is unknown, incomplete or damaged, or holds a tensor that would go unread.
        OptionError: an option or the destination cannot be used.
        PackageError: writing failed. Nothing is left behind.

    """
    options = options or ConvertOptions()
    options.check()
    checkpoint = HfCheckpoint(resolve(str(source)))
    family = family_of(checkpoint.config)
    config = family.read_config(checkpoint.config)
    tensors = family.tensors(config, frozenset(checkpoint.tensors))
    checkpoint.check(list(_all_refs(tensors)), tensors.ignored)
    destination = Path(destination)
    spec = PackageSpec(
        device=options.device,
        config=config,
        quantization=Quantization.choose(config, options.bits, DENSE_BITS, options.group),
        embedding_dtype=checkpoint.dtype(tensors.embedding),
        synthetic=False,
        source=checkpoint.fingerprint(),
    )
    with write_package(destination, spec, options.force) as writer:
        _Conversion(checkpoint, config, tensors, writer, progress).run()
    return open_package(destination, options.device)


def _all_refs(tensors: ModelTensors) -> Iterator[TensorRef]:
    yield from (tensors.embedding, tensors.final_norm, tensors.head)
    for layer in tensors.layers:
        yield from (layer.input_norm, layer.q, layer.k, layer.v, layer.o, layer.post_norm, layer.router)
        yield from (norm for norm in (layer.q_norm, layer.k_norm) if norm is not None)
        for expert in layer.experts:
            yield from (expert.gate, expert.up, expert.down)


@dataclass(frozen=True)
class _Rows:
    """The source rows of one matrix, [rows, inputs] in ``dtype``, as many of each of ``refs``, and which of them each output
    is (-1: zeros).
    """

    refs: tuple[TensorRef, ...]
    dtype: str
    values: np.ndarray
    order: np.ndarray


#: What a page is made of, by the names of its parts.
_Parts = dict[str, _Rows | np.ndarray]


class _Conversion:
    def __init__(
        self,
        checkpoint: HfCheckpoint,
        config: ModelConfig,
        tensors: ModelTensors,
        writer: PackageWriter,
        progress: Progress | None,
    ) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._tensors = tensors
        self._writer = writer
        self._progress = progress
        self._packer = _native.Packer(len(os.sched_getaffinity(0)))
        self._down = LastResult(checkpoint.read_rows)
        self._done = 0

    def run(self) -> None:
        self._embedding()
        self._writer.add_final_norm(self._checkpoint.read_float32(self._tensors.final_norm))
        tape = build_tape(self._config, self._writer.spec.quantization)
        with ReadAhead(tape, self._read, self._source_bytes, READING) as pages, WriteBehind(self._writer.add_page) as out:
            for spec, parts in pages:
                out.put(spec, self._pack(spec, parts))
                self._advance(spec.bytes)
                # Large: not kept while the next are being read.
                del parts
        for name in _EXTRAS:
            if (self._checkpoint.path / name).exists():
                self._writer.copy(self._checkpoint.path / name)

    def _advance(self, size: int) -> None:
        self._done += size
        if self._progress:
            self._progress(self._done, self._writer.spec.bytes)

    def _embedding(self) -> None:
        step = embedding_rows_per_write(self._writer.spec)
        size = step * self._config.hidden * EMBEDDING_ITEM_BYTES[self._writer.spec.embedding_dtype]
        blocks = range(0, self._config.vocabulary, step)
        with (
            ReadAhead(blocks, lambda first: self._embedding_rows(first, step), lambda _: size, READING) as read,
            WriteBehind(self._write_embedding) as out,
        ):
            for first, rows in read:
                out.put(first, rows)
                self._advance(rows.nbytes)

    def _write_embedding(self, _: int, rows: np.ndarray) -> None:
        self._writer.add_embedding_rows(rows)

    def _embedding_rows(self, first: int, step: int) -> np.ndarray:
        ref = self._tensors.embedding
        rows = self._checkpoint.read_rows(ref, first, min(step, self._config.vocabulary - first))
        if not all_finite(rows, self._checkpoint.dtype(ref)):
            file = self._checkpoint.tensors[ref.name].file.name
            raise CheckpointError(f"{file}: tensor '{ref.name}' holds values that are not finite")
        return rows

    def _refs(self, spec: PageSpec, part: MatrixPart | FloatPart) -> tuple[TensorRef, ...]:
        """The tensors that a part is made of."""
        if spec.kind == "head":
            return (self._tensors.head,)
        layer = self._tensors.layers[spec.layer]
        if spec.kind != "expert":
            return (getattr(layer, part.name),)
        expert = layer.experts[spec.expert]
        return (expert.down,) if part.name == "down" else (expert.gate, expert.up)

    def _source_bytes(self, spec: PageSpec) -> int:
        """About what the parts of a page take once they are read."""
        return sum(
            part.outputs * part.source_inputs * EMBEDDING_ITEM_BYTES[self._checkpoint.dtype(self._refs(spec, part)[0])]
            for part in spec.layout.parts
            if isinstance(part, MatrixPart)
        )

    def _read(self, spec: PageSpec) -> _Parts:
        """All that a page needs of the checkpoint. Runs in the threads that read ahead."""
        return {
            part.name: self._floats(spec, part) if isinstance(part, FloatPart) else self._rows(spec, part)
            for part in spec.layout.parts
        }

    def _floats(self, spec: PageSpec, part: FloatPart) -> np.ndarray:
        values = self._checkpoint.read_float32(self._refs(spec, part)[0])
        if part.name != "router":
            return values
        transposed = np.zeros(part.shape, np.float32)
        transposed[:, : values.shape[0]] = values.T
        return transposed

    def _rows(self, spec: PageSpec, part: MatrixPart) -> _Rows:
        refs, read = self._refs(spec, part), self._checkpoint.read_rows
        order = np.arange(part.outputs, dtype=np.int32)
        if spec.kind == "head":
            values = read(refs[0], spec.first, spec.count)
        elif part.name == "down":
            values = read(refs[0]) if spec.slice < 0 else self._down(refs[0])
            if spec.slice >= 0:
                values = np.ascontiguousarray(values[:, spec.first : spec.first + spec.count])
        elif spec.kind == "expert":
            self._same_dtype(*refs)
            values = np.concatenate([read(half, spec.first, spec.count) for half in refs])
            order = interleave(spec.count, part.outputs)
        else:
            values = read(refs[0])
        return _Rows(refs, self._checkpoint.dtype(refs[0]), values, order)

    def _pack(self, spec: PageSpec, parts: _Parts) -> np.ndarray:
        """A page from its parts, uint8 [spec.bytes], on all cores."""
        data = np.zeros(spec.bytes, np.uint8)
        for part in spec.layout.parts:
            into, source = data[part.offset : part.offset + part.bytes], parts[part.name]
            if isinstance(source, _Rows):
                self._matrix(spec, part, source, into)
            else:
                into.view(np.float32)[...] = source.reshape(-1)
        return data

    def _matrix(self, spec: PageSpec, part: MatrixPart | FloatPart, source: _Rows, into: np.ndarray) -> None:
        assert isinstance(part, MatrixPart)
        matrix = _native.Matrix(part.outputs, part.inputs, part.bits, part.group)
        rows = source.values.reshape(-1).view(np.uint8)
        bad = self._packer.pack(matrix, rows, source.dtype, part.source_inputs, source.order, into)
        if bad >= 0:
            which, row = divmod(bad, len(source.values) // len(source.refs))
            name = source.refs[which].name
            raise CheckpointError(
                f"{self._checkpoint.tensors[name].file.name}: tensor '{name}' ({spec}) holds a value in row {row} that is not "
                "finite or too large to quantise"
            )

    def _same_dtype(self, first: TensorRef, second: TensorRef) -> None:
        if self._checkpoint.dtype(first) != self._checkpoint.dtype(second):
            raise CheckpointError(f"tensors '{first.name}' and '{second.name}' must have one dtype")


def all_finite(rows: np.ndarray, dtype: str) -> bool:
    """Whether float32 values, or float16 or bfloat16 bits, are all finite."""
    if dtype == "float32":
        return bool(np.isfinite(rows).all())
    exponent = np.uint16(0x7C00 if dtype == "float16" else 0x7F80)
    return not ((rows & exponent) == exponent).any()


def interleave(width: int, outputs: int) -> np.ndarray:
    """Source rows (gate rows, then up rows) of a gate_up matrix whose panels hold 16 gate and 16 up outputs; -1 pads."""
    unit = np.arange(outputs // 2, dtype=np.int32)
    gate = np.where(unit < width, unit, -1).reshape(-1, 1, LANES)
    up = np.where(unit < width, unit + width, -1).reshape(-1, 1, LANES)
    return np.ascontiguousarray(np.concatenate([gate, up], 1).reshape(-1), np.int32)
