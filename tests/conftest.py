"""Shared fixtures: the demo checkpoint, its packages, and tiny random models of transformers."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import demo_scores
import numpy as np
import pytest
import torch
from command import run
from demo_answers import IDS
from hypothesis import settings
from paths import DEMO, HELD_OUT
from tiny import OLMOE_SHAPES, logits, make_olmoe
from tiny_answers import PROMPTS
from transformers import OlmoeForCausalLM

import estream
from estream.configurator.profile import Profile
from estream.conversion.convert import ConvertOptions, convert
from estream.package.package import Package, open_package

# The same examples in every run; --hypothesis-profile=searching looks for others.
settings.register_profile("seeded", derandomize=True, deadline=None, database=None)
settings.register_profile("searching", deadline=None)
settings.load_profile("seeded")


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


@pytest.fixture(scope="session")
def demo_logits(demo_package: Package) -> np.ndarray:
    """What the demo model answers to ``demo_answers.IDS``, all in memory."""
    with estream.load(demo_package.path) as model:
        return model.prefill(IDS).logits


@pytest.fixture
def demo_copy(demo_package: Package, tmp_path: Path) -> Package:
    """The demo model in files that may be damaged."""
    return open_package(shutil.copytree(demo_package.path, tmp_path / "a copy.estream"))


@pytest.fixture(scope="session")
def tuned(demo_package: Package) -> Profile:
    """This machine, measured for the demo model; kept for all tests that follow."""
    found, now = estream.tune(demo_package.path, force=True)
    assert now
    return found


@pytest.fixture(scope="session")
def trace_file(demo_package: Package, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    result = run("run", demo_package.path, "--tokens", "64", "--memory", "140MiB", "--threads", "1", "--trace", path, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(path.read_text())["estream"]["ttft_s"] == json.loads(result.stdout)["ttft_s"]
    return path


@pytest.fixture(scope="session")
def tiny_package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """Random weights in 64 experts of odd sizes."""
    folder = tmp_path_factory.mktemp("tiny package")
    make_olmoe(folder / "source", OLMOE_SHAPES["64 experts, clipped, odd sizes"])
    return convert(folder / "source", folder / "tiny.estream", ConvertOptions(4, 32))


@pytest.fixture(scope="session")
def tiny_logits(tiny_package: Package) -> list[np.ndarray]:
    """Each of ``tiny_answers.PROMPTS`` on its own, all in memory, one thread."""
    with estream.load(tiny_package.path, threads=1) as model:
        return [model.prefill(prompt).logits for prompt in PROMPTS]
