"""How long a device takes for each kind of page, in seconds: measured tables, or derived from rates of operations."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Protocol, runtime_checkable

from msgspec import Meta, field

from estream.configurator.curve import Curve, curve_of
from estream.engine.batch import BatchShape
from estream.models.config import ModelConfig
from estream.package.layout import PageSpec
from estream.package.parts import FloatPart, MatrixPart
from estream.schema import Count, NotNegative, Positive, Record, SchemaError, from_plain, shown

PageBytes = Annotated[int, Meta(ge=1, le=1 << 62)]

#: Kinds of attention that take different times: a token sees all before it, or a window, or a state.
FULL, WINDOW, LINEAR = "full", "window", "linear"
#: Matrices that in the last layer are multiplied by the wanted rows alone.
_OF_QUERIES = ("q", "q_a", "q_gate", "o")


def attention_kind(config: ModelConfig, layer: int) -> str:
    """Which table of attention a layer's time is read from."""
    if layer in config.attention.delta_layers:
        return LINEAR
    return WINDOW if config.attention.sliding_window_of(layer) else FULL


@runtime_checkable
class Costs(Protocol):
    """Seconds that a device needs for one page."""

    def attention(self, spec: PageSpec, config: ModelConfig, shape: BatchShape, wanted: int | None) -> float:
        """An attention block over a batch; in the last layer ``wanted`` rows go on."""

    def router(self, spec: PageSpec, rows: int) -> float: ...

    def shared(self, spec: PageSpec, rows: int) -> float:
        """An MLP that serves every row, or a slice of one."""

    def expert(self, spec: PageSpec, rows: int) -> float:
        """An expert, or a slice of one."""

    def head(self, spec: PageSpec, rows: int) -> float: ...


class MeasuredCosts(Record, frozen=True):
    """Tables of one package on one machine.

    ``attention_curves``, one for each kind of attention (see :func:`attention_kind`), and ``last_attention`` (one row goes
    on) are functions of the length of a single sequence. ``attention_square`` is the part of them, in seconds per squared
    token, that grows with each sequence's own square. ``expert`` is a function of rows, as are ``shared``, for a page of
    ``shared_bytes`` (None where no MLP serves every row), and ``head``, for one of ``head_bytes``.
    """

    attention_curves: Mapping[str, Curve] = field(name="attention")
    last_attention: Curve
    attention_square: NotNegative
    router_curve: Curve = field(name="router")
    expert_curve: Curve = field(name="expert")
    head_curve: Curve = field(name="head")
    head_bytes: PageBytes
    shared_curve: Curve | None = field(name="shared", default=None)
    shared_bytes: PageBytes = 1

    def attention(self, spec: PageSpec, config: ModelConfig, shape: BatchShape, wanted: int | None) -> float:
        tokens, squares = shape.tokens, sum(end**2 - start**2 for start, end in shape.spans)
        # One sequence of all tokens would attend to more pairs than the sequences do.
        kind = attention_kind(config, spec.layer)
        saved = self.attention_square * (tokens**2 - squares) if kind == FULL else 0.0
        whole = max(0.0, self._one_sequence(kind, tokens) - saved)
        if wanted is None:
            return whole
        last = self.last_attention(tokens)
        return last + max(0.0, whole - last) * (wanted - 1) / max(1, tokens - 1)

    def _one_sequence(self, kind: str, tokens: int) -> float:
        """Beyond the longest measured length, the part that grows with the square goes on as such, the rest in proportion."""
        curve = self.attention_curves[kind]
        longest = curve.points[-1]
        if tokens <= longest.x or kind != FULL:
            return curve(tokens)
        square = min(self.attention_square, longest.value / longest.x**2)
        return (longest.value - square * longest.x**2) * tokens / longest.x + square * tokens**2

    def router(self, spec: PageSpec, rows: int) -> float:
        return self.router_curve(rows)

    def shared(self, spec: PageSpec, rows: int) -> float:
        assert self.shared_curve is not None
        return self.shared_curve(rows) * spec.bytes / self.shared_bytes

    def expert(self, spec: PageSpec, rows: int) -> float:
        return self.expert_curve(rows)

    def head(self, spec: PageSpec, rows: int) -> float:
        return self.head_curve(rows) * spec.bytes / self.head_bytes


class RatedCosts(Record, frozen=True):
    """A device known by rates alone: integer products, attention, reading weights from memory, a fixed time for each call.

    ``tiles`` are the row counts that the device's graphs are compiled for; what an expert's rows leave of the last tile is
    computed for nothing. Empty for a device that takes any number of rows.
    """

    product_ops_per_s: Positive
    attention_ops_per_s: Positive
    memory_bytes_per_s: Positive
    call_s: NotNegative
    tiles: tuple[Count, ...] = ()

    def attention(self, spec: PageSpec, config: ModelConfig, shape: BatchShape, wanted: int | None) -> float:
        tokens, longest, a = shape.tokens, max(end for _, end in shape.spans), config.attention
        rows = tokens if wanted is None else wanted
        seen = a.sliding_window_of(spec.layer) or longest
        if wanted is None:
            pairs = sum(end * min(end, seen) - start * min(start, seen) for start, end in shape.spans) / 2
        else:
            pairs = wanted * min(longest, seen)
        products = sum(self._product(p, rows if p.name in _OF_QUERIES else tokens) for p in _matrices(spec))
        if spec.layer in a.delta_layers:
            pairs = 0.0
        # Scores and weighted values are a multiplication and an addition each.
        return self.call_s + products + pairs * 2 * a.heads * (a.head_dim + a.value_dim) / self.attention_ops_per_s

    def router(self, spec: PageSpec, rows: int) -> float:
        weights = sum(p.bytes for p in spec.layout.parts if isinstance(p, FloatPart)) // 4
        return self.call_s + 2 * weights * rows / self.attention_ops_per_s

    def expert(self, spec: PageSpec, rows: int) -> float:
        calls, padded = self._cover(rows)
        return calls * self.call_s + sum(self._product(p, padded) for p in _matrices(spec))

    def shared(self, spec: PageSpec, rows: int) -> float:
        return self.expert(spec, rows)

    def head(self, spec: PageSpec, rows: int) -> float:
        return self.call_s + sum(self._product(p, rows) for p in _matrices(spec))

    def _product(self, part: MatrixPart, rows: int) -> float:
        return max(2 * part.outputs * part.inputs * rows / self.product_ops_per_s, part.bytes / self.memory_bytes_per_s)

    def _cover(self, rows: int) -> tuple[int, int]:
        """Calls and rows computed where ``rows`` are covered by tiles, largest first, then one that holds the rest."""
        if not self.tiles:
            return 1, rows
        largest, calls, padded = self.tiles[-1], rows // self.tiles[-1], rows // self.tiles[-1] * self.tiles[-1]
        if rest := rows % largest:
            calls, padded = calls + 1, padded + next(t for t in self.tiles if t >= rest)
        return calls, padded


def costs_of(data: Any) -> MeasuredCosts | RatedCosts:
    """Tables where the values have some, else rates.

    Raises:
        SchemaError: one is missing or of no use.

    """
    if not isinstance(data, dict) or "attention" not in data:
        rates = from_plain(data, RatedCosts)
        if any(a >= b for a, b in pairwise(rates.tiles)):
            raise SchemaError(f"'tiles' must be rising row counts, found {shown(list(rates.tiles))}")
        return rates
    tables = from_plain(data, MeasuredCosts, curve_of)
    if FULL not in tables.attention_curves:
        raise SchemaError(f"'attention' must have a table for each kind of attention, '{FULL}' among them")
    return tables


def _matrices(spec: PageSpec) -> list[MatrixPart]:
    return [part for part in spec.layout.parts if isinstance(part, MatrixPart)]
