"""Shared fixtures: the demo checkpoint, its packages, and tiny random models of transformers."""

from collections.abc import Iterator
from pathlib import Path

import demo_scores
import numpy as np
import pytest
import torch
from paths import DEMO, HELD_OUT
from tiny import logits
from transformers import OlmoeForCausalLM

from estream.conversion.convert import ConvertOptions, convert
from estream.package.package import Package


@pytest.fixture(autouse=True, scope="session")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Profiles of this machine are kept here and not in the user's cache."""
    folder = tmp_path_factory.mktemp("profiles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESTREAM_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def demo_package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """The demo model at the default quantisation."""
    return convert(DEMO, tmp_path_factory.mktemp("demo") / "demo.estream")


@pytest.fixture(scope="session")
def demo_package_8bit(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return convert(DEMO, tmp_path_factory.mktemp("demo8") / "demo8.estream", ConvertOptions(bits=8))


@pytest.fixture(scope="session")
def texts(demo_package: Package) -> demo_scores.Texts:
    return demo_scores.held_out_texts(HELD_OUT, demo_package)


@pytest.fixture(scope="session")
def reference(texts: demo_scores.Texts) -> demo_scores.Scores:
    """The demo model in float32, as transformers computes it."""
    model = OlmoeForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    return demo_scores.score(texts, (logits(model, np.array(prompt + answer)) for prompt, answer in texts))
