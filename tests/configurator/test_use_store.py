"""What is learned of a package's experts is kept, and lost without harm."""

import os

import numpy as np
import pytest

from estream.api.model import Model
from estream.configurator import use_store
from estream.configurator.use_store import KeptUse, learned_use, path_of
from estream.engine.batch import BatchShape
from estream.engine.options import LoadOptions
from estream.package.package import Package

SHAPE = BatchShape.of_prompt(40)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ESTREAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def counts(package: Package) -> np.ndarray:
    config = package.manifest.config
    found = np.zeros((config.layers, config.moe.experts), np.int64)
    found[:, : config.moe.top_k] = 40
    return found


def test_a_model_learns_and_the_next_one_knows(demo_package: Package):
    assert not learned_use(demo_package).is_known
    ids = np.random.default_rng(0).integers(0, demo_package.manifest.config.vocabulary, 40)
    with Model(demo_package, LoadOptions()) as model:
        first = model.prefill(ids)
    known = learned_use(demo_package)
    assert known.is_known
    with Model(demo_package, LoadOptions(pinned_bytes=0, ring_bytes=0)) as model:
        np.testing.assert_array_equal(model.prefill(ids).logits, first.logits)


def test_nothing_is_written_where_nothing_was_learned(demo_package: Package, cache):
    KeptUse(demo_package).keep()
    assert not cache.exists()


def test_a_damaged_file_is_said_and_learned_again(demo_package: Package, caplog):
    kept = KeptUse(demo_package)
    kept.observe(counts(demo_package), SHAPE)
    kept.keep()
    for text in ("{", '{"layers":[{"layer":0,"tokens":1,"chosen":[1],"curve":[]}]}', '{"layers":[{"layer":0,"tokens":-1}]}'):
        path_of(demo_package).write_text(text)
        assert not learned_use(demo_package).is_known
        assert "learned again" in caplog.text
        caplog.clear()


def test_a_folder_that_cannot_be_written_to_is_no_error(demo_package: Package, cache):
    cache.parent.joinpath("cache").write_text("a file stands in its place")
    kept = KeptUse(demo_package)
    kept.observe(counts(demo_package), SHAPE)
    kept.keep()
    assert kept.learned.is_known


def test_old_files_go(demo_package: Package, cache, monkeypatch):
    monkeypatch.setattr(use_store, "_FILES", 2)
    cache.mkdir()
    for age in range(3):
        (cache / f"use-{age}.json").write_text("{}")
        os.utime(cache / f"use-{age}.json", (1e9 - age, 1e9 - age))
    kept = KeptUse(demo_package)
    kept.observe(counts(demo_package), SHAPE)
    kept.keep()
    assert {path.name for path in cache.glob("use-*")} == {"use-0.json", path_of(demo_package).name}
