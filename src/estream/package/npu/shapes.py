"""The sizes that a model's graphs are compiled for."""

from dataclasses import dataclass
from typing import Literal

from estream.package.npu.matrices import MatrixSpec

QkNorm = Literal["none", "projection", "head"]

#: The largest block of a matrix, in weights: twice as many bytes when unpacked, and an NPU has 8 MiB for all that it works on.
LARGEST_BLOCK = 1 << 20


def blocked(name: str, inputs: int, outputs: int, bits: int, group: int) -> MatrixSpec:
    """A matrix in as few equal blocks of outputs as ``LARGEST_BLOCK`` allows; blocks are multiples of 32 outputs."""
    panels = max(1, outputs // 32)
    blocks = next(n for n in range(1, panels + 1) if n == panels or (panels % n == 0 and inputs * outputs <= n * LARGEST_BLOCK))
    return MatrixSpec(name, inputs, outputs, bits, group, blocks if outputs % (32 * blocks) == 0 else 1)


@dataclass(frozen=True)
class AttentionShapes:
    """Attention of ``chunk`` queries over ``chunk`` keys at a time. ``kv_rank`` above 0: latent attention, whose keys and
    values are written out for every head; ``query_rank`` above 0: queries are made from so many latent values.

    The first ``rotated`` of a head's ``qk_dim`` values are rotated. ``scale`` multiplies the scores, ``clip`` above 0 bounds
    queries, keys and values before the rotation.
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
    kv_rank: int = 0
    query_rank: int = 0
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
        """Rotated values are first in each head of queries; ``k_rope`` gives those of all heads' keys, ``k`` the others."""
        first = (self.matrix("q_a", hidden, self.query_rank),) if self.query_rank else ()
        return (
            *first,
            self.matrix("q", self.query_rank or hidden, self.query_width),
            self.matrix("kv_a", hidden, self.kv_rank),
            self.matrix("k_rope", hidden, self.rotated),
            self.matrix("k", self.kv_rank, self.heads * (self.qk_dim - self.rotated)),
            self.matrix("v", self.kv_rank, self.value_width),
        )


@dataclass(frozen=True)
class RoutingShapes:
    """Routing of ``tokens`` rows at a time, each to ``top_k`` of ``experts``; gathered and combined ``window`` slots at a
    time. ``groups``: only experts of the ``top_groups`` best groups may be chosen.
    """

    experts: int
    top_k: int
    tokens: int
    window: int
    normalise: bool
    scaling: float = 1.0
    groups: int = 1
    top_groups: int = 1
    shared_gate: bool = False

    @property
    def slots(self) -> int:
        """Pairs of a token and one of its experts."""
        return self.tokens * self.top_k


@dataclass(frozen=True)
class MlpShapes:
    """Gated MLPs in slices of ``width`` intermediate values, ``tiles`` rows (rising) at a time."""

    width: int
    bits: int
    group: int
    tiles: tuple[int, ...]

    def matrices(self, hidden: int) -> tuple[MatrixSpec, ...]:
        return (
            MatrixSpec("gate", hidden, self.width, self.bits, self.group),
            MatrixSpec("up", hidden, self.width, self.bits, self.group),
            MatrixSpec("down", self.width, hidden, self.bits, self.group),
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
    """All that is fixed when a model's graphs are compiled. ``shared``: the MLPs that serve every row (shared experts, dense
    layers); where its bits and width are those of ``expert``, the same graphs serve both.
    """

    hidden: int
    norm_eps: float
    attention: AttentionShapes
    routing: RoutingShapes
    expert: MlpShapes
    head: HeadShapes
    shared: MlpShapes | None = None
