"""The demo model with float activations, and transformers with the weights that its package holds."""

import json
from collections.abc import Iterator

import pytest
import torch
from paths import DEMO, HELD_OUT
from reference import save_folder, state_dict
from tiny import FAMILIES, from_state
from transformers import PreTrainedModel

import estream
from estream.api.model import Model
from estream.package.package import Package


@pytest.fixture(scope="session")
def model(demo_package: Package) -> Iterator[Model]:
    with estream.load(demo_package.path, threads=2, activations="float") as loaded:
        yield loaded


@pytest.fixture(scope="session")
def theirs(demo_package: Package, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    config = FAMILIES["olmoe"].config.from_pretrained(DEMO)
    source, stored = tmp_path_factory.mktemp("in float32"), tmp_path_factory.mktemp("dequantised")
    FAMILIES["olmoe"].model.from_pretrained(DEMO, dtype=torch.float32).save_pretrained(source)
    config.tie_word_embeddings = False
    save_folder(stored, state_dict(demo_package, source), config.to_json_string())
    return from_state("olmoe", config, stored)


@pytest.fixture(scope="session")
def packages() -> list[dict[str, str]]:
    """Held-out descriptions with their sections."""
    return [json.loads(line) for line in HELD_OUT.read_text().splitlines()]
