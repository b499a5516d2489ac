"""What conversions with a calibration text share."""

from pathlib import Path

import numpy as np
import pytest
from tiny import OLMOE_SHAPES, make_olmoe

SHAPE = OLMOE_SHAPES["8 experts, grouped queries"]


@pytest.fixture(scope="module")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibration") / "tiny"
    make_olmoe(folder, SHAPE)
    return folder


@pytest.fixture(scope="module")
def ids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ids") / "ids.npy"
    np.save(path, np.random.default_rng(0).integers(0, 330, 2500))
    return path
