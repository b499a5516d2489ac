"""Converts a checkpoint to a package, page by page, in bounded memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from estream.checkpoint.left_out import check_tied_head, left_out_notes
from estream.checkpoint.opening import open_checkpoint
from estream.checkpoint.source import CheckpointSource
from estream.conversion.memory import Beside, Pace, choose_pace
from estream.conversion.npu.target import NPU_GROUP, NpuTarget
from estream.errors import CheckpointError, OptionError
from estream.host.buffers import BUFFERS
from estream.host.kernels import check_kernels
from estream.host.read_ahead import Limits, ReadAhead, WriteBehind
from estream.host.sizes import MiB
from estream.models import family_of
from estream.models.config import ModelConfig, ModelTensors, TensorRef
from estream.models.reading import read_model
from estream.package.layout import PageSpec, Quantization, build_tape
from estream.package.manifest import EMBEDDING_ITEM_BYTES
from estream.package.package import Package, open_package
from estream.package.parts import GROUPS
from estream.package.writer import PackageSpec, PackageWriter, write_package
from estream.quantization.calibration import Calibration, read_embeddings
from estream.quantization.calibration_memory import text_bytes
from estream.quantization.packing import PagePacker
from estream.quantization.summary import experts_keep_codes, matrix_notes, preferred_group, summarise
from estream.quantization.text import calibration_windows
from estream.quantization.use import TextUse
from estream.quantization.weights import PageWeights
from estream.text.check_tokenizer import check_tokenizer

DEFAULT_BITS = 4
#: Chosen by measured quality (docs/experiments.md).
DEFAULT_GROUP = 64
DENSE_BITS = 8
#: Three reads in flight keep a disk busy; the bytes bound the memory of pages read ahead of packing.
READING = Limits(workers=3, bytes=64 * MiB)

#: Called with the bytes written so far and the bytes of the whole package.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ConvertOptions:
    """Options of a conversion.

    Args:
        bits: of the experts' weights, 4 or 8; all other matrices have 8.
        group: inputs that share a scale. None: the source's group if that keeps its codes, else DEFAULT_GROUP.
        device: "cpu" or "qnn", the device that will run the package.
        force: replace an existing package.
        calibrate: a text, or an ``.npy`` file of token ids, by which experts lie most used first, and for which their 4-bit
            codes are chosen where they are not kept as the source has them.
        soc: for "qnn", the chips that the package holds compiled graphs for. None: all known chips; empty: compile at loading.

    """

    bits: int = DEFAULT_BITS
    group: int | None = None
    device: str = "cpu"
    force: bool = False
    calibrate: str | Path | None = None
    soc: tuple[str, ...] | None = None

    def check(self) -> None:
        """Raise OptionError if an option has an unsupported value or contradicts another."""
        check_kernels()
        if self.bits not in (4, 8):
            raise OptionError(f"--bits must be 4 or 8, not {self.bits}")
        if self.group is not None and self.group not in GROUPS:
            raise OptionError(f"--group must be one of {', '.join(map(str, sorted(GROUPS)))}, not {self.group}")
        if self.device not in ("cpu", "qnn"):
            raise OptionError(f"--device must be cpu or qnn, not '{self.device}'")
        if self.device == "qnn" and self.group not in (None, NPU_GROUP):
            raise OptionError(
                f"--group must be {NPU_GROUP} with --device qnn, not {self.group}: the NPU's graphs read groups of {NPU_GROUP}"
            )
        if self.device == "cpu" and self.soc is not None:
            raise OptionError("--soc names chips with an NPU; give it with --device qnn")


def convert(
    source: str | Path, destination: str | Path, options: ConvertOptions | None = None, progress: Progress | None = None
) -> Package:
    """Convert a Hugging Face folder or hub id, or a GGUF file (any part of a split one), to a package.

    Memory does not grow with the model: only a few pages are read ahead of packing and written behind it.

    Raises:
        CheckpointError: the checkpoint is not supported, incomplete or damaged, or holds an unknown tensor.
        OptionError: an option or the destination cannot be used.
        BudgetError: it does not fit into the memory that is free.
        PackageError: writing failed. Nothing is left at the destination.

    """
    options = options or ConvertOptions()
    options.check()
    checkpoint = open_checkpoint(str(source))
    try:
        family = family_of(checkpoint.config)
        config = read_model(family, checkpoint.config, [tensor.shape for tensor in checkpoint.tensors.values()])
        tensors = family.tensors(config, frozenset(checkpoint.tensors))
    except CheckpointError as error:
        raise CheckpointError(checkpoint.in_its_words(str(error))) from error
    checkpoint.check(list(all_refs(tensors)), frozenset(tensors.ignored))
    for name, content in checkpoint.extras():
        check_tokenizer({name: content}, f"{source}: {name}")
    destination = Path(destination)
    npu = NpuTarget.of(config, options.bits, options.soc) if options.device == "qnn" else None
    group = NPU_GROUP if npu else options.group or preferred_group(checkpoint, tensors, options.bits, DEFAULT_GROUP)
    spec = PackageSpec(
        device=options.device,
        config=config,
        quantization=npu.quantization if npu else Quantization.choose(config, options.bits, DENSE_BITS, group),
        embedding_dtype=checkpoint.dtype(tensors.embedding),
        synthetic=False,
        source=checkpoint.fingerprint(),
        npu=npu.section if npu else None,
    )
    cut = npu.source if npu else spec.quantization
    windows = None if options.calibrate is None else calibration_windows(Path(options.calibrate), checkpoint.path, config)
    chooses = cut.expert_bits == 4 and not experts_keep_codes(checkpoint, tensors, cut)
    beside = Beside(
        held=sum(map(len, npu.files.values())) if npu else 0,
        text=0 if windows is None else text_bytes(config, cut, windows, chooses),
        text_pages=0 if windows is None else (Calibration if chooses else TextUse).PAGES,
        reordered=npu is not None,
    )
    pace = choose_pace(spec, checkpoint, tensors, build_tape(config, cut), READING, beside)
    text: Calibration | TextUse | None = None
    if windows is not None:
        embeddings = read_embeddings(checkpoint, tensors.embedding, windows)
        if chooses:
            final_norm = PageWeights(checkpoint, config, tensors).final_norm()
            text = Calibration(config, cut, windows, embeddings, final_norm, Path(options.calibrate or "").name)
        else:
            text = TextUse(config, cut, windows, embeddings)
        del embeddings
    try:
        with write_package(destination, spec, options.force) as writer:
            _Conversion(checkpoint, tensors, writer, npu, text, pace).run(progress)
    finally:
        BUFFERS.clear()
    return open_package(destination, options.device)


def all_refs(tensors: ModelTensors) -> Iterator[TensorRef]:
    """Yield every tensor, or part of a tensor, that a package is made of."""
    yield from (tensors.embedding, tensors.final_norm, tensors.head)
    optional = [tensors.final_norm_bias, tensors.head_bias, tensors.repeated]
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
        checkpoint: CheckpointSource,
        tensors: ModelTensors,
        writer: PackageWriter,
        npu: NpuTarget | None,
        text: Calibration | TextUse | None,
        pace: Pace,
    ) -> None:
        self._pace = pace
        self._checkpoint = checkpoint
        self._config: ModelConfig = writer.spec.config
        self._tensors = tensors
        self._writer = writer
        self._npu = npu
        self._progress: Progress | None = None
        self._weights = PageWeights(checkpoint, self._config, tensors)
        self._packer = PagePacker(checkpoint, text)
        self._use = text.use if text else None
        self._done = 0

    def run(self, progress: Progress | None) -> None:
        self._progress = progress
        self._embedding()
        self._writer.add_final_norm(*self._weights.final_norm())
        quantization = self._npu.source if self._npu else self._writer.spec.quantization
        with WriteBehind(self._writer.add_page, self._pace.waiting) as out:
            for stretch in self._stretches(quantization):
                self._pages(stretch, out)
        self._writer.report = self._packer.report(self._config.layers)
        if self._use is not None:
            self._writer.use = self._use.use()
            self._writer.expert_order = None if self._npu else tuple(self._use.order)
        for name, content in (*self._checkpoint.extras(), *(self._npu.files.items() if self._npu else ())):
            self._writer.add_file(name, content)
        matrices = matrix_notes(self._checkpoint, self._tensors, quantization)
        notes = [*matrices, *left_out_notes(self._tensors.ignored), *self._checkpoint.notes]
        self._writer.spec.source["conversion"] = summarise(self._packer.tallies, notes)

    def _stretches(self, quantization: Quantization) -> Iterator[Iterator[PageSpec]]:
        """The tape in stretches that may be read ahead. Where a text says in which order experts lie, a stretch ends with each
        router: what it chooses is known when its page has been computed.
        """
        if self._use is None or self._npu is not None:
            yield build_tape(self._config, quantization)
            return
        tape = build_tape(self._config, quantization, self._use.order)
        for _ in range(self._config.layers + 1):
            yield _up_to_router(tape)

    def _pages(self, tape: Iterator[PageSpec], out: WriteBehind[PageSpec, np.ndarray]) -> None:
        with ReadAhead(tape, self._weights.read, self._weights.read_bytes, self._pace.reading) as pages:
            for spec, rows in pages:
                for written, data in self._written(spec, self._packer.page(spec, rows)):
                    out.put(written, data)
                    self._advance(written.bytes)
                # Rows are large: drop them before waiting for the next page.
                del rows

    def _written(self, spec: PageSpec, page: np.ndarray) -> Iterator[tuple[PageSpec, np.ndarray]]:
        """The pages of the device that a packed CPU page becomes."""
        if self._npu is None:
            yield spec, page
        else:
            yield from self._npu.pages(spec, page)

    def _advance(self, size: int) -> None:
        self._done += size
        if self._progress:
            self._progress(self._done, self._writer.spec.bytes)

    def _embedding(self) -> None:
        step = self._pace.embedding_rows
        size = step * self._config.hidden * EMBEDDING_ITEM_BYTES[self._writer.spec.embedding_dtype]
        blocks = range(0, self._config.vocabulary, step)
        with (
            ReadAhead(blocks, lambda first: self._embedding_rows(first, step), lambda _: size, self._pace.reading) as read,
            WriteBehind(self._write_embedding, self._pace.waiting) as out,
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
        if self._tensors.repeated is not None:
            check_tied_head(self._checkpoint, self._tensors.repeated, ref, first, rows)
        return rows


def _up_to_router(tape: Iterator[PageSpec]) -> Iterator[PageSpec]:
    """The next pages, up to a router's or the last one."""
    for page in tape:
        yield page
        if page.kind == "router":
            return


def all_finite(rows: np.ndarray, dtype: str) -> bool:
    """Return whether all values are finite; ``rows`` holds float32, or the bits of float16 or bfloat16."""
    if dtype == "float32":
        return bool(np.isfinite(rows).all())
    exponent = np.uint16(0x7C00 if dtype == "float16" else 0x7F80)
    # 64 rows at once, so that the intermediate results stay in the cache.
    pieces = (rows[at : at + 64] for at in range(0, len(rows), 64))
    return not any(((piece & exponent) == exponent).any() for piece in pieces)
