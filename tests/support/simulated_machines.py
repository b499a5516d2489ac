"""Machines and models of round numbers for the simulator."""

from functools import cache

import numpy as np

from estream.configurator.costs import FULL, MeasuredCosts
from estream.configurator.curve import Curve, Point
from estream.configurator.profile import Profile, Storage
from estream.conversion.synth import SHAPES
from estream.devices.opening import arrays_planner
from estream.engine.batch import BatchShape
from estream.engine.memory import ModelMemory
from estream.engine.use import LearnedUse
from estream.host.sizes import GiB, MiB
from estream.models import olmoe
from estream.package.layout import Quantization, build_tape
from estream.package.manifest import Manifest, Page

MB = 1_000_000


def constant(value: float) -> Curve:
    return Curve((Point(2 * MiB, value),))


def profile(rate: float = 2000 * MB, seconds: float = 1e-3, page_s: float = 0.0) -> Profile:
    """A machine where every page takes equally long."""
    each = constant(seconds)
    costs = MeasuredCosts({FULL: each}, each, 0.0, each, each, each, 1 << 40)
    storage = Storage({1: constant(rate / 2), 4: constant(rate)}, constant(1e-9), 1.0, 1.0)
    return Profile("test", "measured", storage, costs, page_s, 60 * MiB)


def manifest_of(config, quantization: Quantization) -> Manifest:
    offset, pages = 0, []
    for index, spec in enumerate(build_tape(config, quantization)):
        pages.append(Page(index, spec, offset, 0))
        offset += pages[-1].padded_bytes
    return Manifest("cpu", config, quantization, tuple(pages), "bfloat16", {}, True, {}, "test")


CONFIG = olmoe.read_config(SHAPES["olmoe-1b-7b"])


OLMOE = manifest_of(CONFIG, Quantization.choose(CONFIG, 4, 8, 64))


def memory(budget: int = GiB) -> ModelMemory:
    """OLMoE's shape within ``budget`` bytes."""
    return ModelMemory(OLMOE, budget, 60 * MiB, arrays_planner(OLMOE, False, 4))


def draw_counts(rng: np.random.Generator, weights: np.ndarray, tokens: int) -> np.ndarray:
    """int64 [layers, experts]: each of some independent tokens chooses ``top_k`` experts, those of more weight more often."""
    keys = rng.gumbel(size=(len(weights), tokens, weights.shape[1])) + np.log(weights)[:, None]
    chosen = np.argsort(-keys, axis=-1)[..., : CONFIG.moe.top_k]
    return np.stack([np.bincount(row.reshape(-1), minlength=weights.shape[1]) for row in chosen])


@cache
def skewed_use() -> LearnedUse:
    """Of OLMoE's shape: a few experts of each layer serve most tokens, others in each layer."""
    use, rng = LearnedUse(CONFIG), np.random.default_rng(0)
    weights = np.stack([rng.permutation(1.0 / np.arange(1, CONFIG.moe.experts + 1)) for _ in range(CONFIG.layers)])
    for tokens in (16, 64, 256, 1024) * 2:
        use.observe(draw_counts(rng, weights, tokens), BatchShape.of_prompt(tokens))
    return use
