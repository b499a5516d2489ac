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
from estream.float_parts import float_part, interleave
from estream.models import family_of
from estream.models.config import MlpTensors, ModelConfig, ModelTensors, TensorRef
from estream.package.layout import PageSpec, Quantization, build_tape
from estream.package.package import Package, open_package
from estream.package.parts import GROUPS, FloatPart, MatrixPart
from estream.package.writer import PackageSpec, PackageWriter, embedding_rows_per_write, write_package

DEFAULT_BITS = 4
#: Chosen by measured quality: docs/experiments.md.
DEFAULT_GROUP = 64
DENSE_BITS = 8

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

    Memory stays bounded for a model of any size: one matrix of the checkpoint and one page are held at a time.

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
    optional = [tensors.final_norm_bias, tensors.head_bias]
    for layer in tensors.layers:
        yield from layer.parts.values()
        optional.append(layer.shared_gate)
        for mlp in (*layer.experts, *([] if layer.shared is None else [layer.shared])):
            yield from (mlp.gate, mlp.up, mlp.down)
            optional += [mlp.gate_bias, mlp.up_bias, mlp.down_bias]
    yield from (ref for ref in optional if ref is not None)


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
        self._done = 0

    def run(self) -> None:
        self._embedding()
        norm, bias = self._tensors.final_norm, self._tensors.final_norm_bias
        read = self._checkpoint.read_float32
        self._writer.add_final_norm(read(norm), None if bias is None else read(bias))
        for spec in build_tape(self._config, self._writer.spec.quantization):
            self._writer.add_page(spec, self._page(spec))
            self._advance(spec.bytes)
        for name in _EXTRAS:
            if (self._checkpoint.path / name).exists():
                self._writer.copy(self._checkpoint.path / name)

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
                into.view(np.float32).reshape(part.shape)[...] = float_part(self._checkpoint, self._tensors, spec, part)
            else:
                self._matrix(spec, part, into)
        return data

    def _matrix(self, spec: PageSpec, part: MatrixPart, into: np.ndarray) -> None:
        read = self._checkpoint.read_rows
        order = np.arange(part.outputs, dtype=np.int32)
        if spec.kind == "head":
            ref = self._tensors.head
            rows = read(ref, spec.first, spec.count)
        elif spec.kind == "attention":
            ref = self._tensors.layers[spec.layer].parts[part.name]
            rows = read(ref)
            order = order if ref.order is None else np.asarray(ref.order, np.int32)
        else:
            mlp = self._mlp(spec)
            if part.name == "down":
                ref = mlp.down
                rows = np.ascontiguousarray(read(ref)[:, spec.first : spec.first + spec.count])
            else:
                ref = mlp.gate
                self._same_dtype(mlp.gate, mlp.up)
                halves = [read(half, spec.first, spec.count) for half in (mlp.gate, mlp.up)]
                rows = np.concatenate(halves)
                order = interleave(spec.count, part.outputs)
        matrix = _native.Matrix(part.outputs, part.inputs, part.bits, part.group)
        source = rows.reshape(-1).view(np.uint8)
        bad = self._packer.pack(matrix, source, self._checkpoint.dtype(ref), part.source_inputs, order, into)
        if bad >= 0:
            raise CheckpointError(
                f"{self._checkpoint.tensors[ref.name].file.name}: tensor '{ref.name}' ({spec}) holds a value in row {bad} that "
                "is not finite or too large to quantise"
            )

    def _mlp(self, spec: PageSpec) -> MlpTensors:
        layer = self._tensors.layers[spec.layer]
        if spec.kind == "expert":
            return layer.experts[spec.expert]
        assert layer.shared is not None
        return layer.shared

    def _same_dtype(self, first: TensorRef, second: TensorRef) -> None:
        if self._checkpoint.dtype(first) != self._checkpoint.dtype(second):
            raise CheckpointError(f"tensors '{first.name}' and '{second.name}' must have one dtype")
