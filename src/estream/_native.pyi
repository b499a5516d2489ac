"""Kernels, arena and reader lanes of estream."""

from collections.abc import Sequence
from typing import overload

import numpy
from numpy.typing import NDArray

def abandon(instance: object) -> None: ...

class Arena:
    def __init__(self, size: int) -> None: ...
    @property
    def address(self) -> int: ...
    def bytes(self) -> NDArray[numpy.uint8]: ...
    def lock(self) -> bool: ...
    def populate(self, offset: int, size: int) -> None: ...

class Reader:
    def __init__(self, paths: Sequence[str], lanes: int, request_bytes: int, direct: bool) -> None: ...
    def submit(self, file: int, offset: int, address: int, length: int, pages: Sequence[tuple[int, int, int, bool]]) -> int: ...
    def gather(self, file: int, parts: Sequence[tuple[int, int, int]]) -> int: ...
    def wait(self, ticket: int, timeout_s: float) -> tuple[str, int, int]: ...
    def is_published(self, ticket: int) -> bool: ...
    def cancel(self) -> None: ...
    def direct(self, file: int) -> bool: ...
    def record(self, on: bool) -> None: ...
    def take_events(self) -> list[tuple[int, bool, int, int, int, float, float]]: ...
    def stats(self) -> tuple[int, int, float, float]: ...

def seal_rows(rows: NDArray[numpy.uint8], records: NDArray[numpy.uint8]) -> None: ...
def open_records(data: NDArray[numpy.uint8], offsets: NDArray[numpy.int64], rows: NDArray[numpy.uint8]) -> int: ...
def checksum(data: NDArray[numpy.uint8]) -> int: ...

class CodeChooser:
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
    ) -> None: ...

class Matrix:
    def __init__(self, outputs: int, inputs: int, bits: int, group: int) -> None: ...
    @property
    def outputs(self) -> int: ...
    @property
    def inputs(self) -> int: ...
    @property
    def bits(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def bytes(self) -> int: ...

class Packer:
    def __init__(self, threads: int) -> None: ...
    def pack(
        self,
        matrix: Matrix,
        sources: Sequence[NDArray[numpy.uint8]],
        dtype: str,
        columns: int,
        order: NDArray[numpy.int32],
        to: NDArray[numpy.uint8],
    ) -> tuple[int, float, float]: ...
    def pack_codes(
        self,
        matrix: Matrix,
        codes: NDArray[numpy.int8],
        scales: NDArray[numpy.uint16],
        order: NDArray[numpy.int32],
        to: NDArray[numpy.uint8],
    ) -> int: ...
    def error(
        self,
        matrix: Matrix,
        sources: Sequence[NDArray[numpy.uint8]],
        dtype: str,
        columns: int,
        order: NDArray[numpy.int32],
        packed: NDArray[numpy.uint8],
    ) -> tuple[float, float]: ...

def column_squares(source: NDArray[numpy.uint8], dtype: str, sums: NDArray[numpy.float64]) -> None: ...
def unpack(matrix: Matrix, packed: NDArray[numpy.uint8], out: NDArray[numpy.float32]) -> None: ...
def process_memory() -> tuple[int, int]: ...
def available_memory() -> int: ...
def usable_processors() -> int: ...
def process_lives(process: int) -> bool: ...
def error_text(code: int) -> str: ...

KEY_RUN: int = 32

class Norm:
    def __init__(self, weight: int, bias: int, columns: int, eps: float) -> None: ...

class Router:
    def __init__(self, choice: Routing, weight: int, lanes: int, bias: int = 0, correction: int = 0) -> None: ...

class Quantized:
    def __init__(self, codes: NDArray[numpy.int8], scales: NDArray[numpy.float32], sums: NDArray[numpy.int32]) -> None: ...

class Attention:
    def __init__(self, heads: int, kv_heads: int, head_dim: int, value_dim: int, scale: float, window: int = 0) -> None: ...

class CpuDevice:
    def __init__(self, threads: int, exact_attention: bool = False) -> None: ...
    @property
    def kv_element_bytes(self) -> int: ...
    @property
    def variant(self) -> str: ...
    @property
    def threads(self) -> int: ...
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
    ) -> None: ...
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
    ) -> None: ...
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
    ) -> None: ...
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
    ) -> None: ...
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
    ) -> None: ...
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
    ) -> None: ...
    @overload
    def norm(self, x: NDArray[numpy.float32], norm: Norm, to: Quantized) -> None: ...
    @overload
    def norm(self, x: NDArray[numpy.float32], norm: Norm, to: NDArray[numpy.float32]) -> None: ...
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
    ) -> None: ...
    def predict(
        self, x: NDArray[numpy.float32], norm: Norm, router: Router, ids: NDArray[numpy.int32], weights: NDArray[numpy.float32]
    ) -> None: ...
    def quantize(self, x: NDArray[numpy.float32], columns: int, to: Quantized) -> None: ...
    def rotate(
        self,
        x: NDArray[numpy.float32],
        heads: int,
        cosine: NDArray[numpy.float32],
        sine: NDArray[numpy.float32],
        norm: Norm | None = None,
        bound: float = 0.0,
    ) -> None: ...
    def store_key_values(
        self,
        attention: Attention,
        keys: NDArray[numpy.float32],
        values: NDArray[numpy.float32],
        rows: NDArray[numpy.int32],
        all_keys: NDArray[numpy.uint8],
        all_values: NDArray[numpy.uint8],
        capacity: int,
    ) -> None: ...
    def attention(
        self,
        attention: Attention,
        queries: NDArray[numpy.float32],
        positions: NDArray[numpy.int32],
        bases: NDArray[numpy.int32],
        keys: NDArray[numpy.uint8],
        values: NDArray[numpy.uint8],
        capacity: int,
        out: NDArray[numpy.float32],
        sinks: int = 0,
    ) -> None: ...
    def scatter_add(
        self, x: NDArray[numpy.float32], to: NDArray[numpy.int32], weights: NDArray[numpy.float32], y: NDArray[numpy.float32]
    ) -> None: ...
    def seconds(self) -> dict[str, float]: ...
    def peak(self, kind: str, rounds: int) -> int: ...

class Expert:
    def __init__(
        self,
        gate_up: Matrix,
        down: Matrix,
        down_offset: int,
        gate_up_bias_offset: int = 0,
        down_bias_offset: int = 0,
        alpha: float = 0.0,
        limit: float = 0.0,
    ) -> None: ...

def variants() -> list[str]: ...

class Routing:
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
    ) -> None: ...

def route(
    routing: Routing,
    logits: NDArray[numpy.float32],
    ids: NDArray[numpy.int32],
    weights: NDArray[numpy.float32],
    bias: int = 0,
    correction: int = 0,
) -> None: ...
def list_by_expert(
    ids: NDArray[numpy.int32],
    weights: NDArray[numpy.float32],
    tokens: NDArray[numpy.int32],
    sorted_weights: NDArray[numpy.float32],
    starts: NDArray[numpy.int64],
) -> None: ...
def sigmoid_gates(logits: NDArray[numpy.float32], column: int, gates: NDArray[numpy.float32]) -> None: ...

class DeltaShape:
    def __init__(self, key_heads: int, value_heads: int, key_dim: int, value_dim: int) -> None: ...

def causal_conv(
    device: CpuDevice, x: NDArray[numpy.float32], positions: NDArray[numpy.int32], weight: int, y: NDArray[numpy.float32]
) -> None: ...
def gate(
    device: CpuDevice, x: NDArray[numpy.float32], gates: NDArray[numpy.float32], silu: bool, y: NDArray[numpy.float32]
) -> None: ...
def delta_gates(x: NDArray[numpy.float32], log_rates: int, bias: int) -> None: ...
def delta_rule(
    device: CpuDevice,
    shape: DeltaShape,
    mixed: NDArray[numpy.float32],
    decays_and_rates: NDArray[numpy.float32],
    positions: NDArray[numpy.int32],
    state: NDArray[numpy.float32],
    out: NDArray[numpy.float32],
) -> None: ...
