"""The shapes that a model's graphs are compiled for."""

from dataclasses import dataclass
from typing import Literal

from estream.package.npu.matrices import MatrixSpec

QkNorm = Literal["none", "projection", "head"]

#: The largest block of a matrix, in weights. Unpacked it takes twice as many bytes, and an NPU has 8 MiB of its own memory.
LARGEST_BLOCK = 1 << 20


def blocked(name: str, inputs: int, outputs: int, bits: int, group: int) -> MatrixSpec:
    """A matrix in the fewest equal blocks that ``LARGEST_BLOCK`` allows. Blocks are multiples of 32 outputs."""
    panels = max(1, outputs // 32)
    blocks = next(n for n in range(1, panels + 1) if n == panels or (panels % n == 0 and inputs * outputs <= n * LARGEST_BLOCK))
    return MatrixSpec(name, inputs, outputs, bits, group, blocks if outputs % (32 * blocks) == 0 else 1)


@dataclass(frozen=True)
class AttentionShapes:
    """Attention of ``chunk`` queries over ``chunk`` keys at a time.

    The first ``rotated`` of a head's ``qk_dim`` values are rotated. ``scale`` multiplies the scores. A ``clip`` above 0 bounds
    queries, keys and values before the rotation. A ``kv_lora_rank`` above 0 means latent attention: keys and values are made
    from that many latent values, and written out for every head. With a ``q_lora_rank`` above 0 queries are made from latent
    values, too.
    """

    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    rotated: int
    scale: float
    chunk: int
    bits: int
    group: int
    qk_norm: QkNorm = "none"
    bias: bool = False
    clip: float = 0.0
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    latent_eps: float = 1e-6

    @property
    def share(self) -> int:
        """Query heads that read one head of keys."""
        return self.heads // self.kv_heads

    @property
    def query_width(self) -> int:
        return self.heads * self.qk_dim

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.qk_dim

    @property
    def value_width(self) -> int:
        return self.kv_heads * self.v_dim

    def matrix(self, name: str, inputs: int, outputs: int) -> MatrixSpec:
        return blocked(name, inputs, outputs, self.bits, self.group)

    def grouped_matrices(self, hidden: int) -> tuple[MatrixSpec, ...]:
        widths = (("q", self.query_width), ("k", self.key_width), ("v", self.value_width))
        return tuple(self.matrix(name, hidden, width) for name, width in widths)

    def latent_matrices(self, hidden: int) -> tuple[MatrixSpec, ...]:
        """In each head of queries the rotated values come first. ``k_rope`` gives those of keys, ``k`` the other values."""
        first = (self.matrix("q_a", hidden, self.q_lora_rank),) if self.q_lora_rank else ()
        return (
            *first,
            self.matrix("q", self.q_lora_rank or hidden, self.query_width),
            self.matrix("kv_a", hidden, self.kv_lora_rank),
            self.matrix("k_rope", hidden, self.rotated),
            self.matrix("k", self.kv_lora_rank, self.heads * (self.qk_dim - self.rotated)),
            self.matrix("v", self.kv_lora_rank, self.value_width),
        )


@dataclass(frozen=True)
class RoutingShapes:
    """Routing of ``tokens`` rows at a time, each to ``top_k`` of ``experts``.

    Rows are gathered and combined by windows of ``window`` slots. ``norm_topk_prob`` makes the weights of a row sum to 1,
    ``routed_scaling_factor`` multiplies them. With ``n_group`` above 1, only experts of the ``topk_group`` best groups may be
    chosen. ``shared_gate``: the router also weights the shared expert.
    """

    experts: int
    top_k: int
    tokens: int
    window: int
    norm_topk_prob: bool
    routed_scaling_factor: float = 1.0
    n_group: int = 1
    topk_group: int = 1
    shared_gate: bool = False

    @property
    def slots(self) -> int:
        """Pairs of a token and one of its experts."""
        return self.tokens * self.top_k


@dataclass(frozen=True)
class MlpShapes:
    """Gated MLPs, cut into slices of ``slice_width`` intermediate values. ``tiles``: rows of each graph, rising."""

    slice_width: int
    bits: int
    group: int
    tiles: tuple[int, ...]

    def matrices(self, hidden: int) -> tuple[MatrixSpec, ...]:
        return (
            MatrixSpec("gate", hidden, self.slice_width, self.bits, self.group),
            MatrixSpec("up", hidden, self.slice_width, self.bits, self.group),
            MatrixSpec("down", self.slice_width, hidden, self.bits, self.group),
        )


@dataclass(frozen=True)
class HeadShapes:
    """Logits of ``rows`` positions for ``vocabulary`` entries at a time."""

    rows: int
    vocabulary: int
    bits: int
    group: int


@dataclass(frozen=True)
class NpuShapes:
    """All that is fixed when a model's graphs are compiled.

    ``shared`` are the MLPs that serve every row: shared experts and dense layers. Where they have the bits and the slice width
    of ``expert``, the same graphs serve both.
    """

    hidden: int
    norm_eps: float
    attention: AttentionShapes
    routing: RoutingShapes
    expert: MlpShapes
    head: HeadShapes
    shared: MlpShapes | None = None
