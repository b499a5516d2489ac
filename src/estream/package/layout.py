"""The tape: all pages of a model in the order a sweep uses them, and what lies where in each.

What lies where follows from the model's config and how it is stored, so the manifest does not keep it and cannot contradict
it; the order has one choice, which expert of a layer comes first (``expert_order.py``).
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from estream.host.sizes import MiB, round_up
from estream.models.config import AttentionConfig, ModelConfig
from estream.package.expert_order import experts_of
from estream.package.parts import GROUPS, PANEL, SIMD_WIDTH, PageBuilder, PageLayout, group_for
from estream.schema import Count, Record

#: File offsets and padded lengths of pages: what direct reads need on Linux and Windows alike.
PAGE_ALIGNMENT = 64 << 10
LARGEST_EXPERT_PAGE = 32 * MiB
SMALLEST_EXPERT_SLICE = 16 * MiB
HEAD_PAGE = 8 * MiB

PageKind = Literal["attention", "router", "shared", "expert", "head"]
#: The MLP that serves every token: a shared expert, or the MLP of a dense layer. Manifests call both "shared".
MLP: Final = "shared"

#: 4 or 8.
Bits = Annotated[int, Meta(ge=4, le=8, multiple_of=4)]
#: Pages that one matrix or MLP is cut into.
SliceCount = Annotated[int, Meta(ge=1, le=1 << 16)]


class Quantization(Record, frozen=True):
    """Bits of the experts and of everything else that is multiplied (attention, shared MLPs, head), group size, and how
    large matrices are cut into pages: each expert, shared expert and dense MLP into equal slices, the head into pages of
    ``head_rows`` vocabulary rows.
    """

    expert_bits: Bits
    dense_bits: Bits
    group: Annotated[int, Meta(ge=GROUPS[-1], le=GROUPS[0], multiple_of=GROUPS[-1])]
    expert_slices: SliceCount
    head_rows: Count
    shared_slices: SliceCount = 1
    dense_slices: SliceCount = 1

    @staticmethod
    def choose(config: ModelConfig, expert_bits: int, dense_bits: int, group: int) -> "Quantization":
        """Cut MLPs above 32 MiB into slices of at least 16 MiB along the intermediate size, the head into 8 MiB."""
        whole = Quantization(expert_bits, dense_bits, group, 1, PANEL)
        rows = max(1, HEAD_PAGE // _head_layout(config, whole, PANEL).bytes) * PANEL
        return replace(
            whole,
            head_rows=rows,
            expert_slices=_slices(expert_layout(config, whole).bytes, config.moe.intermediate_size, group),
            shared_slices=_slices(
                _shared_bytes(config, whole, config.moe.shared_intermediate_size), config.moe.shared_intermediate_size, group
            ),
            dense_slices=_slices(_shared_bytes(config, whole, config.intermediate_size), config.intermediate_size, group),
        )

    def shared_slices_of(self, config: ModelConfig, layer: int) -> int:
        """Into how many pages the MLP of all a layer's tokens is cut."""
        return self.dense_slices if layer in config.dense_layers else self.shared_slices


def _slices(size: int, width: int, group: int) -> int:
    if size <= LARGEST_EXPERT_PAGE:
        return 1
    step = group_for(width, group)
    most = max(size // SMALLEST_EXPERT_SLICE, 1)
    return next((n for n in range(most, 1, -1) if width % (n * step) == 0), 1)


class PageSpec(Struct, frozen=True):
    """One page of the tape: what it holds, not yet where it lies. ``first`` is the first row (head) or intermediate
    unit (slice of an MLP) that it holds, ``count`` how many.
    """

    kind: PageKind
    layer: int
    expert: int
    slice: int
    first: int
    count: int
    layout: PageLayout

    @property
    def bytes(self) -> int:
        return self.layout.bytes

    def __str__(self) -> str:
        if self.kind == "head":
            return f"head slice {self.slice}"
        expert = f" {self.expert}" if self.expert >= 0 else ""
        return f"layer {self.layer} {self.kind}{expert}" + (f" slice {self.slice}" if self.slice >= 0 else "")


def attention_layout(config: ModelConfig, quantization: Quantization, layer: int) -> PageLayout:
    attention, bits = config.attention, quantization.dense_bits
    page = PageBuilder(quantization.group)
    _norm(page, "input_norm", config)
    if layer in attention.delta_layers:
        _delta_matrices(page, config.hidden, attention, bits)
        return page.layout()
    if attention.latent is not None:
        _latent_matrices(page, config.hidden, attention, bits)
    else:
        _grouped_matrices(page, config.hidden, attention, bits)
    page.matrix("o", config.hidden, attention.output_width, bits)
    return page.layout()


def _grouped_matrices(page: PageBuilder, hidden: int, attention: AttentionConfig, bits: int) -> None:
    widths = {"q": attention.query_width, "k": attention.key_width, "v": attention.value_width}
    if attention.qk_norm != "none":
        whole = attention.qk_norm == "projection"
        page.floats("q_norm", attention.query_width if whole else attention.head_dim)
        page.floats("k_norm", attention.key_width if whole else attention.head_dim)
    if attention.input_bias:
        for name, width in widths.items():
            page.bias(f"{name}_bias", width)
    if attention.output_bias:
        page.bias("o_bias", hidden)
    if attention.sinks:
        page.floats("sinks", attention.heads)
    for name, width in widths.items():
        page.matrix(name, width, hidden, bits)
    if attention.output_gate:
        page.matrix("q_gate", attention.output_width, hidden, bits)


def _latent_matrices(page: PageBuilder, hidden: int, attention: AttentionConfig, bits: int) -> None:
    """Queries and keys have each head's rotated values first; the keys' come from ``k_rope``, alike for all heads."""
    latent, rotated = attention.latent, attention.rope.dims
    assert latent is not None
    if latent.q_lora_rank:
        page.floats("q_a_norm", latent.q_lora_rank)
    page.floats("kv_a_norm", latent.kv_lora_rank)
    if latent.q_lora_rank:
        page.matrix("q_a", latent.q_lora_rank, hidden, bits)
    page.matrix("q", attention.query_width, latent.q_lora_rank or hidden, bits)
    page.matrix("kv_a", latent.kv_lora_rank, hidden, bits)
    page.matrix("k_rope", rotated, hidden, bits)
    page.matrix("k", attention.heads * (attention.head_dim - rotated), latent.kv_lora_rank, bits)
    page.matrix("v", attention.value_width, latent.kv_lora_rank, bits)


def _delta_matrices(page: PageBuilder, hidden: int, attention: AttentionConfig, bits: int) -> None:
    delta = attention.delta
    assert delta is not None
    page.floats("conv", delta.conv_kernel_size, delta.conv_dim)
    page.floats("log_rates", delta.value_heads)
    page.floats("step_bias", delta.value_heads)
    page.floats("gate_norm", delta.value_dim)
    page.matrix("qkv", delta.conv_dim, hidden, bits)
    page.matrix("z", delta.value_width, hidden, bits)
    page.matrix("b", delta.value_heads, hidden, bits)
    page.matrix("a", delta.value_heads, hidden, bits)
    page.matrix("o", hidden, delta.value_width, bits)


def router_layout(config: ModelConfig, layer: int) -> PageLayout:
    """The router is stored transposed, [hidden, lanes], as its kernel reads it: experts, then the shared expert's gate,
    rounded up to 16. A dense layer has the norm alone.
    """
    moe = config.moe
    page = PageBuilder(GROUPS[0])
    _norm(page, "post_norm", config)
    if layer not in config.dense_layers:
        if moe.router_bias:
            page.floats("router_bias", moe.experts)
        if moe.correction_bias:
            page.floats("correction_bias", moe.experts)
        page.floats("router", config.hidden, router_columns(config))
    return page.layout()


def router_columns(config: ModelConfig) -> int:
    """Columns of the stored router."""
    return round_up(config.moe.experts + config.moe.shared_gate, SIMD_WIDTH)


def _norm(page: PageBuilder, name: str, config: ModelConfig) -> None:
    page.floats(name, config.hidden)
    if config.norm == "layer":
        page.floats(f"{name}_bias", config.hidden)


def expert_layout(config: ModelConfig, quantization: Quantization) -> PageLayout:
    """One expert or slice."""
    width = config.moe.intermediate_size // quantization.expert_slices
    return _mlp_layout(config.hidden, width, quantization.group, quantization.expert_bits, bias=config.moe.expert_bias)


def shared_layout(config: ModelConfig, quantization: Quantization, layer: int) -> PageLayout:
    """The MLP of all tokens of a layer, or a slice of it."""
    width = config.mlp_intermediate_size(layer) // quantization.shared_slices_of(config, layer)
    return _mlp_layout(config.hidden, width, quantization.group, quantization.dense_bits, bias=False)


def _shared_bytes(config: ModelConfig, quantization: Quantization, width: int) -> int:
    return _mlp_layout(config.hidden, width, quantization.group, quantization.dense_bits, bias=False).bytes if width else 0


def _mlp_layout(hidden: int, width: int, group: int, bits: int, *, bias: bool) -> PageLayout:
    """Outputs of gate and up alternate by 16: one panel holds 16 of each, so gating happens in registers."""
    page = PageBuilder(group)
    page.matrix("gate_up", 2 * round_up(width, SIMD_WIDTH), hidden, bits)
    if bias:
        page.bias("gate_up_bias", 2 * round_up(width, SIMD_WIDTH))
        page.bias("down_bias", hidden)
    page.matrix("down", hidden, width, bits)
    return page.layout()


def _head_layout(config: ModelConfig, quantization: Quantization, rows: int) -> PageLayout:
    page = PageBuilder(quantization.group)
    if config.head_bias:
        page.bias("head_bias", rows)
    page.matrix("head", rows, config.hidden, quantization.dense_bits)
    return page.layout()


def build_tape(
    config: ModelConfig, quantization: Quantization, order: Sequence[Sequence[int]] | None = None
) -> Iterator[PageSpec]:
    """All pages in the order one sweep uses them: per layer attention, router, shared MLP, experts; then the head.

    ``order`` has the ids of each layer's experts as they lie, and is looked at when a layer's experts come; None: by id.
    """
    expert = expert_layout(config, quantization)
    for layer in range(config.layers):
        yield PageSpec("attention", layer, -1, -1, 0, 0, attention_layout(config, quantization, layer))
        yield PageSpec("router", layer, -1, -1, 0, 0, router_layout(config, layer))
        if width := config.mlp_intermediate_size(layer):
            shared = shared_layout(config, quantization, layer)
            yield from _mlp_pages(MLP, layer, -1, width, quantization.shared_slices_of(config, layer), shared)
        for e in experts_of(config, order, layer):
            yield from _mlp_pages("expert", layer, e, config.moe.intermediate_size, quantization.expert_slices, expert)
    for index, first in enumerate(range(0, config.vocabulary, quantization.head_rows)):
        count = min(quantization.head_rows, config.vocabulary - first)
        yield PageSpec("head", config.layers, -1, index, first, count, _head_layout(config, quantization, count))


def _mlp_pages(kind: PageKind, layer: int, expert: int, width: int, slices: int, layout: PageLayout) -> Iterator[PageSpec]:
    count = width // slices
    for s in range(slices):
        yield PageSpec(kind, layer, expert, s if slices > 1 else -1, s * count, count, layout)
