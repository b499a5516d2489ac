"""MLPs on the CPU: routing, experts, and the MLPs that serve every token."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from estream import _native
from estream.devices.cpu.activations import Activations, QuantizedArrays
from estream.devices.cpu.page import BoundPage, CpuLinear, native_matrix
from estream.engine.device import LentPage
from estream.engine.routing import RoutingLists, experts_to_prefetch_per_token
from estream.models.config import ModelConfig
from estream.package.layout import PageSpec, router_columns
from estream.package.parts import PageLayout


class CpuMlp:
    """The MLPs of one layer at a time, over the residual rows that attention left."""

    def __init__(self, config: ModelConfig, linear: CpuLinear) -> None:
        self._config = config
        self._linear = linear
        self._native = linear.native
        moe = config.moe
        self._route = _native.Routing(
            moe.experts,
            moe.top_k,
            moe.scoring,
            moe.norm_topk_prob,
            moe.routed_scaling_factor,
            moe.n_group,
            moe.topk_group,
            moe.router_jitter_noise,
        )
        scoring = "sigmoid" if moe.scoring == "sigmoid" else "softmax"
        count = experts_to_prefetch_per_token(moe.top_k)
        self._likeliest = _native.Routing(moe.experts, count, scoring, groups=moe.n_group, top_groups=moe.topk_group)
        self._likeliest_count = count

    def begin(self, activations: Activations) -> None:
        self._a = a = activations
        x = a.ffn_input
        self._x = x if isinstance(x, np.ndarray) else x.rows(0, len(x.codes))
        # What calls of pages with one layout share; every page of an expert has the same.
        self._calls: dict[tuple[int, str], _Call] = {}

    def release(self) -> None:
        """Forget the arrays of the last sweep."""
        del self._a, self._x, self._calls

    def route(self, page: BoundPage, residual: np.ndarray) -> RoutingLists:
        a, rows, factor = self._a, len(residual), self._config.residual_factor
        norm = self._linear.norm(page, "post_norm")
        to = a.ffn_input.rows(0, rows) if isinstance(a.ffn_input, QuantizedArrays) else a.ffn_input[:rows]
        a.shared_weights[:] = factor
        if not page.spec.layout.has("router"):
            self._native.norm(residual, norm, to)
            return RoutingLists.none()
        gates = a.shared_weights[:rows] if self._config.moe.shared_gate else None
        ids, weights = a.expert_ids[:rows], a.expert_weights[:rows]
        self._native.route(residual, norm, to, self._router(page, self._route), ids, weights, gates)
        if gates is not None and factor != 1.0:
            gates *= np.float32(factor)
        return RoutingLists.of(ids, weights, self._config.moe.experts)

    def experts_to_prefetch(self, page: BoundPage, residual: np.ndarray) -> frozenset[int]:
        ids = np.empty((len(residual), self._likeliest_count), np.int32)
        weights = np.empty(ids.shape, np.float32)
        norm = self._linear.norm(page, "post_norm")
        self._native.predict(residual, norm, self._router(page, self._likeliest), ids, weights)
        return frozenset(np.unique(ids).tolist())

    def _router(self, page: BoundPage, choice: "_native.Routing") -> "_native.Router":
        biases = page.floats("router_bias"), page.floats("correction_bias")
        return _native.Router(choice, page.floats("router"), router_columns(self._config), *biases)

    def begin_experts(self, routing: RoutingLists) -> None:
        factor = self._config.residual_factor
        self._routing = routing if factor == 1.0 else replace(routing, weights=routing.weights * np.float32(factor))
        self._starts: list[int] = routing.starts.tolist()

    def end_experts(self) -> None:
        del self._routing, self._starts

    def mlp(self, page: BoundPage, residual: np.ndarray) -> None:
        rows = np.arange(len(residual), dtype=np.int32)
        self._compute(page, rows, rows, self._a.shared_weights[: len(rows)], residual)

    def experts(self, pages: Sequence[LentPage], residual: np.ndarray) -> None:
        for whole, run in groupby(pages, key=lambda page: page[0].slice < 0):
            if whole:
                self._whole(list(run), residual)
            else:
                for spec, address in run:
                    self._slice(BoundPage(spec, address), residual)

    def _whole(self, pages: Sequence[LentPage], residual: np.ndarray) -> None:
        call, starts, routing = self._call_of(pages[0][0]), self._starts, self._routing
        routed = [(address, starts[spec.expert], starts[spec.expert + 1]) for spec, address in pages]
        self._native.experts(call.mlp, routed, self._x, routing.tokens, routing.weights, call.hidden, call.quantized, residual)

    def _slice(self, page: BoundPage, residual: np.ndarray) -> None:
        spec = page.spec
        tokens, weights = self._routing.of_expert(spec.expert)
        partial, places = self._a.expert_partial[: len(tokens)], np.arange(len(tokens), dtype=np.int32)
        if spec.first == 0:
            partial.fill(0.0)
        self._compute(page, tokens, places, np.ones_like(weights), partial)
        if spec.first + spec.count == self._config.moe.intermediate_size:
            self._native.scatter_add(partial, tokens, weights, residual)

    def _compute(self, page: BoundPage, tokens: np.ndarray, to: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
        """out[to] += weights * MLP(rows ``tokens`` of the MLPs' input)."""
        call = self._call_of(page.spec)
        self._native.expert(call.mlp, page.address, self._x, tokens, to, weights, call.hidden, call.quantized, out)

    def _call_of(self, spec: PageSpec) -> "_Call":
        key = (id(spec.layout), spec.kind)
        if key not in self._calls:
            self._calls[key] = self._call(spec)
        return self._calls[key]

    def _call(self, spec: PageSpec) -> "_Call":
        layout, moe = spec.layout, self._config.moe
        gate_up, down = layout.matrix("gate_up"), layout.matrix("down")
        gate_bias, down_bias = (layout.offset(name) for name in ("gate_up_bias", "down_bias"))
        alpha, limit = (moe.swiglu_alpha, moe.swiglu_limit) if spec.kind == "expert" else (0.0, 0.0)
        shapes = native_matrix(gate_up), native_matrix(down)
        mlp = _native.Expert(*shapes, down.offset, gate_bias, down_bias, alpha, limit)
        return _Call(layout, mlp, *self._a.mlp_scratch(down.inputs, down.group))


class _Call(NamedTuple):
    """What is bound for all pages of one layout; the layout, so that its identity is not given to another."""

    layout: PageLayout
    mlp: "_native.Expert"
    hidden: np.ndarray
    quantized: "_native.Quantized"
