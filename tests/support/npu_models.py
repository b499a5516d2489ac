"""Tiny models on the NPU's emulator, beside transformers in float32 with the same weights and the same routing."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from reference import save_folder, state_dict
from tiny import FAMILIES, from_state, logits, make_tiny

import estream
from estream.api.model import Model
from estream.conversion.convert import ConvertOptions, convert
from estream.conversion.npu import graph_sizes
from estream.models.config import ModelConfig
from estream.package.package import Package

#: Graphs are compiled when a model is loaded.
UNCOMPILED = ConvertOptions(device="qnn", soc=())
#: Groups of routing, and with them the graphs, are no larger than the context.
CONTEXT = {"max_position_embeddings": 256, "num_hidden_layers": 2}
SHAPES = {
    "olmoe": FAMILIES["olmoe"].shapes["8 experts, grouped queries"] | {"clip_qkv": 2.0},
    "qwen2_moe": FAMILIES["qwen2_moe"].shapes["60 experts, shared one"] | {"num_experts": 24},
    "deepseek_v2": FAMILIES["deepseek_v2"].shapes["as V2-Lite"],
    "mixtral": FAMILIES["mixtral"].shapes["8 experts, grouped queries"],
    "qwen3_moe": FAMILIES["qwen3_moe"].shapes["128 experts, heads wider than hidden"] | {"num_experts": 24},
}


@contextmanager
def slices_of(width: int) -> Iterator[None]:
    """Inside, MLPs are cut into slices of ``width`` intermediate values."""

    def sizes(config: ModelConfig, bits: int) -> graph_sizes.GraphSizes:
        return replace(next(graph_sizes.candidates(config, bits)), slice_width=width)

    with mock.patch.object(graph_sizes, "stored_sizes", sizes):
        yield


def convert_both(folder: Path, family: str, shape: dict[str, Any]) -> tuple[Package, Package]:
    """A tiny model, as a package for the CPU and as one for the NPU."""
    make_tiny(folder / "source", family, CONTEXT | shape)
    cpu = convert(folder / "source", folder / "cpu.estream", ConvertOptions(group=32))
    return cpu, convert(folder / "source", folder / "npu.estream", UNCOMPILED)


class NpuModel:
    """A package for the NPU, one for the CPU with the same integers, and the transformers model with these weights."""

    def __init__(self, folder: Path, family: str, shape: dict[str, Any], width: int | None = None) -> None:
        with slices_of(width) if width else nullcontext():
            self.cpu, self.npu = convert_both(folder, family, shape)
        config = FAMILIES[family].config.from_pretrained(folder / "source")
        config.tie_word_embeddings = False
        save_folder(folder / "stored", state_dict(self.cpu, folder / "source"), config.to_json_string())
        self.reference = from_state(family, config, folder / "stored")
        self.moe = self.cpu.manifest.config.moe

    def prompts(self, *lengths: int) -> list[np.ndarray]:
        rng = np.random.default_rng(5)
        return [rng.integers(0, self.cpu.manifest.config.vocabulary, n).astype(np.int32) for n in lengths]

    def expected(self, prompts: Sequence[np.ndarray], routing: list[np.ndarray]) -> np.ndarray:
        """float32 logits of every position of all prompts, each row sent to the experts that ``routing`` names."""
        rows, first = [], 0
        for prompt in prompts:
            part = slice(first, first + len(prompt))
            with self._forced([ids[part] for ids in routing]):
                rows.append(logits(self.reference, prompt))
            first += len(prompt)
        return np.concatenate(rows)

    @contextmanager
    def _forced(self, routing: list[np.ndarray]) -> Iterator[None]:
        routers = [m for m in self.reference.modules() if type(m).__name__.lower().endswith("topkrouter")]

        def force(ids: np.ndarray):
            def hook(module, args, out):
                chosen = torch.from_numpy(ids.astype(np.int64))
                weights = torch.softmax(out[0].float(), -1).gather(1, chosen)
                if self.moe.norm_topk_prob:
                    weights = weights / weights.sum(-1, keepdim=True)
                return out[0], weights * self.moe.routed_scaling_factor, chosen

            return hook

        hooks = [m.register_forward_hook(force(ids)) for m, ids in zip(routers, routing, strict=True)]
        yield
        for hook in hooks:
            hook.remove()


@contextmanager
def npu_routing(model: Model) -> Iterator[list[np.ndarray]]:
    """Sees the experts that the NPU chooses: int32 [rows, top_k] of each layer with experts."""
    seen: list[np.ndarray] = []
    device = model._device
    original = device.route

    def route(spec, address):
        routing = original(spec, address)
        if len(routing.starts) > 1:
            sweep = device._sweep  # type: ignore[attr-defined]
            groups = zip(sweep.arrays.routing, sweep.layer.group_rows, strict=False)
            seen.append(np.concatenate([group.ids[:rows].copy() for group, rows in groups]))
        return routing

    with mock.patch.object(device, "route", route):
        yield seen


def every_position(model: Model, prompts: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits of all positions of all prompts, read in one batch, and the routing of their rows."""
    with npu_routing(model) as routing:
        results = model.prefill_batch(list(prompts), [range(len(prompt)) for prompt in prompts])
    return np.concatenate([result.logits for result in results]), routing


def rms_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def load(package: Any, **options: Any) -> Model:
    return estream.load(package.path, device="qnn", **options)
