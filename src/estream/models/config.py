"""What the engine needs to know of a model, in one vocabulary for every family."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from estream.errors import PackageError

QkNorm = Literal["none", "projection", "head"]


@dataclass(frozen=True)
class AttentionConfig:
    """Causal grouped-query attention with rotary positions.

    ``qk_norm`` says over what queries and keys are normalised before the rotation: the whole projection (OLMoE), each
    head (Qwen3) or nothing. ``clip`` bounds queries, keys and values.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    qk_norm: QkNorm = "none"
    clip: float | None = None

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True)
class MoeConfig:
    """A router that sends each token to ``top_k`` of ``experts`` SwiGLU experts of intermediate size ``width``.

    ``normalise`` makes the chosen weights of a token sum to 1.
    """

    experts: int
    top_k: int
    width: int
    normalise: bool


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of ``layers`` equal layers: attention, then a mixture of experts, each behind an RMSNorm."""

    family: str
    hidden: int
    layers: int
    vocabulary: int
    context: int
    norm_eps: float
    attention: AttentionConfig
    moe: MoeConfig
    tied_head: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "ModelConfig":
        """Raises PackageError where a key is missing or unknown."""
        try:
            fields = dict(data)
            return ModelConfig(
                attention=AttentionConfig(**fields.pop("attention")), moe=MoeConfig(**fields.pop("moe")), **fields
            )
        except (KeyError, TypeError) as error:
            raise PackageError(f"the manifest's model config is not understood ({error}): convert the model again") from error


@dataclass(frozen=True)
class TensorRef:
    """A checkpoint tensor, or part of one.

    ``expert`` takes one expert's matrix of a fused tensor (or its vector, of fused biases). Of its rows,
    ``first_row``, ``first_row`` + ``step``, ... are taken, ``all_rows`` of them (0: all), in ``order`` where one is given.
    A ``transposed`` matrix is stored [inputs, outputs]. ``shape`` is the whole tensor's.
    """

    name: str
    shape: tuple[int, ...]
    expert: int | None = None
    first_row: int = 0
    all_rows: int = 0
    step: int = 1
    transposed: bool = False
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ExpertTensors:
    gate: TensorRef
    up: TensorRef
    down: TensorRef


@dataclass(frozen=True)
class LayerTensors:
    input_norm: TensorRef
    q: TensorRef
    k: TensorRef
    v: TensorRef
    o: TensorRef
    q_norm: TensorRef | None
    k_norm: TensorRef | None
    post_norm: TensorRef
    router: TensorRef
    experts: tuple[ExpertTensors, ...]


@dataclass(frozen=True)
class ModelTensors:
    """Where each weight of a model lies in a checkpoint. ``head`` is the embedding where the two are tied."""

    embedding: TensorRef
    final_norm: TensorRef
    head: TensorRef
    layers: tuple[LayerTensors, ...]
    ignored: frozenset[str] = frozenset()
