"""Which sizes a model's graphs get, so that no graph of an expert spills or reads anything twice.

The compiler's own account of the memory traffic decides (``compiler.Traffic``). For models of published shapes the sizes
were searched and lie in graph_sizes.json with the figures; for others a rule made from those gives them.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from typing import Any

from estream.conversion.npu.compiler import Compiled, compile_model
from estream.devices.qnn.graphs import build
from estream.errors import OptionError
from estream.host.sizes import round_up
from estream.models.config import ModelConfig
from estream.package.npu.graph_specs import GraphSpec, graph_specs, mlp
from estream.package.npu.shapes import LARGEST_BLOCK, AttentionShapes, HeadShapes, MlpShapes, NpuShapes, RoutingShapes

#: Inputs that share a scale.
GROUP = 32
#: Bits of attention, shared experts, dense layers and head: they serve every token, and 4 bits cost accuracy there.
DENSE_BITS = 8
LARGEST_COUNT = 12
#: What a graph of an expert may read, over its weights and activations.
LARGEST_EXCESS = 1.05

_HEAD_ROWS = 16
#: What equal slices of an expert may hold over its width.
_LARGEST_PADDING = 1.05


@dataclass(frozen=True)
class Sizes:
    """What is free to choose: the slice of an expert and the rows of its graphs, tokens of an attention chunk, of a routing
    group and slots of a window, and vocabulary entries of a slice of the head.
    """

    width: int
    tiles: tuple[int, ...]
    chunk: int
    tokens: int
    window: int
    vocabulary: int


@dataclass(frozen=True)
class Figures:
    """What the compiler says of one graph for one SoC, in bytes; ``ideal`` is the size of its inputs, ``context`` that of
    its binary.
    """

    read: int
    ideal: int
    written: int
    spilled: int
    context: int

    @staticmethod
    def of(spec: GraphSpec, compiled: Compiled) -> "Figures":
        traffic, ideal = compiled.traffic, sum(tensor.bytes for tensor in spec.inputs)
        return Figures(traffic.read, ideal, traffic.written, traffic.spilled, len(compiled.context))

    @property
    def passes(self) -> bool:
        """No spill, and nothing is read twice."""
        return self.spilled == 0 and self.read <= LARGEST_EXCESS * self.ideal


@functools.cache
def table() -> Mapping[str, Any]:
    """graph_sizes.json: ``toolchain`` versions; by shape ``key``, ``sizes`` and ``graphs`` (figures by SoC and graph)."""
    loaded: dict[str, Any] = json.loads(files(__package__).joinpath("graph_sizes.json").read_text())
    return loaded


def choose(config: ModelConfig, bits: int) -> NpuShapes:
    """The sizes of all graphs of a model with experts of ``bits``.

    Raises:
        OptionError: the model's sizes do not fit the NPU's graphs.

    """
    return shapes(config, bits, sizes_of(config, bits))


def sizes_of(config: ModelConfig, bits: int) -> Sizes:
    """Those that were searched; else, by rule, the first candidate."""
    wanted = _key(config, bits)
    found = next((shape["sizes"] for shape in table()["shapes"].values() if shape["key"] == wanted), None)
    return next(candidates(config, bits)) if found is None else Sizes(**{**found, "tiles": tuple(found["tiles"])})


def candidates(config: ModelConfig, bits: int) -> Iterator[Sizes]:
    """From the fewest calls to the smallest graphs: slices of the experts, each with the tiles from all down to small ones."""
    hidden, shared = config.hidden, bool(config.moe.shared_intermediate_size or config.dense_layers)
    tokens = min(1024, max(128, (2 << 20) // hidden // 128 * 128), round_up(config.context, 128))
    sizes = Sizes(
        width=0,
        tiles=(),
        chunk=128,
        tokens=tokens,
        window=min(1024, (2 << 20) // hidden // 128 * 128, tokens * config.moe.top_k),
        vocabulary=_vocabulary(config),
    )
    step = GROUP * (2 if bits == 4 else 1)
    limit = (2 << 20) // hidden if hidden <= 2048 else (1 << 20) // hidden
    slices = max(1, -(-config.moe.intermediate_size // max(limit, step)))
    # A graph for the MLPs of all tokens takes the place of the largest tile.
    tiles = (16, 32, 64, 128) if shared and bits != DENSE_BITS else (16, 32, 64, 128, 256)
    counts = range(slices, 4 * slices + 1)
    padded = {count: round_up(-(-config.moe.intermediate_size // count), step) for count in counts}
    most = max(_LARGEST_PADDING * config.moe.intermediate_size, min(count * padded[count] for count in counts))
    for count in counts:
        if count * padded[count] <= most:
            for end in range(len(tiles), 2, -1):
                yield replace(sizes, width=padded[count], tiles=tiles[:end])


def _vocabulary(config: ModelConfig) -> int:
    """About 8 MiB of the head, in whole blocks."""
    block = max(32, LARGEST_BLOCK // config.hidden // 32 * 32)
    entries = round_up(config.vocabulary, 32)
    return entries if entries <= block else min(8 * block, round_up(entries, block))


def shapes(config: ModelConfig, bits: int, sizes: Sizes) -> NpuShapes:
    """Everything that is fixed when a model's graphs are compiled."""
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
        expert=MlpShapes(sizes.width, bits, GROUP, sizes.tiles),
        head=HeadShapes(_HEAD_ROWS, sizes.vocabulary, DENSE_BITS, GROUP),
        shared=_shared(config, bits, sizes),
    )
    if (count := len(graph_specs(found))) > LARGEST_COUNT:
        raise OptionError(f"{count} graphs for {config.family}: at most {LARGEST_COUNT}; choose fewer tiles than {sizes.tiles}")
    return found


def _shared(config: ModelConfig, bits: int, sizes: Sizes) -> MlpShapes | None:
    if not (config.moe.shared_intermediate_size or config.dense_layers):
        return None
    return MlpShapes(sizes.width, DENSE_BITS, GROUP, sizes.tiles if bits == DENSE_BITS else (128,))


def figures(spec: GraphSpec, found: NpuShapes, soc: str) -> Figures:
    """Compile a graph and take its figures. Raises DeviceError where the compiler refuses."""
    return Figures.of(spec, compile_model(spec.name, build(spec, found), soc))


def search(config: ModelConfig, bits: int, soc: str) -> Sizes:
    """The first candidate whose expert graphs all pass.

    Raises:
        OptionError: there is none.
        DeviceError: the compiler refuses a graph.

    """
    for sizes in candidates(config, bits):
        found = shapes(config, bits, sizes)
        # The largest fails first.
        if all(figures(mlp(found, found.expert, rows), found, soc).passes for rows in reversed(sizes.tiles)):
            return sizes
    raise OptionError(f"no slices and tiles of {config.family} pass for {soc}: every one spills or reads more than it has to")


def entry(config: ModelConfig, bits: int, sizes: Sizes) -> dict[str, Any]:
    """A shape of the table, its figures still missing."""
    return {"key": _key(config, bits), "sizes": asdict(sizes), "graphs": {}}


def _key(config: ModelConfig, bits: int) -> dict[str, Any]:
    """What the search depends on."""
    moe, a = config.moe, config.attention
    return {
        "hidden": config.hidden,
        "width": moe.intermediate_size,
        "bits": bits,
        "experts": moe.experts,
        "top_k": moe.top_k,
        "heads": [a.heads, a.kv_heads, a.head_dim, a.value_dim],
        "shared": bool(moe.shared_intermediate_size or config.dense_layers),
    }
