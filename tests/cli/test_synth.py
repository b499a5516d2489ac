"""``estream synth``, and what ``run`` and ``bench`` read of its packages."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import run

from estream.api.model import Model
from estream.cli import bench_prompts
from estream.conversion.synth import SHAPES
from estream.package.package import open_package
from estream.package.topics import TOPICS_OF_A_PROMPT, topics_of


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The prompts that models are given."""
    seen: list[np.ndarray] = []
    original: Callable = Model.prefill

    def prefill(self: Model, prompt: np.ndarray):
        seen.append(prompt)
        return original(self, prompt)

    monkeypatch.setattr(Model, "prefill", prefill)
    return seen


@pytest.mark.parametrize(("skew", "most_topics"), [("1", TOPICS_OF_A_PROMPT), ("0", 31)])
def test_prompts_of_a_skewed_package_have_topics(
    skew: str, most_topics: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[np.ndarray]
):
    small = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 960, "num_attention_heads": 2}
    monkeypatch.setitem(SHAPES, "small", SHAPES["olmoe-1b-7b"] | small | {"num_key_value_heads": 2})  # type: ignore[arg-type]
    path = tmp_path / "small.estream"
    made = run("synth", "small", path, "--routing-skew", skew, "--layers", "2", "--json")
    assert made.returncode == 0, made.stderr
    source = json.loads(made.stdout)["source"]
    assert source.get("routing_skew", 0.0) == float(skew)
    assert open_package(path).manifest.config.layers == 2
    for command in (("run", "--tokens", "400", "--seed", "5"), ("bench", "-p", "400", "-r", "2")):
        result = run(command[0], path, *command[1:])
        assert result.returncode == 0, result.stderr
    assert len({tuple(prompt) for prompt in seen}) == 4
    spoken = [len(np.unique(topics_of(prompt, 960))) for prompt in seen]
    assert max(spoken) <= most_topics
    assert min(spoken) > most_topics // 4
    refused = run("bench", path, "--corpus", bench_prompts.__file__, "-p", "8")
    assert refused.returncode == 1
    assert "without a tokenizer" in refused.stderr
