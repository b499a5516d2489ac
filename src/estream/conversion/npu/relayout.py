"""Makes the NPU's pages of the CPU's: the same integers and the same fp16 scales in another order.

So both devices hold the same model, and quantisation is written once, with or without a calibration text.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from estream.errors import CheckpointError
from estream.models.config import ModelConfig
from estream.package.layout import PageSpec, Quantization
from estream.package.npu import graph_specs
from estream.package.npu.matrices import MatrixSpec, pack_matrix
from estream.package.npu.pages import mlp_shapes, page_layout
from estream.package.npu.shapes import NpuShapes
from estream.package.parts import PANEL, SIMD_WIDTH, FloatPart, MatrixPart

#: Codes int8 [outputs, inputs] and scales float16 [outputs, groups] of a matrix.
Codes = tuple[np.ndarray, np.ndarray]


def source_quantization(config: ModelConfig, shapes: NpuShapes, group: int) -> Quantization:
    """How the CPU's pages are cut, of which the NPU's are made: heads as on the NPU, MLPs at the ends of the NPU's slices."""
    chosen = Quantization.choose(config, shapes.expert.bits, shapes.attention.bits, group)

    def slices(found: int, width: int, step: int) -> int:
        return next((n for n in range(found, 1, -1) if width % (n * step) == 0), 1)

    shared = mlp_shapes(shapes, "shared").slice_width
    return replace(
        chosen,
        head_rows=shapes.head.vocabulary,
        expert_slices=slices(chosen.expert_slices, config.moe.intermediate_size, shapes.expert.slice_width),
        shared_slices=slices(chosen.shared_slices, config.moe.shared_intermediate_size, shared),
        dense_slices=slices(chosen.dense_slices, config.intermediate_size, shared),
    )


def unpack_codes(part: MatrixPart, page: np.ndarray) -> Codes:
    """Codes and scales of a matrix of a CPU page, without padding (docs/package-format.md)."""
    blocks = page[part.offset : part.offset + part.bytes].reshape(part.panels, part.groups, part.block_bytes)
    stored, scales = blocks[..., : -2 * PANEL], blocks[..., -2 * PANEL :].copy().view(np.float16)
    if part.bits == 8:
        codes = (stored ^ np.uint8(128)).view(np.int8).reshape(part.panels, part.groups, part.group // 4, PANEL, 4)
    else:
        both = stored.reshape(part.panels, part.groups, part.group // 8, PANEL, 4)
        nibbles = np.stack([both & np.uint8(15), both >> np.uint8(4)], axis=3).view(np.int8) - np.int8(8)
        codes = nibbles.transpose(0, 1, 2, 4, 3, 5).reshape(part.panels, part.groups, part.group // 8, PANEL, 8)
    rows = codes.transpose(0, 3, 1, 2, 4).reshape(part.panels * PANEL, part.inputs)
    by_row = scales.transpose(0, 2, 1).reshape(part.panels * PANEL, part.groups)
    return rows[: part.outputs, : part.source_inputs], by_row[: part.outputs]


class Relayout:
    """Makes the NPU's pages of a model, one CPU page at a time."""

    def __init__(self, config: ModelConfig, shapes: NpuShapes) -> None:
        self._config = config
        self._shapes = shapes
        graphs = (graph_specs.qkv(shapes), graph_specs.output(shapes), graph_specs.head(shapes))
        self._matrices = {matrix.name: matrix for graph in graphs for matrix in graph.matrices}

    def pages(self, spec: PageSpec, page: np.ndarray) -> Iterator[tuple[PageSpec, np.ndarray]]:
        """The NPU's pages of one CPU page, uint8 [spec.bytes]: one for each slice that it holds.

        Raises:
            CheckpointError: a norm, bias, router weight or scale does not fit into fp16.

        """
        floats = {
            part.name: page[part.offset : part.offset + part.bytes].view(np.float32).reshape(part.shape)
            for part in spec.layout.parts
            if isinstance(part, FloatPart)
        }
        codes = {part.name: unpack_codes(part, page) for part in spec.layout.parts if isinstance(part, MatrixPart)}
        if spec.kind in ("expert", "shared"):
            yield from self._slices(spec, codes)
            return
        arrays = {name: _half(spec, name, values) for name, values in floats.items() if name != "router"}
        if spec.kind == "router":
            arrays |= self._router(spec, floats.get("router"))
        for name, found in codes.items():
            arrays |= _packed(self._matrices[name], found)
        yield self._page(replace(spec, layout=page_layout(self._shapes, spec.kind)), arrays)

    def _router(self, spec: PageSpec, router: np.ndarray | None) -> dict[str, np.ndarray]:
        """The router's float32 weights [hidden, experts and gate, padded], each as two fp16 values; zeros in a dense layer."""
        routing, hidden = self._shapes.routing, self._shapes.hidden
        weights = np.zeros((hidden, routing.experts), np.float32) if router is None else router[:, : routing.experts]
        high = _half(spec, "router", weights)
        arrays = {"router_high": high, "router_low": (weights - high).astype(np.float16)}
        if routing.shared_gate:
            gate = np.zeros((hidden, 1)) if router is None else router[:, routing.experts : routing.experts + 1]
            arrays["shared_gate"] = _half(spec, "shared_gate", gate)
        return arrays

    def _slices(self, spec: PageSpec, codes: Mapping[str, Codes]) -> Iterator[tuple[PageSpec, np.ndarray]]:
        part = mlp_shapes(self._shapes, spec.kind)
        (gate, up), down = _apart(codes["gate_up"], spec.count), codes["down"]
        whole = self._config.moe.intermediate_size if spec.kind == "expert" else self._config.mlp_intermediate_size(spec.layer)
        layout = page_layout(self._shapes, spec.kind)
        for begin in range(0, spec.count, part.slice_width):
            end, first = min(begin + part.slice_width, spec.count), spec.first + begin
            groups = slice(begin // part.group, -(-end // part.group))
            cut: dict[str, Codes] = {
                "gate": (gate[0][begin:end], gate[1][begin:end]),
                "up": (up[0][begin:end], up[1][begin:end]),
                "down": (down[0][:, begin:end], down[1][:, groups]),
            }
            arrays: dict[str, np.ndarray] = {}
            for matrix in part.matrices(self._shapes.hidden):
                arrays |= _packed(matrix, cut[matrix.name])
            index = first // part.slice_width if whole > part.slice_width else -1
            yield self._page(replace(spec, slice=index, first=first, count=end - begin, layout=layout), arrays)

    def _page(self, spec: PageSpec, arrays: Mapping[str, np.ndarray]) -> tuple[PageSpec, np.ndarray]:
        page = np.zeros(spec.bytes, np.uint8)
        for part in spec.layout.parts:
            into = page[part.offset : part.offset + part.bytes]
            into[...] = np.ascontiguousarray(arrays[part.name]).reshape(-1).view(np.uint8)[: part.bytes]
        return spec, page


def _apart(gate_up: Codes, width: int) -> tuple[Codes, Codes]:
    """The rows of gate and up, which alternate by 16."""
    parts = [array.reshape(-1, 2, SIMD_WIDTH, array.shape[1]) for array in gate_up]
    gate, up = ([array[:, i].reshape(-1, array.shape[-1])[:width] for array in parts] for i in (0, 1))
    return (gate[0], gate[1]), (up[0], up[1])


def _packed(spec: MatrixSpec, found: Codes) -> dict[str, np.ndarray]:
    """A matrix in the graph's layout, with zeros up to the size that the graph reads."""
    codes = np.zeros((spec.inputs, spec.outputs), np.int8)
    scales = np.zeros((spec.inputs // spec.group, spec.outputs), np.float16)
    codes[: found[0].shape[1], : found[0].shape[0]] = found[0].T
    scales[: found[1].shape[1], : found[1].shape[0]] = found[1].T
    return pack_matrix(spec, codes, scales)


def _half(spec: PageSpec, name: str, values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not np.isfinite(half).all():
        raise CheckpointError(f"{spec}: {name} holds {np.abs(values).max():g}, and the NPU computes in fp16, up to 65504")
    return half
