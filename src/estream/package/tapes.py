"""The tape by device: each lays pages out in its own way."""

from collections.abc import Iterator, Sequence

from estream.models.config import ModelConfig
from estream.package.layout import MLP, PageSpec, Quantization, build_tape
from estream.package.npu import pages as npu
from estream.package.npu.shapes import NpuShapes


def tape_of(
    config: ModelConfig,
    quantization: Quantization,
    shapes: NpuShapes | None,
    order: Sequence[Sequence[int]] | None = None,
) -> Iterator[PageSpec]:
    """All pages in the order one sweep uses them; ``shapes`` are those of the NPU's graphs in a package for it, whose experts
    lie by id. ``order`` is that of ``build_tape``.
    """
    if shapes is None:
        return build_tape(config, quantization, order)
    assert order is None
    return npu.build_tape(config, shapes)


def count_pages(config: ModelConfig, quantization: Quantization, shapes: NpuShapes | None) -> int:
    """How many pages the tape has, without listing them: sizes from a file may imply more than memory holds."""
    moe, dense = config.moe, len(config.dense_layers)
    if shapes is None:
        expert, head = quantization.expert_slices, quantization.head_rows
        shared, of_dense = quantization.shared_slices, quantization.dense_slices
    else:
        width, head = npu.mlp_shapes(shapes, MLP).slice_width, shapes.head.vocabulary
        expert = -(-moe.intermediate_size // shapes.expert.slice_width)
        shared, of_dense = -(-moe.shared_intermediate_size // width), -(-config.intermediate_size // width)
    # An MLP without width has no pages, whatever the slices.
    sparse = (shared if moe.shared_intermediate_size else 0) + moe.experts * expert
    return (
        2 * config.layers
        + (config.layers - dense) * sparse
        + dense * (of_dense if config.intermediate_size else 0)
        + -(-config.vocabulary // head)
    )
