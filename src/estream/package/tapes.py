"""The tape by device: each lays pages out in its own way."""

from collections.abc import Iterator

from estream.models.config import ModelConfig
from estream.package.layout import PageSpec, Quantization, build_tape
from estream.package.npu import pages as npu
from estream.package.npu.shapes import NpuShapes


def tape_of(config: ModelConfig, quantization: Quantization, shapes: NpuShapes | None) -> Iterator[PageSpec]:
    """All pages in the order one sweep uses them; ``shapes`` are those of the NPU's graphs in a package for it."""
    return build_tape(config, quantization) if shapes is None else npu.build_tape(config, shapes)
