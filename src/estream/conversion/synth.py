"""Writes packages of published shapes with random weights, for benchmarks and capacity tests without a download."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from estream.conversion.convert import DEFAULT_GROUP, DENSE_BITS, ConvertOptions, Progress
from estream.conversion.npu.target import NpuTarget
from estream.conversion.skew import RoutingSkew
from estream.errors import OptionError
from estream.models import family_of
from estream.models.config import ModelConfig
from estream.models.published_shapes import SHAPES
from estream.package.layout import PageSpec, Quantization, build_tape
from estream.package.package import Package, open_package
from estream.package.parts import FloatPart, MatrixPart
from estream.package.writer import PackageSpec, embedding_rows_per_write, write_package

#: Standard deviation of the weights: ``initializer_range`` of these models.
_DEVIATION = 0.02
_NOISE_BYTES = 64 << 20
#: A topic's experts are then always the same few.
MOST_SKEW = 10.0


@dataclass(frozen=True)
class Variation:
    """In what a synthetic model differs from one of its shape with random weights.

    Args:
        routing_skew: how unevenly experts are used; 0: evenly, 1: as in a trained model of 256 experts (docs/synthetic.md).
        layers: the first so many layers alone; None: all.

    """

    routing_skew: float = 0.0
    layers: int | None = None

    def config(self, family: str) -> ModelConfig:
        """The model of the shape ``family``. Raises OptionError if a value is out of range or the shape is not known."""
        if family not in SHAPES:
            raise OptionError(f"'{family}' is not a known shape; known: {', '.join(SHAPES)}")
        if not 0.0 <= self.routing_skew <= MOST_SKEW:
            raise OptionError(f"--routing-skew must be 0 to {MOST_SKEW:g}, not {self.routing_skew:g}")
        values = SHAPES[family]
        config = family_of(values).read_config(values)
        if self.layers is None:
            return config
        fewest = len(config.dense_layers) + 1
        if not fewest <= self.layers <= config.layers:
            raise OptionError(
                f"--layers must be {fewest} to {config.layers} for {family}, with a layer of experts, not {self.layers}"
            )
        values = {**values, "num_hidden_layers": self.layers}
        return family_of(values).read_config(values)


def synthesize(
    family: str,
    destination: str | Path,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
    variation: Variation | None = None,
) -> Package:
    """Write a package of the shape ``family`` with random weights, marked synthetic. Equal arguments give equal bytes.

    Raises:
        OptionError: the shape is not known, or an option cannot be used.
        PackageError: writing failed.

    """
    options = options or ConvertOptions()
    options.check()
    variation = variation or Variation()
    config = variation.config(family)
    npu = NpuTarget.of(config, options.bits, options.soc) if options.device == "qnn" else None
    cut = npu.source if npu else Quantization.choose(config, options.bits, DENSE_BITS, options.group or DEFAULT_GROUP)
    source: dict[str, Any] = {"kind": "synthetic", "name": family}
    skew = RoutingSkew(config, variation.routing_skew, _DEVIATION) if variation.routing_skew else None
    if skew:
        source["routing_skew"] = variation.routing_skew
    stored, section = (npu.quantization, npu.section) if npu else (cut, None)
    spec = PackageSpec(options.device, config, stored, "bfloat16", True, source, section)
    random = _RandomPages(config.layers)
    done = 0
    with write_package(Path(destination), spec, options.force) as writer:
        step = embedding_rows_per_write(spec)
        for first in range(0, config.vocabulary, step):
            rows = random.embedding(config, min(step, config.vocabulary - first))
            if skew:
                rows = skew.embedding(rows, first)
            writer.add_embedding_rows(rows)
            done += rows.nbytes
        writer.add_final_norm(np.ones(config.hidden, np.float32))
        for page in build_tape(config, cut):
            data = random.page(page)
            if skew:
                skew.page(page, data)
            for written, content in npu.pages(page, data) if npu else [(page, data)]:
                writer.add_page(written, content)
                done += written.bytes
                if progress:
                    progress(done, spec.bytes)
        for name, context in npu.files.items() if npu else ():
            writer.add_file(name, context)
    return open_package(destination, options.device)


class _RandomPages:
    """Random pages: codes are copied from random places of one block of noise, which is much faster than generating them."""

    def __init__(self, layers: int) -> None:
        # Output projections are scaled as in GPT-2. Otherwise tokens become similar in deep layers, and few experts are used.
        self._output_scale = (2 * layers) ** -0.5
        self._rng = np.random.default_rng(0)
        self._noise = self._rng.integers(0, 256, _NOISE_BYTES, dtype=np.uint8)
        self._normal = self._rng.standard_normal(1 << 22, dtype=np.float32)
        # One buffer for all pages of a size, since fresh memory takes longer than filling it.
        self._buffers: dict[int, np.ndarray] = {}

    def _cut(self, source: np.ndarray, count: int) -> np.ndarray:
        if count > len(source) // 2:
            return np.resize(source, count)
        start = int(self._rng.integers(0, len(source) - count))
        return source[start : start + count]

    def embedding(self, config: ModelConfig, rows: int) -> np.ndarray:
        """Return standard normal values as bfloat16 bits, uint16 [rows, hidden]."""
        bits = self._normal.view(np.uint32) >> 16
        return self._cut(bits.astype(np.uint16), rows * config.hidden).reshape(rows, config.hidden)

    def page(self, spec: PageSpec) -> np.ndarray:
        """Return a page, uint8 [spec.bytes], which stays valid until the next page of this size."""
        if spec.bytes not in self._buffers:
            self._buffers[spec.bytes] = np.zeros(spec.bytes, np.uint8)
        data = self._buffers[spec.bytes]
        for part in spec.layout.parts:
            into = data[part.offset : part.offset + part.bytes]
            if isinstance(part, MatrixPart):
                self._matrix(part, into)
            elif isinstance(part, FloatPart):
                self._floats(part, into.view(np.float32).reshape(part.shape))
        return data

    def _matrix(self, part: MatrixPart, into: np.ndarray) -> None:
        blocks = into.reshape(part.panels * part.groups, part.block_bytes)
        codes = part.block_bytes - 64
        blocks[:, :codes] = self._cut(self._noise, len(blocks) * codes).reshape(len(blocks), codes)
        # The standard deviation of uniform codes is 2^bits / sqrt(12).
        deviation = _DEVIATION * (self._output_scale if part.name in ("o", "down") else 1.0)
        scale = np.float16(deviation / (2**part.bits / 12**0.5))
        blocks[:, codes:].view(np.float16)[...] = scale

    def _floats(self, part: FloatPart, into: np.ndarray) -> None:
        if part.name.endswith("norm"):
            into[...] = 1.0
        else:
            into[...] = self._cut(self._normal, into.size).reshape(into.shape) * np.float32(_DEVIATION)
