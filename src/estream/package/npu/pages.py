"""The tape of a package for the NPU. A page holds the weights of one or two graphs, as the graphs read them."""

from collections.abc import Iterator, Sequence
from functools import cache

from estream.host.sizes import round_up
from estream.models.config import ModelConfig
from estream.package.layout import PageKind, PageSpec
from estream.package.npu import graph_specs
from estream.package.npu.graph_specs import GraphSpec
from estream.package.npu.shapes import MlpShapes, NpuShapes
from estream.package.parts import PageLayout, TensorPart

#: Where tensors begin within a page. Pages begin at multiples of 64 KiB.
_ALIGNMENT = 256


@cache
def page_layout(shapes: NpuShapes, kind: PageKind) -> PageLayout:
    """Where the weights of a page's graphs lie in it."""
    return _layout(_graphs(shapes, kind))


def _graphs(shapes: NpuShapes, kind: PageKind) -> Sequence[GraphSpec]:
    match kind:
        case "attention":
            return graph_specs.qkv(shapes), graph_specs.output(shapes)
        case "router":
            return (graph_specs.route(shapes),)
        case "head":
            return (graph_specs.head(shapes),)
    part = mlp_shapes(shapes, kind)
    return (graph_specs.mlp(shapes, part, part.tiles[0]),)


def mlp_shapes(shapes: NpuShapes, kind: PageKind) -> MlpShapes:
    """The shapes of the MLPs in pages of this kind: experts, or MLPs that serve every row."""
    return shapes.expert if kind == "expert" or shapes.shared is None else shapes.shared


def _layout(graphs: Sequence[GraphSpec]) -> PageLayout:
    parts: list[TensorPart] = []
    end = 0
    for graph in graphs:
        bits = {f"{m.name}_codes": m.bits for m in graph.matrices}
        packed = {name for m in graph.matrices for name, _, _ in m.parts()}
        for tensor in graph.weights:
            parts.append(
                TensorPart(tensor.name, end, tensor.shape, tensor.dtype, tensor.name in packed, bits.get(tensor.name, 0))
            )
            end = round_up(end + tensor.bytes, _ALIGNMENT)
    return PageLayout(tuple(parts))


def build_tape(config: ModelConfig, shapes: NpuShapes) -> Iterator[PageSpec]:
    """All pages in the order of one sweep, as on other devices. MLPs lie in slices as wide as their graphs."""
    for layer in range(config.layers):
        yield PageSpec("attention", layer, -1, -1, 0, 0, page_layout(shapes, "attention"))
        yield PageSpec("router", layer, -1, -1, 0, 0, page_layout(shapes, "router"))
        if width := config.mlp_intermediate_size(layer):
            yield from _slices(shapes, "shared", layer, -1, width)
        if layer not in config.dense_layers:
            for expert in range(config.moe.experts):
                yield from _slices(shapes, "expert", layer, expert, config.moe.intermediate_size)
    rows = shapes.head.vocabulary
    for index, first in enumerate(range(0, config.vocabulary, rows)):
        count = min(rows, config.vocabulary - first)
        yield PageSpec("head", config.layers, -1, index, first, count, page_layout(shapes, "head"))


def _slices(shapes: NpuShapes, kind: PageKind, layer: int, expert: int, width: int) -> Iterator[PageSpec]:
    """The last slice may be narrower than its graph. The rest of its page is zeros."""
    step, layout = mlp_shapes(shapes, kind).slice_width, page_layout(shapes, kind)
    for index, first in enumerate(range(0, width, step)):
        yield PageSpec(kind, layer, expert, index if width > step else -1, first, min(step, width - first), layout)
