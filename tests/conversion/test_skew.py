"""Synthetic packages whose experts are used unevenly."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from expert_use import UseRecorder

import estream
from estream.api.model import Model
from estream.conversion.convert import ConvertOptions
from estream.conversion.skew import RoutingSkew
from estream.conversion.synth import SHAPES, Variation, synthesize
from estream.errors import OptionError
from estream.host import limits
from estream.host.sizes import GiB
from estream.models.config import ModelConfig
from estream.package.layout import PageSpec, router_layout
from estream.package.package import Package
from estream.package.topics import TOPICS, prompt_ids, random_ids

VOCABULARY = 1 << 15
#: Qwen3.5-35B-A3B's experts in number and routing, everything else small.
SMALL = SHAPES["qwen3-30b-a3b"] | {
    "hidden_size": 256,
    "moe_intermediate_size": 64,
    "head_dim": 64,
    "num_attention_heads": 4,
    "num_experts": 256,
    "num_hidden_layers": 5,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
}
FORCED = ConvertOptions(force=True)


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SHAPES, "small", SMALL)  # type: ignore[arg-type]
        yield


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return synthesize("small", tmp_path_factory.mktemp("skewed") / "1.estream", variation=Variation(routing_skew=1.0))


@pytest.fixture(scope="module")
def model(skewed: Package) -> Iterator[Model]:
    with estream.load(skewed.path, memory=limits.resident_bytes() + GiB) as model:
        yield model


@pytest.fixture(scope="module")
def use(model: Model) -> UseRecorder:
    return UseRecorder(model)


def _sum(path: Path, name: str) -> str:
    return hashlib.sha256((path / name).read_bytes()).hexdigest()


def test_without_skew_packages_have_the_bytes_that_they_always_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tiny = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 96}
    tiny |= {"num_attention_heads": 2, "num_key_value_heads": 2}
    monkeypatch.setitem(SHAPES, "tiny", SHAPES["olmoe-1b-7b"] | tiny)  # type: ignore[arg-type]
    package = synthesize("tiny", tmp_path / "tiny.estream", variation=Variation(routing_skew=0.0))
    assert _sum(package.path, "pages.bin").startswith("f5ee2a18df3799f3")
    assert _sum(package.path, "embedding.bin").startswith("596f82963b25dfd0")
    assert package.manifest.source == {"kind": "synthetic", "name": "tiny"}


def test_equal_arguments_give_equal_bytes(skewed: Package, tmp_path: Path):
    again = synthesize("small", tmp_path / "2.estream", variation=Variation(routing_skew=1.0))
    for name in ("manifest.json", "pages.bin", "embedding.bin"):
        assert _sum(again.path, name) == _sum(skewed.path, name)
    assert again.manifest.source["routing_skew"] == 1.0
    other = synthesize("small", tmp_path / "2.estream", FORCED, variation=Variation(routing_skew=0.9))
    assert _sum(other.path, "pages.bin") != _sum(skewed.path, "pages.bin")
    assert _sum(other.path, "embedding.bin") == _sum(skewed.path, "embedding.bin")


def test_prompts_use_experts_like_the_trained_model(use: UseRecorder, skewed: Package):
    chosen = [use.chosen(prompt_ids(skewed.manifest, 1658, seed)) for seed in range(6)]
    for tokens, expected in ((130, 0.40), (1658, 0.77)):
        shares = np.array([use.shares(layers, tokens) for layers in chosen]).mean(0)
        assert shares.mean() == pytest.approx(expected, abs=0.05)
        # Deep layers neither collapse nor even out.
        assert shares == pytest.approx(shares.mean(), abs=0.08)


def test_use_follows_a_power_of_the_rank(use: UseRecorder, skewed: Package):
    chosen = [use.chosen(prompt_ids(skewed.manifest, 500, seed)) for seed in range(8)]
    for layer in range(4):
        counts = np.bincount(np.concatenate([layers[layer].ravel() for layers in chosen]), minlength=use.experts)
        counts = -np.sort(-counts)
        ranks = np.arange(16, 129)
        slope, offset = np.polyfit(np.log(ranks), np.log(counts[15:128]), 1)
        assert -1.6 < slope < -0.5
        assert np.abs(np.log(counts[15:128]) - slope * np.log(ranks) - offset).max() < 0.5


def _of_topic(topic: int, seed: int, count: int = 130) -> np.ndarray:
    return (topic + TOPICS * random_ids(count, seed, VOCABULARY // TOPICS)).astype(np.int32)


def _common(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    """The experts that both use, of those that either does; the mean over layers."""
    pairs = [(set(x.ravel().tolist()), set(y.ravel().tolist())) for x, y in zip(a, b, strict=True)]
    return float(np.mean([len(x & y) / len(x | y) for x, y in pairs]))


def test_prompts_of_one_topic_share_more_experts_than_those_of_two(use: UseRecorder):
    first, again, other = (use.chosen(_of_topic(*topic_and_seed)) for topic_and_seed in ((3, 1), (3, 2), (17, 3)))
    assert _common(first, again) > 0.6
    # The popular experts serve every topic.
    assert 0.2 < _common(first, other) < 0.5


def _popular(chosen: list[np.ndarray], layer: int) -> set[int]:
    """The tenth of the experts that is used most."""
    return set(np.argsort(-np.bincount(chosen[layer].ravel(), minlength=256))[:26].tolist())


def test_layers_prefer_different_experts(use: UseRecorder):
    a, b = (use.chosen(random_ids(500, seed, VOCABULARY)) for seed in (1, 2))
    for layer in range(4):
        assert len(_popular(a, layer) & _popular(b, layer)) > 20
        assert len(_popular(a, layer) & _popular(a, (layer + 1) % 4)) < 10


def _routed(family: str, strength: float, tokens: int) -> tuple[float, ModelConfig]:
    """The share of experts that a prompt of ``tokens`` uses, by the first router of a shape applied to its embedding."""
    config = Variation().config(family)
    layer, random, moe = len(config.dense_layers), np.random.default_rng(0), config.moe
    spec = PageSpec("router", layer, -1, -1, 0, 0, router_layout(config, layer))
    data = np.zeros(spec.bytes, np.uint8)
    part = spec.layout.floats("router")
    weights = data[part.offset : part.offset + part.bytes].view(np.float32).reshape(part.shape)
    weights[...] = 0.02 * random.standard_normal(part.shape, np.float32)
    noise = (random.standard_normal((62 * 20, config.hidden), np.float32).view(np.uint32) >> 16).astype(np.uint16)
    skew = RoutingSkew(config, strength, 0.02)
    skew.page(spec, data)
    rows = (skew.embedding(noise, 31 * 5).astype(np.uint32) << 16).view(np.float32)
    assert np.square(rows).mean() == pytest.approx(1.0, abs=0.02)
    few = rows[np.arange(len(rows)) % TOPICS < 3][:tokens]
    chosen = np.argsort(-(few @ weights[:, : moe.experts]), axis=1)[:, : moe.top_k]
    return len(np.unique(chosen)) / moe.experts, config


@pytest.mark.parametrize("family", [family for family in SHAPES if family != "small"])
def test_every_shape_can_be_skewed_more_or_less(family: str):
    used = {strength: _routed(family, strength, 40)[0] for strength in (0.3, 1.0, 3.0)}
    moe = _routed(family, 1.0, 40)[1].moe
    even = 1 - (1 - moe.top_k / moe.experts) ** 40
    assert used[3.0] < used[1.0] <= used[0.3] <= even + 0.05
    assert used[3.0] < 0.8 * even


@pytest.mark.parametrize(
    ("variation", "expected"),
    [
        (Variation(routing_skew=-0.1), "--routing-skew must be 0 to 10, not -0.1"),
        (Variation(routing_skew=float("nan")), "--routing-skew must be 0 to 10, not nan"),
        (Variation(layers=0), "--layers must be 2 to 27 for deepseek-v2-lite"),
        (Variation(layers=1), "--layers must be 2 to 27 for deepseek-v2-lite"),
        (Variation(layers=28), "--layers must be 2 to 27 for deepseek-v2-lite"),
    ],
)
def test_refusals_say_what_is_possible(variation: Variation, expected: str, tmp_path: Path):
    with pytest.raises(OptionError, match=expected):
        synthesize("deepseek-v2-lite", tmp_path / "x.estream", variation=variation)


@pytest.mark.parametrize("family", [family for family in SHAPES if family != "small"])
def test_fewer_layers_of_every_shape(family: str):
    whole, part = Variation().config(family), Variation(layers=3).config(family)
    assert (part.layers, part.moe, part.hidden, part.vocabulary) == (3, whole.moe, whole.hidden, whole.vocabulary)
    assert part.dense_layers == tuple(layer for layer in whole.dense_layers if layer < 3)
    assert part.attention.delta_layers == tuple(layer for layer in whole.attention.delta_layers if layer < 3)
