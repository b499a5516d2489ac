"""The sizes that are free to choose for a model's graphs: those found for published shapes, and candidates for all others.

graph_sizes.json holds what ``graph_search`` found for published shapes, with the figures of each graph.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from typing import Any

from estream.errors import OptionError
from estream.host.sizes import round_up
from estream.models.config import ModelConfig
from estream.package.npu.graph_specs import graph_specs
from estream.package.npu.shapes import LARGEST_BLOCK, AttentionShapes, HeadShapes, MlpShapes, NpuShapes, RoutingShapes

#: Inputs that share a scale.
GROUP = 32
#: Bits of attention, shared experts, dense layers and head: they serve every token, and 4 bits cost accuracy there.
DENSE_BITS = 8
LARGEST_COUNT = 12

_HEAD_ROWS = 16
#: What the slices of an expert may hold together, over its intermediate values.
_LARGEST_PADDING = 1.05


@dataclass(frozen=True)
class GraphSizes:
    """What is free to choose for the graphs of one model.

    ``slice_width`` is the number of intermediate values in a slice of an expert, ``tiles`` the rows of its graphs. Attention
    takes ``chunk`` tokens, routing ``tokens`` of them, gathering and combining a ``window`` of slots, and a slice of the head
    has ``vocabulary`` entries.
    """

    slice_width: int
    tiles: tuple[int, ...]
    chunk: int
    tokens: int
    window: int
    vocabulary: int


@functools.cache
def table() -> Mapping[str, Any]:
    """graph_sizes.json: ``toolchain`` versions; by shape ``key``, ``sizes`` and ``graphs`` (figures by SoC and graph)."""
    loaded: dict[str, Any] = json.loads(files(__package__).joinpath("graph_sizes.json").read_text())
    return loaded


def stored_sizes(config: ModelConfig, bits: int) -> GraphSizes | None:
    """The graph sizes in the table for a model of this shape with experts of ``bits``; None where it has none."""
    wanted = _key(config, bits)
    found = next((shape["sizes"] for shape in table()["shapes"].values() if shape["key"] == wanted), None)
    return None if found is None else GraphSizes(**{**found, "tiles": tuple(found["tiles"])})


def candidates(config: ModelConfig, bits: int) -> Iterator[GraphSizes]:
    """Graph sizes to try, from the fewest calls to the smallest graphs: each slice width with ever fewer of the tiles."""
    hidden, shared = config.hidden, bool(config.moe.shared_intermediate_size or config.dense_layers)
    tokens = min(1024, max(128, (2 << 20) // hidden // 128 * 128), round_up(config.context, 128))
    sizes = GraphSizes(
        slice_width=0,
        tiles=(),
        chunk=128,
        tokens=tokens,
        window=min(1024, (2 << 20) // hidden // 128 * 128, tokens * config.moe.top_k),
        vocabulary=_vocabulary(config),
    )
    # A graph for the MLPs of all tokens takes the place of the largest tile.
    tiles = (16, 32, 64, 128) if shared and bits != DENSE_BITS else (16, 32, 64, 128, 256)
    for width in _slice_widths(hidden, config.moe.intermediate_size, bits):
        for end in range(len(tiles), 2, -1):
            yield replace(sizes, slice_width=width, tiles=tiles[:end])


def _slice_widths(hidden: int, intermediate_size: int, bits: int) -> list[int]:
    """Widths of equal slices of an expert, falling: whole groups, with little padding."""
    step = GROUP * (2 if bits == 4 else 1)
    limit = (2 << 20) // hidden if hidden <= 2048 else (1 << 20) // hidden
    slices = max(1, -(-intermediate_size // max(limit, step)))
    counts = range(slices, 4 * slices + 1)
    padded = {count: round_up(-(-intermediate_size // count), step) for count in counts}
    most = max(_LARGEST_PADDING * intermediate_size, min(count * padded[count] for count in counts))
    return list(dict.fromkeys(padded[count] for count in counts if count * padded[count] <= most))


def _vocabulary(config: ModelConfig) -> int:
    """About 8 MiB of the head, in whole blocks."""
    block = max(32, LARGEST_BLOCK // config.hidden // 32 * 32)
    entries = round_up(config.vocabulary, 32)
    return entries if entries <= block else min(8 * block, round_up(entries, block))


def npu_shapes(config: ModelConfig, bits: int, sizes: GraphSizes) -> NpuShapes:
    """Everything that is fixed when a model's graphs are compiled.

    Raises:
        OptionError: the model's sizes do not fit the NPU's graphs, or there are too many tiles.

    """
    a, moe = config.attention, config.moe
    latent = a.latent
    found = NpuShapes(
        hidden=config.hidden,
        norm_eps=config.norm_eps,
        attention=AttentionShapes(
            heads=a.heads,
            kv_heads=a.kv_heads,
            qk_dim=a.head_dim,
            v_dim=a.value_dim,
            rotated=a.rope.dims,
            scale=a.scale,
            chunk=sizes.chunk,
            bits=DENSE_BITS,
            group=GROUP,
            qk_norm=a.qk_norm,
            bias=a.input_bias,
            clip=a.clip_qkv or 0.0,
            kv_lora_rank=latent.kv_lora_rank if latent else 0,
            q_lora_rank=latent.q_lora_rank if latent else 0,
            latent_eps=latent.norm_eps if latent else 0.0,
        ),
        routing=RoutingShapes(
            experts=moe.experts,
            top_k=moe.top_k,
            tokens=sizes.tokens,
            window=sizes.window,
            norm_topk_prob=moe.norm_topk_prob,
            routed_scaling_factor=moe.routed_scaling_factor,
            n_group=moe.n_group,
            topk_group=moe.topk_group,
            shared_gate=moe.shared_gate,
        ),
        expert=MlpShapes(sizes.slice_width, bits, GROUP, sizes.tiles),
        head=HeadShapes(_HEAD_ROWS, sizes.vocabulary, DENSE_BITS, GROUP),
        shared=_shared(config, bits, sizes),
    )
    if (count := len(graph_specs(found))) > LARGEST_COUNT:
        raise OptionError(f"{count} graphs for {config.family}: at most {LARGEST_COUNT}; choose fewer tiles than {sizes.tiles}")
    return found


def _shared(config: ModelConfig, bits: int, sizes: GraphSizes) -> MlpShapes | None:
    if not (config.moe.shared_intermediate_size or config.dense_layers):
        return None
    return MlpShapes(sizes.slice_width, DENSE_BITS, GROUP, sizes.tiles if bits == DENSE_BITS else (128,))


def entry(config: ModelConfig, bits: int, sizes: GraphSizes) -> dict[str, Any]:
    """A shape of the table, without its figures."""
    return {"key": _key(config, bits), "sizes": asdict(sizes), "graphs": {}}


def _key(config: ModelConfig, bits: int) -> dict[str, Any]:
    """What graph sizes depend on."""
    moe, a = config.moe, config.attention
    return {
        "hidden": config.hidden,
        "intermediate_size": moe.intermediate_size,
        "bits": bits,
        "experts": moe.experts,
        "top_k": moe.top_k,
        "heads": [a.heads, a.kv_heads, a.head_dim, a.value_dim],
        "shared": bool(moe.shared_intermediate_size or config.dense_layers),
    }
