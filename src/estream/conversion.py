"""From a checkpoint to a package, tensor by tensor, in bounded memory."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from estream.checkpoint.opening import open_checkpoint
from estream.checkpoint.source import CheckpointSource
from estream.errors import OptionError
from estream.models import family_of
from estream.models.config import ModelConfig, ModelTensors, TensorRef
from estream.package.layout import GROUPS, LANES, FloatPart, MatrixPart, PageSpec, Quantization, build_tape
from estream.package.package import Package, open_package
from estream.package.writer import PackageSpec, PackageWriter, embedding_rows_per_write, write_package
from estream.packing import MatrixPacker, MatrixSource, read_matrix
from estream.summary import matrix_notes, preferred_group, summarise

DEFAULT_BITS = 4
#: Chosen by measured quality: docs/experiments.md.
DEFAULT_GROUP = 64
DENSE_BITS = 8

#: Called with bytes written so far and in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ConvertOptions:
    """``bits`` of the experts (attention and head have 8), ``group`` inputs that share a scale, ``force`` to replace.

    Without a group it is that of the source where its codes can be kept, else DEFAULT_GROUP.
    """

    bits: int = DEFAULT_BITS
    group: int | None = None
    device: str = "cpu"
    force: bool = False

    def check(self) -> None:
        """Raises OptionError."""
        if self.bits not in (4, 8):
            raise OptionError(f"--bits must be 4 or 8, not {self.bits}")
        if self.group is not None and self.group not in GROUPS:
            raise OptionError(f"--group must be one of {', '.join(map(str, sorted(GROUPS)))}, not {self.group}")
        if self.device != "cpu":
            raise OptionError(f"--device must be cpu, not '{self.device}'")


def convert(
    source: str | Path, destination: str | Path, options: ConvertOptions | None = None, progress: Progress | None = None
) -> Package:
    """Convert a Hugging Face folder or hub id, or a GGUF file (any part of one that is split), to a package.

    Memory stays bounded for a model of any size: one matrix of the checkpoint and one page are held at a time.

    Raises:
        CheckpointError: the checkpoint is unknown, incomplete or damaged, or holds a tensor that would go unread.
        OptionError: an option or the destination cannot be used.
        PackageError: writing failed. Nothing is left behind.

    """
    options = options or ConvertOptions()
    options.check()
    checkpoint = open_checkpoint(str(source))
    family = family_of(checkpoint.config)
    config = family.read_config(checkpoint.config)
    tensors = family.tensors(config, frozenset(checkpoint.tensors))
    checkpoint.check(list(_all_refs(tensors)), tensors.ignored)
    destination = Path(destination)
    group = options.group or preferred_group(checkpoint, tensors, options.bits, DEFAULT_GROUP)
    spec = PackageSpec(
        device=options.device,
        config=config,
        quantization=Quantization.choose(config, options.bits, DENSE_BITS, group),
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


class _Conversion:
    def __init__(
        self,
        checkpoint: CheckpointSource,
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
        self._packer = MatrixPacker(checkpoint, len(os.sched_getaffinity(0)))
        self._done = 0

    def run(self) -> None:
        self._embedding()
        self._writer.add_final_norm(self._checkpoint.read_float32(self._tensors.final_norm))
        for spec in build_tape(self._config, self._writer.spec.quantization):
            self._writer.add_page(spec, self._page(spec))
            self._advance(spec.bytes)
        for name, content in self._checkpoint.extras():
            self._writer.add_file(name, content)
        notes = [*matrix_notes(self._checkpoint, self._tensors, self._writer.spec.quantization), *self._checkpoint.notes]
        self._writer.spec.source["conversion"] = summarise(self._packer.tallies, notes)

    def _advance(self, size: int) -> None:
        self._done += size
        if self._progress:
            self._progress(self._done, self._writer.spec.bytes)

    def _embedding(self) -> None:
        ref, step = self._tensors.embedding, embedding_rows_per_write(self._writer.spec)
        for first in range(0, self._config.vocabulary, step):
            rows = self._checkpoint.read_rows(ref, first, min(step, self._config.vocabulary - first))
            self._writer.add_embedding_rows(rows)
            self._advance(rows.nbytes)

    def _page(self, spec: PageSpec) -> np.ndarray:
        data = np.zeros(spec.bytes, np.uint8)
        for part in spec.layout.parts:
            into = data[part.offset : part.offset + part.bytes]
            if isinstance(part, FloatPart):
                into.view(np.float32).reshape(part.shape)[...] = self._floats(spec, part)
            else:
                self._matrix(spec, part, into)
        return data

    def _floats(self, spec: PageSpec, part: FloatPart) -> np.ndarray:
        ref: TensorRef = getattr(self._tensors.layers[spec.layer], part.name)
        values = self._checkpoint.read_float32(ref)
        if part.name != "router":
            return values
        transposed = np.zeros(part.shape, np.float32)
        transposed[:, : values.shape[0]] = values.T
        return transposed

    def _matrix(self, spec: PageSpec, part: MatrixPart, into: np.ndarray) -> None:
        order, page = np.arange(part.outputs, dtype=np.int32), str(spec)
        if spec.kind == "head":
            source = MatrixSource((self._tensors.head,), order, page, spec.first, spec.count)
        elif spec.kind == "attention":
            source = MatrixSource((getattr(self._tensors.layers[spec.layer], part.name),), order, page)
        else:
            expert = self._tensors.layers[spec.layer].experts[spec.expert]
            if part.name == "down":
                columns = (spec.first, spec.first + spec.count)
                source = MatrixSource((expert.down,), order, page, columns=columns)
            else:
                order = interleave(spec.count, part.outputs)
                source = MatrixSource((expert.gate, expert.up), order, page, spec.first, spec.count)
        self._packer.pack(spec.kind, read_matrix(self._checkpoint, source, part), part, into)


def interleave(width: int, outputs: int) -> np.ndarray:
    """Source rows (gate rows, then up rows) of a gate_up matrix whose panels hold 16 gate and 16 up outputs; -1 pads."""
    unit = np.arange(outputs // 2, dtype=np.int32)
    gate = np.where(unit < width, unit, -1).reshape(-1, 1, LANES)
    up = np.where(unit < width, unit + width, -1).reshape(-1, 1, LANES)
    return np.ascontiguousarray(np.concatenate([gate, up], 1).reshape(-1), np.int32)
