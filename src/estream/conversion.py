"""From a checkpoint to a package, tensor by tensor, in bounded memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from estream.checkpoint.hub import resolve
from estream.checkpoint.huggingface import HfCheckpoint
from estream.errors import OptionError
from estream.models import family_of
from estream.models.config import ModelConfig, ModelTensors, TensorRef
from estream.package.layout import GROUPS, Quantization, build_tape
from estream.package.package import Package, open_package
from estream.package.writer import PackageSpec, PackageWriter, embedding_rows_per_write, write_package
from estream.quantization.calibration import Calibration, read_embeddings
from estream.quantization.packing import PagePacker
from estream.quantization.text import calibration_windows
from estream.quantization.weights import PageWeights

DEFAULT_BITS = 4
#: Chosen by measured quality: docs/experiments.md.
DEFAULT_GROUP = 64
DENSE_BITS = 8

_EXTRAS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")

#: Called with bytes written so far and in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ConvertOptions:
    """``bits`` of the experts (attention and head have 8), ``group`` inputs that share a scale, ``force`` to replace,
    ``calibrate`` a text (or an ``.npy`` file of token ids) for whose activations the experts' codes are chosen.
    """

    bits: int = DEFAULT_BITS
    group: int = DEFAULT_GROUP
    device: str = "cpu"
    force: bool = False
    calibrate: str | Path | None = None

    def check(self) -> None:
        """Raises OptionError."""
        if self.bits not in (4, 8):
            raise OptionError(f"--bits must be 4 or 8, not {self.bits}")
        if self.group not in GROUPS:
            raise OptionError(f"--group must be one of {', '.join(map(str, sorted(GROUPS)))}, not {self.group}")
        if self.device != "cpu":
            raise OptionError(f"--device must be cpu, not '{self.device}'")
        if self.calibrate is not None and self.bits != 4:
            raise OptionError("--calibrate chooses 4-bit codes; 8 bits need no calibration, leave it out")


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
    calibration = None
    if options.calibrate is not None:
        windows = calibration_windows(Path(options.calibrate), checkpoint.path, config)
        embeddings = read_embeddings(checkpoint, tensors.embedding, windows)
        calibration = Calibration(config, spec.quantization, windows, embeddings, Path(options.calibrate).name)
    with write_package(destination, spec, options.force) as writer:
        _Conversion(checkpoint, config, tensors, writer, progress, calibration).run()
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
        checkpoint: HfCheckpoint,
        config: ModelConfig,
        tensors: ModelTensors,
        writer: PackageWriter,
        progress: Progress | None,
        calibration: Calibration | None,
    ) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._tensors = tensors
        self._writer = writer
        self._progress = progress
        self._weights = PageWeights(checkpoint, config, tensors)
        self._packer = PagePacker(checkpoint, self._weights, calibration)
        self._done = 0

    def run(self) -> None:
        self._embedding()
        self._writer.add_final_norm(self._weights.final_norm())
        for spec in build_tape(self._config, self._writer.spec.quantization):
            self._writer.add_page(spec, self._packer.page(spec))
            self._advance(spec.bytes)
        self._writer.report = self._packer.report(self._config.layers)
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
