"""Kernels, arena and reader lanes of estream.

Arrays must be C-contiguous and of exactly the given type: nothing is converted or copied, and another type
raises TypeError. Shapes stand in brackets. An address is an integer, usually ``Arena.address`` plus an
offset; nothing checks that memory lies there, and it must outlive every object that got the address. Sizes
are in bytes, times in seconds. What does not fit together raises ValueError.
"""

from collections.abc import Sequence
from typing import overload

import numpy
from numpy.typing import NDArray

def abandon(instance: object) -> None:
    """Keep an object alive for ever. A forked child does this with objects whose threads it does not have,
    because destroying them would wait for those threads.
    """

class Arena:
    """Fixed memory for pages and activations, aligned to 2 MiB. Its addresses never change."""

    def __init__(self, size: int) -> None:
        """Reserve ``size`` bytes of zeros, without backing them. Raises MemoryError."""

    @property
    def address(self) -> int:
        """The address of the first byte."""

    def bytes(self) -> NDArray[numpy.uint8]:
        """The whole arena as an array that shares its memory and keeps it alive."""

    def lock(self) -> bool:
        """Keep the arena from being swapped out. False where the limit on locked memory forbids it."""

    def populate(self, offset: int, size: int) -> None:
        """Back a part with memory now. Raises MemoryError where the system has none left."""

class Reader:
    """Reader lanes: threads that each keep one read in flight, from files into memory. A file is named by its
    index in ``paths``.
    """

    def __init__(self, paths: Sequence[object], lanes: int, request_bytes: int, direct: bool) -> None:
        """Open the files and start the lanes, 1 to 64 of them.

        Runs are read in requests of ``request_bytes``, a multiple of 4096. With ``direct``, reads bypass the page
        cache where the file system allows it. Raises OSError with the path where a file cannot be opened.
        """

    def submit(self, file: int, offset: int, address: int, length: int, pages: Sequence[tuple[int, int, int, bool]]) -> int:
        """Ask for a run: ``length`` bytes at ``offset`` of a file, to ``address``. Does not wait for the read.

        Where reads are direct, the three are multiples of 4096. ``pages`` are the parts of the run that are
        published on their own, in rising order: tuples (begin within the run, length, XXH3-64 checksum, whether to
        verify that). Returns the ticket of the first page; the next pages have the next tickets. Raises
        IndexError for an unknown file.
        """

    def gather(self, file: int, parts: Sequence[tuple[int, int, int]]) -> int:
        """Ask for parts that lie anywhere in a file: tuples (offset, address, length). They have no checksum.

        Returns one ticket for all of them. Does not wait for the reads.
        """

    def wait(self, ticket: int, timeout_s: float) -> tuple[str, int, int]:
        """Wait until a page is published, for at most ``timeout_s``. Raises IndexError for an unknown ticket.

        Returns (state, error, offset). The state is "pending" (the time is over), "ready", "io" (the system refused
        a read), "short" (the file ended), "checksum" (the bytes are not those that were written) or "cancelled".
        ``error`` is the system's error number for "io", else 0. ``offset`` is where in the file a read failed; in
        the other states it is where the page begins, or the first of the gathered parts.
        """

    def is_published(self, ticket: int) -> bool:
        """Whether waiting for the ticket would return at once. Raises IndexError for an unknown ticket."""

    def withdraw(self, tickets: Sequence[int]) -> int:
        """Drop the requests that no lane has begun and that serve none but these pages; returns their bytes.

        Does not wait. A page that lost a request is published as "cancelled" once no lane writes to its memory.
        """

    def cancel(self) -> None:
        """Cancel every pending page and wait for the requests in flight. Afterwards no lane writes to memory."""

    def direct(self, file: int) -> bool:
        """Whether reads of the file bypass the page cache. Raises IndexError for an unknown file."""

    def record(self, on: bool) -> None:
        """Start or stop recording events."""

    def take_events(self) -> list[tuple[int, bool, int, int, int, float, float]]:
        """The events recorded since the last call: tuples (lane, whether it is a checksum and not a read, file,
        offset, bytes, begin, end). Times are those of the steady clock, which on Linux is ``time.monotonic``.
        """

    def stats(self) -> tuple[int, int, float, float]:
        """Totals since construction: (bytes read, requests, seconds with at least one read in flight, seconds of
        computing checksums summed over the lanes).
        """

def seal_rows(rows: NDArray[numpy.uint8], records: NDArray[numpy.uint8]) -> None:
    """Write embedding records [rows, row bytes + 8]: each row [rows, row bytes], then its XXH3-64."""

def open_records(data: NDArray[numpy.uint8], offsets: NDArray[numpy.int64], rows: NDArray[numpy.uint8]) -> int:
    """Copy the rows of the embedding records at ``offsets`` [rows] of ``data`` to ``rows`` [rows, row bytes].

    Returns -1, or the index of the first record whose checksum is wrong; rows from that one on are not copied.
    """

def checksum(data: NDArray[numpy.uint8]) -> int:
    """The XXH3-64 of the bytes."""

class Checksum:
    """The XXH3-64 of bytes that come in pieces."""

    def __init__(self) -> None: ...
    def add(self, data: NDArray[numpy.uint8]) -> None:
        """Add the next bytes. One thread at a time."""

    @property
    def value(self) -> int:
        """The checksum of all bytes so far."""

class CodeChooser:
    """Chooses 4-bit codes for weights whose inputs are known (docs/quantization.md), on its own threads."""

    def __init__(self, threads: int) -> None: ...
    def choose(
        self,
        weights: NDArray[numpy.float32],
        moments: NDArray[numpy.float32],
        feedback: NDArray[numpy.float32],
        order: NDArray[numpy.int32],
        group: int,
        codes: NDArray[numpy.int8],
        scales: NDArray[numpy.uint16],
    ) -> None:
        """Choose codes for ``weights`` [rows, columns], where missing columns up to the inputs are zero.

        moments: [inputs, inputs], the second moments of the inputs (GPTQ's Hessian).
        feedback: [inputs, inputs], strictly lower triangular in the order of ``order`` (LDLQ).
        order: [inputs], the inputs in the order in which the first pass chooses codes.
        group: 32, 64 or 128 inputs that share a scale.
        codes: [rows, inputs], out, in -8..7.
        scales: [rows, inputs / group], out, the bits of fp16.

        The number of threads does not change the result.
        """

class Matrix:
    """The shape of a matrix in a package (docs/package-format.md). Its bytes are named at each call."""

    def __init__(self, outputs: int, inputs: int, bits: int, group: int) -> None:
        """``bits`` is 4 or 8; ``group`` is 32, 64 or 128 and divides the inputs."""

    @property
    def outputs(self) -> int: ...
    @property
    def inputs(self) -> int: ...
    @property
    def bits(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def bytes(self) -> int:
        """The size of the packed matrix."""

class Packer:
    """Packs matrices on its own threads, for conversion.

    ``sources`` are byte arrays that hold the source's rows of ``columns`` weights, one array after another, as
    "float32", "float16" or "bfloat16". Columns from ``columns`` to the matrix's inputs are zero. ``order``
    [outputs] names the source row of each output; a negative number stands for zeros.
    """

    def __init__(self, threads: int) -> None: ...
    def pack(
        self,
        matrix: Matrix,
        sources: Sequence[NDArray[numpy.uint8]],
        dtype: str,
        columns: int,
        order: NDArray[numpy.int32],
        to: NDArray[numpy.uint8],
    ) -> tuple[int, float, float]:
        """Quantise and pack weights into ``to`` [matrix.bytes].

        Returns (bad row, squared error, squared weights). The bad row is the first source row with a weight that is
        not finite or too large for a scale in fp16, or -1. The other two are sums over all weights.
        """

    def pack_codes(
        self,
        matrix: Matrix,
        codes: NDArray[numpy.int8],
        scales: NDArray[numpy.uint16],
        order: NDArray[numpy.int32],
        to: NDArray[numpy.uint8],
    ) -> int:
        """Pack codes [rows, columns] that the source already has, with the bits of fp16 scales
        [rows, columns / group], into ``to`` [matrix.bytes].

        Returns -1, or the first source row with a code that the bits cannot hold or a scale that is not finite.
        """

    def error(
        self,
        matrix: Matrix,
        sources: Sequence[NDArray[numpy.uint8]],
        dtype: str,
        columns: int,
        order: NDArray[numpy.int32],
        packed: NDArray[numpy.uint8],
    ) -> tuple[float, float]:
        """Compare a packed matrix [matrix.bytes] with its source.

        Returns (squared error, squared weights), as sums over all weights.
        """

def column_squares(source: NDArray[numpy.uint8], dtype: str, sums: NDArray[numpy.float64]) -> None:
    """Add the squares of each column of the source's weights to ``sums`` [columns]. ``dtype`` is that of Packer."""

def unpack(matrix: Matrix, packed: NDArray[numpy.uint8], out: NDArray[numpy.float32]) -> None:
    """Write the weights of a packed matrix [matrix.bytes] to ``out`` [outputs, inputs]."""

def process_memory() -> tuple[int, int]:
    """The memory of this process: (resident bytes, peak of them). Raises RuntimeError where the system does not
    say.
    """

def available_memory() -> int:
    """Bytes that the machine can give without swapping. Raises RuntimeError where the system does not say."""

def memory_backed(path: object) -> bool:
    """Whether a file or folder lies in memory, as in tmpfs. Direct reads of such a file read no disk."""

def usable_processors() -> int:
    """The number of processors that this process may run on."""

def process_lives(process: int) -> bool:
    """Whether a process with this number exists, under any user."""

def error_text(code: int) -> str:
    """The system's message for the error number of ``Reader.wait``."""

class Quantized:
    """Memory for quantised activations: in each row every group of columns shares a scale."""

    def __init__(self, codes: NDArray[numpy.int8], scales: NDArray[numpy.float32], sums: NDArray[numpy.int32]) -> None:
        """codes: [rows, columns], in -127..127.
        scales: [rows, groups]; an activation is its code times the scale of its group.
        sums: [rows, groups], the sum of each group's codes.
        """

class CpuDevice:
    """The operations of a layer, on ``threads`` threads. One call at a time; calls release the GIL.

    Activations are float32 [rows, columns], or ``Quantized``. Results do not depend on the number of threads,
    nor do those of a row on the rows beside it.
    """

    def __init__(self, threads: int, exact_attention: bool = False) -> None:
        """``exact_attention``: compute attention in float32 even where a faster kernel exists. ESTREAM_KERNELS may name
        the kernel variant; an unknown one raises RuntimeError.
        """

    @property
    def kv_element_bytes(self) -> int:
        """The size of an element of keys and values: 4 or 2."""

    @property
    def variant(self) -> str:
        """The name of the kernel variant in use."""

    @property
    def threads(self) -> int:
        """The number of threads, the caller's included."""

    @overload
    def matmul(
        self,
        matrix: Matrix,
        address: int,
        x: Quantized,
        y: NDArray[numpy.float32],
        add: bool = False,
        bias: int = 0,
        factor: float = 1.0,
    ) -> None:
        """Compute y = x . matrix + bias, or y += factor * (x . matrix + bias) with ``add``.

        address: of the packed matrix, a multiple of 64.
        x: [rows, inputs]; quantised in groups as long as the matrix's.
        y: [rows, at least outputs]; it may be a range of columns of a larger array.
        bias: the address of float32 [outputs rounded up to 32], or 0.
        """

    @overload
    def matmul(
        self,
        matrix: Matrix,
        address: int,
        x: NDArray[numpy.float32],
        y: NDArray[numpy.float32],
        add: bool = False,
        bias: int = 0,
        factor: float = 1.0,
    ) -> None:
        """The same for float32 activations."""

    @overload
    def expert(
        self,
        expert: Expert,
        address: int,
        x: Quantized,
        tokens: NDArray[numpy.int32],
        to: NDArray[numpy.int32],
        weights: NDArray[numpy.float32],
        hidden: NDArray[numpy.float32],
        quantized: Quantized,
        y: NDArray[numpy.float32],
    ) -> None:
        """Run an expert for the rows tokens[i] of ``x`` and add its results: y[to[i]] += weights[i] * result[i].

        address: of the page, a multiple of 64.
        x: [rows, hidden]; quantised in groups as long as those of ``gate_up``.
        tokens, to, weights: [n]. ``to`` must not name a row twice.
        hidden: [room, inputs of down], scratch for at least one token; more of it computes more tokens at a time.
        quantized: scratch of the same shape, in groups as long as those of ``down``; float activations ignore it.
        y: [rows, at least hidden].
        """

    @overload
    def expert(
        self,
        expert: Expert,
        address: int,
        x: NDArray[numpy.float32],
        tokens: NDArray[numpy.int32],
        to: NDArray[numpy.int32],
        weights: NDArray[numpy.float32],
        hidden: NDArray[numpy.float32],
        quantized: Quantized,
        y: NDArray[numpy.float32],
    ) -> None:
        """The same for float32 activations."""

    @overload
    def experts(
        self,
        expert: Expert,
        pages: Sequence[tuple[int, int, int]],
        x: Quantized,
        tokens: NDArray[numpy.int32],
        weights: NDArray[numpy.float32],
        hidden: NDArray[numpy.float32],
        quantized: Quantized,
        y: NDArray[numpy.float32],
    ) -> None:
        """Compute several experts of one layout, in the order of ``pages``: tuples (address, first, end). Each takes
        its own part [first, end) of ``tokens`` and ``weights`` and adds to the rows of ``y`` that ``tokens`` names.
        The rest is as in ``expert``.
        """

    @overload
    def experts(
        self,
        expert: Expert,
        pages: Sequence[tuple[int, int, int]],
        x: NDArray[numpy.float32],
        tokens: NDArray[numpy.int32],
        weights: NDArray[numpy.float32],
        hidden: NDArray[numpy.float32],
        quantized: Quantized,
        y: NDArray[numpy.float32],
    ) -> None:
        """The same for float32 activations."""

    @overload
    def norm(self, x: NDArray[numpy.float32], norm: Norm, to: Quantized) -> None: ...
    @overload
    def norm(self, x: NDArray[numpy.float32], norm: Norm, to: NDArray[numpy.float32]) -> None:
        """Normalise the first ``norm.columns`` of each row of ``x`` [rows, any] into ``to``, as many rows. Columns of
        ``to`` after them become zero.
        """

    @overload
    def route(
        self,
        x: NDArray[numpy.float32],
        norm: Norm,
        to: Quantized,
        router: Router,
        ids: NDArray[numpy.int32],
        weights: NDArray[numpy.float32],
        gates: NDArray[numpy.float32] | None = None,
    ) -> None: ...
    @overload
    def route(
        self,
        x: NDArray[numpy.float32],
        norm: Norm,
        to: NDArray[numpy.float32],
        router: Router,
        ids: NDArray[numpy.int32],
        weights: NDArray[numpy.float32],
        gates: NDArray[numpy.float32] | None = None,
    ) -> None:
        """Normalise as ``norm`` does, and choose the experts of each row: ``ids`` and ``weights`` [rows, top_k], by
        falling score. ``gates`` [rows], if given, gets the sigmoid of the logit that follows the last expert's.
        """

    def predict(
        self, x: NDArray[numpy.float32], norm: Norm, router: Router, ids: NDArray[numpy.int32], weights: NDArray[numpy.float32]
    ) -> None:
        """Choose experts as ``route`` does, without keeping the normalised rows."""

    def quantize(self, x: NDArray[numpy.float32], columns: int, to: Quantized) -> None:
        """Quantise the first ``columns`` of each row of ``x`` into ``to``. Codes after them become zero."""

    def rotate(
        self,
        x: NDArray[numpy.float32],
        heads: int,
        cosine: NDArray[numpy.float32],
        sine: NDArray[numpy.float32],
        norm: Norm | None = None,
        bound: float = 0.0,
    ) -> None:
        """Apply the rotary embedding in place to ``x`` [rows, heads * head_dim].

        First ``norm``, an RMSNorm whose columns divide the row, normalises one part of the row after another, and
        values are clamped to [-bound, bound] where ``bound`` is not 0. ``cosine`` and ``sine`` [rows, dims / 2] are
        of the angles by which values i and i + dims / 2 of each head rotate.
        """

    def scatter_add(
        self, x: NDArray[numpy.float32], to: NDArray[numpy.int32], weights: NDArray[numpy.float32], y: NDArray[numpy.float32]
    ) -> None:
        """Add rows: y[to[i]] += weights[i] * x[i]. ``x`` and ``y`` have equally many columns, and ``to`` must not name a
        row twice.
        """

    def store_key_values(
        self,
        attention: Attention,
        keys: NDArray[numpy.float32],
        values: NDArray[numpy.float32],
        rows: NDArray[numpy.int32],
        to: NDArray[numpy.int32],
        all_keys: NDArray[numpy.uint8],
        all_values: NDArray[numpy.uint8],
        capacity: int,
    ) -> None:
        """Copy the rows ``rows`` [m] of ``keys`` [n, at least kv_heads * head_dim] and ``values`` [n, at least kv_heads *
        value_dim] to the rows ``to`` [m] of those of the batch; no row twice.

        all_keys: at least kv_heads * capacity * head_dim elements of ``kv_element_bytes``, in the kernel's layout.
        all_values: the same, with value_dim rounded up to 16.
        capacity: the rows that each head has room for, a multiple of KEY_RUN.
        """

    def attention(
        self,
        attention: Attention,
        queries: NDArray[numpy.float32],
        places: QueryPlaces,
        keys: NDArray[numpy.uint8],
        values: NDArray[numpy.uint8],
        capacity: int,
        out: NDArray[numpy.float32],
        sinks: int = 0,
    ) -> None:
        """Causal attention of ``queries`` [rows, at least heads * head_dim] to ``out`` [rows, at least
        heads * value_dim], whose further columns become zero.

        places: where the queries stand, as many as there are rows.
        keys, values, capacity: those of ``store_key_values``. Kernels read up to the next multiple of KEY_RUN rows of
        a sequence, so rows that were never stored must hold finite numbers.
        sinks: the address of one float32 score for each head, which takes part in softmax without a value; or 0.
        """

    def softmax_totals(self, logits: NDArray[numpy.float32], totals: NDArray[numpy.float64]) -> None:
        """Take a slice of the vocabulary, ``logits`` [rows, columns], into ``totals`` float64 [rows, 2]: the largest
        logit so far, and the sum of exp(logit - largest). Rows begin with -infinity and 0; a sum becomes NaN where a
        logit is no finite number. Results depend on how the vocabulary is cut into slices, and on nothing else.
        """

    def likeliest(
        self,
        logits: NDArray[numpy.float32],
        rows: NDArray[numpy.int32],
        first: int,
        ids: NDArray[numpy.int32],
        values: NDArray[numpy.float32],
    ) -> None:
        """Take the rows ``rows`` [n] of a slice of the vocabulary, ``logits`` [any, columns], whose first column is id
        ``first``, into the likeliest so far: ``ids`` int32 and ``values`` [n, wanted], largest first, equal ones by
        rising id. Slices come by rising id; values begin as -infinity.
        """

    def seconds(self) -> dict[str, float]:
        """The seconds since construction that each kind of work has taken."""

    def peak(self, kind: str, rounds: int) -> int:
        """Run a loop of multiply-add instructions on all threads, to measure the peak throughput.

        ``kind`` is "int8", "float32", "bfloat16", "int8 tiles" or "bfloat16 tiles"; the latter two are AMX. Returns
        the operations that were done, a multiply-add counting as two; 0 where the variant has no such instruction.
        """

class Expert:
    """The layout of an expert's page, or of another MLP's: matrices ``gate_up`` and ``down``, and biases."""

    def __init__(
        self,
        gate_up: Matrix,
        down: Matrix,
        down_offset: int,
        gate_up_bias_offset: int = 0,
        down_bias_offset: int = 0,
        alpha: float = 0.0,
        limit: float = 0.0,
    ) -> None:
        """``gate_up`` [2 * width, hidden] alternates 16 outputs of gate and the matching 16 of up; ``down`` is
        [hidden, width rounded up to whole groups]. Offsets count bytes from the first byte of ``gate_up``; 0 for a
        bias that does not exist. The gate is silu(gate) * up, or with a ``limit`` the clamped SwiGLU of gpt-oss:
        gate * sigmoid(alpha * gate) * (up + 1), where gate <= limit and abs(up) <= limit.
        """

class Norm:
    """An RMSNorm, or a LayerNorm where there is a bias."""

    def __init__(self, weight: int, bias: int, columns: int, eps: float) -> None:
        """``weight`` and ``bias`` are addresses of float32 [columns]; 0 for no bias."""

class Router:
    """The router of a layer: its weights, and how it chooses experts."""

    def __init__(self, choice: Routing, weight: int, columns: int, bias: int = 0, correction: int = 0) -> None:
        """All but ``choice`` are addresses of float32, 0 for none.

        weight: [hidden, columns]; columns are the experts, then the gate of the shared expert if there is one, then
        zeros up to a multiple of 16.
        bias: [experts], added to the logits.
        correction: [experts], added to the scores that choose experts, but not to their weights.
        """

KEY_RUN: int = 32

KEY_BLOCK: int = 64

class Attention:
    """The shape of a layer's attention."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int, value_dim: int, scale: float, window: int = 0) -> None:
        """``heads`` is a multiple of ``kv_heads``, ``head_dim`` even and at most 256, ``value_dim`` at most 256.
        ``scale`` multiplies scores. A query sees ``window`` keys, its own included; 0 for all before it.
        """

class QueryPlaces:
    """Where the keys of some queries lie. Sequences that begin alike may share blocks."""

    def __init__(self, positions: NDArray[numpy.int32], sequences: NDArray[numpy.int32], blocks: NDArray[numpy.int32]) -> None:
        """positions: [rows], each query's position in its sequence.
        sequences: [rows], where in ``blocks`` the part of the query's sequence begins.
        blocks: for every KEY_BLOCK keys of each sequence the row of keys and values where they begin, a multiple of
        KEY_RUN.
        """

def variants() -> list[str]:
    """The names of the kernel variants that can run here, fastest first."""

class Routing:
    """How a router chooses ``top_k`` of its ``experts``."""

    def __init__(
        self,
        experts: int,
        top_k: int,
        scoring: str = "softmax",
        normalise: bool = False,
        scaling: float = 1.0,
        groups: int = 1,
        top_groups: int = 1,
        jitter: float = 0.0,
    ) -> None:
        """scoring: "softmax" over all experts, "sigmoid" of each expert, or "sparsemixer" (GRIN, arXiv 2409.12136).
        normalise: make the weights of a token's experts sum to 1, before they are multiplied by ``scaling``.
        groups: 1 to 64 equal groups of consecutive experts; only experts of the ``top_groups`` best may be chosen.
        jitter: for sparsemixer, half the relative distance from which on a logit is ignored.
        """

def route(
    routing: Routing,
    logits: NDArray[numpy.float32],
    ids: NDArray[numpy.int32],
    weights: NDArray[numpy.float32],
    bias: int = 0,
    correction: int = 0,
) -> None:
    """Choose experts by ``logits`` [rows, at least experts]: fills ``ids`` and ``weights`` [rows, top_k], by falling
    score, and by rising id where scores are equal.

    ``bias`` and ``correction`` are addresses of float32 [experts], 0 for none, as in ``Router``.
    """

def list_by_expert(
    ids: NDArray[numpy.int32],
    weights: NDArray[numpy.float32],
    tokens: NDArray[numpy.int32],
    sorted_weights: NDArray[numpy.float32],
    starts: NDArray[numpy.int64],
) -> None:
    """Sort ``ids`` and ``weights`` [rows, top_k] by expert: fills ``tokens`` and ``sorted_weights`` [rows * top_k], of
    which expert e owns starts[e]:starts[e + 1], with tokens in rising order. ``starts`` is [experts + 1].
    """

def sigmoid_gates(logits: NDArray[numpy.float32], column: int, gates: NDArray[numpy.float32]) -> None:
    """Fill ``gates`` [rows] with the sigmoid of one column of ``logits`` [rows, columns]."""

class DeltaShape:
    """The heads of linear attention by the gated delta rule (arXiv 2412.06464)."""

    def __init__(self, key_heads: int, value_heads: int, key_dim: int, value_dim: int) -> None:
        """``value_heads`` is a multiple of ``key_heads``, ``key_dim`` at most 1024, ``value_dim`` a multiple of 16."""

def causal_conv(
    device: CpuDevice, x: NDArray[numpy.float32], positions: NDArray[numpy.int32], weight: int, y: NDArray[numpy.float32]
) -> None:
    """Compute y = silu(causal convolution of x over the tokens), column by column.

    x: [rows + kernel size - 1, columns]; its last rows are those of ``y``, the others come before them.
    positions: [rows], each token's position in its sequence; rows before position 0 are not read.
    weight: the address of float32 [kernel size, columns].
    y: [rows, columns].
    """

def gate(
    device: CpuDevice, x: NDArray[numpy.float32], gates: NDArray[numpy.float32], silu: bool, y: NDArray[numpy.float32]
) -> None:
    """Compute y = x * silu(gates), or x * sigmoid(gates). ``x`` and ``y`` have at least the columns of ``gates``
    [rows, columns]; further columns of ``y`` become zero.
    """

def delta_gates(x: NDArray[numpy.float32], log_rates: int, bias: int) -> None:
    """Turn rates and steps ``x`` [rows, 2 * heads] into decays and rates, in place:
    decay = exp(-exp(log_rates) * softplus(step + bias)), rate = sigmoid(rate).

    ``log_rates`` and ``bias`` are addresses of float32 [heads].
    """

def delta_rule(
    device: CpuDevice,
    shape: DeltaShape,
    mixed: NDArray[numpy.float32],
    decays_and_rates: NDArray[numpy.float32],
    positions: NDArray[numpy.int32],
    state: NDArray[numpy.float32],
    out: NDArray[numpy.float32],
) -> None:
    """The gated delta rule over rows of tokens, one after another.

    mixed: [rows, 2 * key_heads * key_dim + value_heads * value_dim]: all queries, all keys, all values.
    decays_and_rates: [rows, 2 * value_heads], from ``delta_gates``.
    positions: [rows]; at position 0 a sequence begins with an empty state.
    state: [value_heads, key_dim, value_dim], which the next call continues.
    out: [rows, value_heads * value_dim].
    """
