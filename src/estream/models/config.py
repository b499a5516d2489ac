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
    """Multi-head latent attention: keys and values of all heads are made from ``kv_lora_rank`` values of a token, and queries
    from ``q_lora_rank`` (0: from the whole row). Each is normalised with ``norm_eps``.

    Source: DeepSeek-V2 (arXiv 2405.04434). A head is its rotated values, which all heads' keys share, then the others.
    """

    kv_lora_rank: int
    q_lora_rank: int
    norm_eps: float


@dataclass(frozen=True)
class DeltaConfig:
    """Linear attention by the gated delta rule (arXiv 2412.06464): a causal convolution over ``conv_kernel_size`` tokens, then for each
    value head a state [key_dim, value_dim] that every token corrects and reads. A key head serves a group of value heads.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel_size: int

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def conv_dim(self) -> int:
        """Queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_width


@dataclass(frozen=True)
class AttentionConfig:
    """Causal attention with rotary positions: grouped-query, or latent; in ``delta_layers`` linear instead.

    ``scale`` multiplies the scores. ``qk_norm`` says over what queries and keys are normalised before the rotation: the
    whole projection (OLMoE), each head (Qwen3) or nothing. ``clip_qkv`` bounds queries, keys and values. ``input_bias`` and
    ``output_bias``: queries, keys and values, or the output, have biases. ``sinks``: each head has a score without value.
    ``output_gate``: the output is multiplied by sigmoids of a projection. In ``sliding_layers`` a token sees ``sliding_window``
    tokens, itself among them.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    rope: RopeConfig
    qk_norm: QkNorm = "none"
    clip_qkv: float | None = None
    input_bias: bool = False
    output_bias: bool = False
    sinks: bool = False
    sliding_window: int = 0
    sliding_layers: tuple[int, ...] = ()
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

    def sliding_window_of(self, layer: int) -> int:
        """0 where a token sees all before it."""
        return self.sliding_window if layer in self.sliding_layers else 0


@dataclass(frozen=True)
class MoeConfig:
    """A router that sends each token to ``top_k`` of ``experts`` gated experts of ``intermediate_size``.

    ``scoring`` turns logits into weights; ``norm_topk_prob`` makes those of a token sum to 1, ``routed_scaling_factor`` multiplies
    them. With ``n_group``, only experts of the ``topk_group`` best groups may be chosen. ``router_bias`` is added to the logits,
    ``correction_bias`` to the scores where experts are chosen. ``router_jitter_noise`` is sparsemixer's. See
    csrc/core/routing.h.

    A shared expert of ``shared_intermediate_size`` (0: none) serves every token, with ``shared_gate`` times the sigmoid of its logit.
    ``expert_bias``: the experts' matrices have biases. A ``swiglu_limit`` above 0 clamps gate and up, and the gate is
    gate * sigmoid(``swiglu_alpha`` * gate) * (up + 1) instead of silu(gate) * up.
    """

    experts: int
    top_k: int
    intermediate_size: int
    norm_topk_prob: bool
    scoring: Scoring = "softmax"
    routed_scaling_factor: float = 1.0
    n_group: int = 1
    topk_group: int = 1
    router_jitter_noise: float = 0.0
    router_bias: bool = False
    correction_bias: bool = False
    shared_intermediate_size: int = 0
    shared_gate: bool = False
    expert_bias: bool = False
    swiglu_alpha: float = 0.0
    swiglu_limit: float = 0.0


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of ``layers`` layers: attention, then a mixture of experts, or in ``dense_layers`` one MLP of
    ``intermediate_size``; each behind a norm.

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
    intermediate_size: int = 0
    dense_layers: tuple[int, ...] = ()
    embedding_factor: float = 1.0
    residual_factor: float = 1.0
    logits_factor: float = 1.0

    def mlp_intermediate_size(self, layer: int) -> int:
        """Intermediate size of the MLP that serves every token of a layer; 0 where there is none."""
        return self.intermediate_size if layer in self.dense_layers else self.moe.shared_intermediate_size

    def to_json(self) -> dict[str, Any]:
        """The values by their manifest keys."""
        data = _renamed(asdict(self), _MODEL_KEYS)
        data["moe"] = _renamed(data["moe"], _MOE_KEYS)
        data["attention"] = attention = _renamed(data["attention"], _ATTENTION_KEYS)
        for name, keys in (("latent", _LATENT_KEYS), ("delta", _DELTA_KEYS)):
            if attention[name] is not None:
                attention[name] = _renamed(attention[name], keys)
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "ModelConfig":
        """Raises PackageError where a key is missing or unknown."""
        try:
            fields = _named(data, _MODEL_KEYS)
            attention, moe = _named(fields.pop("attention"), _ATTENTION_KEYS), _named(fields.pop("moe"), _MOE_KEYS)
            rope, latent, delta = (attention.pop(key) for key in ("rope", "latent", "delta"))
            return ModelConfig(
                attention=AttentionConfig(
                    rope=RopeConfig(**_named(rope, {})),
                    latent=None if latent is None else LatentConfig(**_named(latent, _LATENT_KEYS)),
                    delta=None if delta is None else DeltaConfig(**_named(delta, _DELTA_KEYS)),
                    **attention,
                ),
                moe=MoeConfig(**moe),
                **fields,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise PackageError(f"the manifest's model config is not understood ({error}): convert the model again") from error


#: Manifest keys of fields that have other names here.
_MODEL_KEYS = {"intermediate_size": "dense_width"}
_MOE_KEYS = {
    "intermediate_size": "width",
    "norm_topk_prob": "normalise",
    "routed_scaling_factor": "scaling",
    "n_group": "groups",
    "topk_group": "top_groups",
    "router_jitter_noise": "jitter",
    "shared_intermediate_size": "shared_width",
    "swiglu_alpha": "gate_alpha",
    "swiglu_limit": "gate_limit",
}
_ATTENTION_KEYS = {"clip_qkv": "clip", "sliding_window": "window", "sliding_layers": "window_layers"}
_LATENT_KEYS = {"kv_lora_rank": "kv_rank", "q_lora_rank": "query_rank"}
_DELTA_KEYS = {"conv_kernel_size": "taps"}


def _renamed(fields: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    return {keys.get(name, name): value for name, value in fields.items()}


def _named(data: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """Fields by their names here, lists as tuples. Raises TypeError where a field's own name stands for its key."""
    if foreign := set(data) & set(keys):
        raise TypeError(f"unexpected key {sorted(foreign)[0]!r}")
    names = {key: name for name, key in keys.items()}
    return {names.get(key, key): tuple(value) if isinstance(value, list) else value for key, value in data.items()}


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
