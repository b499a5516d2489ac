"""What the engine needs to know of a model, in one vocabulary for every family."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from estream.models.rope import RopeConfig
from estream.schema import Count, CountOrZero, Finite, NotNegative, Positive, Record

QkNorm = Literal["none", "projection", "head"]
Norm = Literal["rms", "layer"]
Scoring = Literal["softmax", "sigmoid", "sparsemixer"]

MOST_LAYERS = 1 << 12
MOST_EXPERTS = 1 << 16
LayerIndex = Annotated[int, Meta(ge=0, lt=MOST_LAYERS)]
ExpertIndex = Annotated[int, Meta(ge=0, lt=MOST_EXPERTS)]
LayerCount = Annotated[int, Meta(ge=1, le=MOST_LAYERS)]
#: Values of a head that attention takes, and groups of experts that routing takes.
LARGEST_HEAD = 256
GroupCount = Annotated[int, Meta(ge=1, le=64)]
ExpertCount = Annotated[int, Meta(ge=1, le=MOST_EXPERTS)]
#: Layers of one kind, by index.
LayerSet = Annotated[tuple[LayerIndex, ...], Meta(max_length=MOST_LAYERS)]
#: Tokens of a prompt: their positions are 32-bit.
MOST_TOKENS = (1 << 31) - 1
TokenCount = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
TokenCountOrZero = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]


class LatentConfig(Record, frozen=True):
    """Multi-head latent attention: keys and values of all heads are made from ``kv_lora_rank`` values of a token, and queries
    from ``q_lora_rank`` (0: from the whole row). Each is normalised with ``norm_eps``.

    Source: DeepSeek-V2 (arXiv 2405.04434). A head is its rotated values, which all heads' keys share, then the others.
    """

    kv_lora_rank: Count = field(name="kv_rank")
    q_lora_rank: CountOrZero = field(name="query_rank")
    norm_eps: NotNegative


class DeltaConfig(Record, frozen=True):
    """Linear attention by the gated delta rule (arXiv 2412.06464): a causal convolution over ``conv_kernel_size`` tokens, then
    for each value head a state [key_dim, value_dim] that every token corrects and reads. A key head serves a group of value
    heads.
    """

    key_heads: Count
    value_heads: Count
    key_dim: Annotated[int, Meta(ge=1, le=1024)]
    value_dim: Annotated[int, Meta(ge=16, le=1 << 16, multiple_of=16)]
    conv_kernel_size: Count = field(name="taps")

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def conv_dim(self) -> int:
        """Queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_width


class AttentionConfig(Record, frozen=True):
    """Causal attention with rotary positions: grouped-query, or latent; in ``delta_layers`` linear instead.

    ``scale`` multiplies the scores. ``qk_norm`` says over what queries and keys are normalised before the rotation: the
    whole projection (OLMoE), each head (Qwen3) or nothing. ``clip_qkv`` bounds queries, keys and values. ``input_bias`` and
    ``output_bias``: queries, keys and values, or the output, have biases. ``sinks``: each head has a score without value.
    ``output_gate``: the output is multiplied by sigmoids of a projection. In ``sliding_layers`` a token sees ``sliding_window``
    tokens, itself among them.
    """

    heads: Count
    kv_heads: Count
    head_dim: Annotated[int, Meta(ge=2, le=LARGEST_HEAD, multiple_of=2)]
    value_dim: Annotated[int, Meta(ge=1, le=LARGEST_HEAD)]
    scale: Finite
    rope: RopeConfig
    qk_norm: QkNorm = "none"
    clip_qkv: Positive | None = field(name="clip", default=None)
    input_bias: bool = False
    output_bias: bool = False
    sinks: bool = False
    sliding_window: TokenCountOrZero = field(name="window", default=0)
    sliding_layers: LayerSet = field(name="window_layers", default=())
    latent: LatentConfig | None = None
    output_gate: bool = False
    delta: DeltaConfig | None = None
    delta_layers: LayerSet = ()

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


class MoeConfig(Record, frozen=True):
    """A router that sends each token to ``top_k`` of ``experts`` gated experts of ``intermediate_size``.

    ``scoring`` turns logits into weights; ``norm_topk_prob`` makes those of a token sum to 1, ``routed_scaling_factor``
    multiplies them. With ``n_group``, only experts of the ``topk_group`` best groups may be chosen. ``router_bias`` is added to
    the logits, ``correction_bias`` to the scores where experts are chosen. ``router_jitter_noise`` is sparsemixer's. See
    csrc/core/routing.h.

    A shared expert of ``shared_intermediate_size`` (0: none) serves every token, with ``shared_gate`` times the sigmoid of its
    logit.
    ``expert_bias``: the experts' matrices have biases. A ``swiglu_limit`` above 0 clamps gate and up, and the gate is
    gate * sigmoid(``swiglu_alpha`` * gate) * (up + 1) instead of silu(gate) * up.
    """

    experts: ExpertCount
    top_k: ExpertCount
    intermediate_size: Count = field(name="width")
    norm_topk_prob: bool = field(name="normalise")
    scoring: Scoring = "softmax"
    routed_scaling_factor: Finite = field(name="scaling", default=1.0)
    n_group: GroupCount = field(name="groups", default=1)
    topk_group: GroupCount = field(name="top_groups", default=1)
    router_jitter_noise: NotNegative = field(name="jitter", default=0.0)
    router_bias: bool = False
    correction_bias: bool = False
    shared_intermediate_size: CountOrZero = field(name="shared_width", default=0)
    shared_gate: bool = False
    expert_bias: bool = False
    swiglu_alpha: Finite = field(name="gate_alpha", default=0.0)
    swiglu_limit: NotNegative = field(name="gate_limit", default=0.0)


class ModelConfig(Record, frozen=True):
    """A decoder of ``layers`` layers: attention, then a mixture of experts, or in ``dense_layers`` one MLP of
    ``intermediate_size``; each behind a norm.

    ``embedding_factor`` multiplies embeddings, ``residual_factor`` what attention and MLP add to the residual,
    ``logits_factor`` the logits.
    """

    family: str
    hidden: Count
    layers: LayerCount
    vocabulary: Count
    context: TokenCount
    norm_eps: NotNegative
    attention: AttentionConfig
    moe: MoeConfig
    tied_head: bool
    norm: Norm = "rms"
    head_bias: bool = False
    intermediate_size: CountOrZero = field(name="dense_width", default=0)
    dense_layers: LayerSet = ()
    embedding_factor: Finite = 1.0
    residual_factor: Finite = 1.0
    logits_factor: Finite = 1.0

    def mlp_intermediate_size(self, layer: int) -> int:
        """Intermediate size of the MLP that serves every token of a layer; 0 where there is none."""
        return self.intermediate_size if layer in self.dense_layers else self.moe.shared_intermediate_size


class TensorRef(Struct, frozen=True):
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


class MlpTensors(Struct, frozen=True):
    """The matrices of one gated MLP; where it has biases, those too."""

    gate: TensorRef
    up: TensorRef
    down: TensorRef
    gate_bias: TensorRef | None = None
    up_bias: TensorRef | None = None
    down_bias: TensorRef | None = None


class LayerTensors(Struct, frozen=True):
    """``parts`` names the tensors of the attention and router pages by part (``package/layout.py``); ``shared`` is the MLP
    of all tokens, and a dense layer has no ``experts``. ``shared_gate`` [1, hidden] is the last row of the router's matrix.
    """

    parts: Mapping[str, TensorRef]
    experts: tuple[MlpTensors, ...]
    shared: MlpTensors | None = None
    shared_gate: TensorRef | None = None


class ModelTensors(Struct, frozen=True):
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
