"""What the engine needs to know of a model, in one vocabulary for every family."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from estream.errors import PackageError
from estream.models.rope import RopeConfig

QkNorm = Literal["none", "projection", "head"]
Norm = Literal["rms", "layer"]
Scoring = Literal["softmax", "sigmoid", "sparsemixer"]


@dataclass(frozen=True)
class LatentConfig:
    """Multi-head latent attention: keys and values of all heads are made from ``kv_rank`` values of a token, and queries
    from ``query_rank`` (0: from the whole row). Each is normalised with ``norm_eps``.

    Source: DeepSeek-V2 (arXiv 2405.04434). A head is its rotated values, which all heads' keys share, then the others.
    """

    kv_rank: int
    query_rank: int
    norm_eps: float


@dataclass(frozen=True)
class DeltaConfig:
    """Linear attention by the gated delta rule (arXiv 2412.06464): a causal convolution over ``taps`` tokens, then for each
    value head a state [key_dim, value_dim] that every token corrects and reads. A key head serves a group of value heads.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def mixed_width(self) -> int:
        """Queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_width


@dataclass(frozen=True)
class AttentionConfig:
    """Causal attention with rotary positions: grouped-query, or latent; in ``delta_layers`` linear instead.

    ``scale`` multiplies the scores. ``qk_norm`` says over what queries and keys are normalised before the rotation: the
    whole projection (OLMoE), each head (Qwen3) or nothing. ``clip`` bounds queries, keys and values. ``input_bias`` and
    ``output_bias``: queries, keys and values, or the output, have biases. ``sinks``: each head has a score without value.
    ``output_gate``: the output is multiplied by sigmoids of a projection. In ``window_layers`` a token sees ``window``
    tokens, itself among them.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    rope: RopeConfig
    qk_norm: QkNorm = "none"
    clip: float | None = None
    input_bias: bool = False
    output_bias: bool = False
    sinks: bool = False
    window: int = 0
    window_layers: tuple[int, ...] = ()
    latent: LatentConfig | None = None
    output_gate: bool = False
    delta: DeltaConfig | None = None
    delta_layers: tuple[int, ...] = ()

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def value_width(self) -> int:
        return self.kv_heads * self.value_dim

    @property
    def output_width(self) -> int:
        return self.heads * self.value_dim

    def window_of(self, layer: int) -> int:
        """0 where a token sees all before it."""
        return self.window if layer in self.window_layers else 0


@dataclass(frozen=True)
class MoeConfig:
    """A router that sends each token to ``top_k`` of ``experts`` gated experts of intermediate size ``width``.

    ``scoring`` turns logits into weights; ``normalise`` makes those of a token sum to 1, ``scaling`` multiplies them. With
    ``groups``, only experts of the ``top_groups`` best may be chosen. ``router_bias`` is added to the logits,
    ``correction_bias`` to the scores where experts are chosen. ``jitter`` is sparsemixer's. See csrc/routing.h.

    A shared expert of ``shared_width`` (0: none) serves every token, with ``shared_gate`` times the sigmoid of its logit.
    ``expert_bias``: the experts' matrices have biases. A ``gate_limit`` above 0 clamps gate and up, and the gate is
    gate * sigmoid(``gate_alpha`` * gate) * (up + 1) instead of silu(gate) * up.
    """

    experts: int
    top_k: int
    width: int
    normalise: bool
    scoring: Scoring = "softmax"
    scaling: float = 1.0
    groups: int = 1
    top_groups: int = 1
    jitter: float = 0.0
    router_bias: bool = False
    correction_bias: bool = False
    shared_width: int = 0
    shared_gate: bool = False
    expert_bias: bool = False
    gate_alpha: float = 0.0
    gate_limit: float = 0.0


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of ``layers`` layers: attention, then a mixture of experts, or in ``dense_layers`` one MLP of
    ``dense_width``; each behind a norm.

    ``embedding_factor`` multiplies embeddings, ``residual_factor`` what attention and MLP add to the residual,
    ``logits_factor`` the logits.
    """

    family: str
    hidden: int
    layers: int
    vocabulary: int
    context: int
    norm_eps: float
    attention: AttentionConfig
    moe: MoeConfig
    tied_head: bool
    norm: Norm = "rms"
    head_bias: bool = False
    dense_width: int = 0
    dense_layers: tuple[int, ...] = ()
    embedding_factor: float = 1.0
    residual_factor: float = 1.0
    logits_factor: float = 1.0

    def shared_width(self, layer: int) -> int:
        """Intermediate size of the MLP that serves every token of a layer; 0 where there is none."""
        return self.dense_width if layer in self.dense_layers else self.moe.shared_width

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "ModelConfig":
        """Raises PackageError where a key is missing or unknown."""
        try:
            fields = _tuples(data)
            attention, moe = _tuples(fields.pop("attention")), _tuples(fields.pop("moe"))
            rope, latent, delta = (attention.pop(key) for key in ("rope", "latent", "delta"))
            return ModelConfig(
                attention=AttentionConfig(
                    rope=RopeConfig(**_tuples(rope)),
                    latent=None if latent is None else LatentConfig(**latent),
                    delta=None if delta is None else DeltaConfig(**delta),
                    **attention,
                ),
                moe=MoeConfig(**moe),
                **fields,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise PackageError(f"the manifest's model config is not understood ({error}): convert the model again") from error


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


@dataclass(frozen=True)
class TensorRef:
    """A checkpoint tensor, or part of one.

    ``expert`` takes one expert's matrix of a fused tensor (or its vector, of fused biases). Of its rows,
    ``first_row``, ``first_row`` + ``step``, ... are taken, ``all_rows`` of them (0: all), in ``order`` where one is given.
    A ``transposed`` matrix is stored [inputs, outputs]. ``added`` is added to each value of a float part. ``shape`` is the
    whole tensor's.
    """

    name: str
    shape: tuple[int, ...]
    expert: int | None = None
    first_row: int = 0
    all_rows: int = 0
    step: int = 1
    transposed: bool = False
    order: tuple[int, ...] | None = None
    added: float = 0.0


@dataclass(frozen=True)
class MlpTensors:
    """The matrices of one gated MLP; where it has biases, those too."""

    gate: TensorRef
    up: TensorRef
    down: TensorRef
    gate_bias: TensorRef | None = None
    up_bias: TensorRef | None = None
    down_bias: TensorRef | None = None


@dataclass(frozen=True)
class LayerTensors:
    """``parts`` names the tensors of the attention and router pages by part (``package/layout.py``); ``shared`` is the MLP
    of all tokens, and a dense layer has no ``experts``. ``shared_gate`` [1, hidden] is the last row of the router's matrix.
    """

    parts: Mapping[str, TensorRef]
    experts: tuple[MlpTensors, ...]
    shared: MlpTensors | None = None
    shared_gate: TensorRef | None = None


@dataclass(frozen=True)
class ModelTensors:
    """Where each weight of a model lies in a checkpoint. ``head`` is the embedding where the two are tied, and ``repeated``
    the head that some writers store beside it all the same. ``ignored`` names tensors that are left out, and what they are.
    """

    embedding: TensorRef
    final_norm: TensorRef
    head: TensorRef
    layers: tuple[LayerTensors, ...]
    final_norm_bias: TensorRef | None = None
    head_bias: TensorRef | None = None
    repeated: TensorRef | None = None
    ignored: Mapping[str, str] = field(default_factory=dict)
