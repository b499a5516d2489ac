"""How a calibration text uses experts: counted as defined, and packages whose experts lie most used first."""

import os
from pathlib import Path

import layouts
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_files import SHAPES as GGUF_SHAPES
from gguf_files import GgufModel
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from reordered import order_on_tape, page_bytes
from routing_recorder import RoutingRecorder
from tiny import FAMILIES, OLMOE_SHAPES, make_olmoe, make_tiny

import estream
from estream.conversion.convert import ConvertOptions, convert
from estream.engine.routing import RoutingLists
from estream.errors import PackageError
from estream.models import family_of
from estream.models.config import ModelConfig
from estream.models.published_shapes import SHAPES
from estream.package.package import Package, open_package
from estream.package.writer import PackageWriter
from estream.quantization.use import UseTally

MODEL = family_of(SHAPES["olmoe-1b-7b"]).read_config(SHAPES["olmoe-1b-7b"])


def _config(experts: int, top_k: int, dense: tuple[int, ...] = ()) -> ModelConfig:
    return replace(MODEL, layers=3, dense_layers=dense, moe=replace(MODEL.moe, experts=experts, top_k=top_k))


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    experts=st.integers(1, 12),
    few=st.integers(1, 12),
    dense=st.booleans(),
    seed=st.integers(0, 100),
)
def test_what_is_counted_is_what_was_chosen(lengths: list[int], experts: int, few: int, dense: bool, seed: int):
    rng = np.random.default_rng(seed)
    top_k = min(2, experts)
    config = _config(experts, top_k, (0,) if dense else ())
    tally = UseTally(config, [np.zeros(n, np.int32) for n in lengths])
    if dense:
        tally.add(RoutingLists.none())
    # Of some experts none is chosen.
    usable = rng.permutation(experts)[: max(top_k, few)]
    ids = np.stack([rng.permutation(usable)[:top_k] for _ in range(sum(lengths))]).astype(np.int32)
    tally.add(RoutingLists.of(ids, np.ones(ids.shape, np.float32), experts))
    use = tally.use()
    use.check(config)
    (layer,) = use.layers
    assert layer.layer == int(dense)
    assert layer.tokens == sum(lengths)
    counts = [int((ids == e).sum()) for e in range(experts)]
    assert layer.chosen == counts
    assert tally.order == [*([()] if dense else []), tuple(sorted(range(experts), key=lambda e: (-counts[e], e)))]
    windows = np.split(ids, np.cumsum(lengths)[:-1])
    expected = []
    tokens = 1
    while tokens <= max(lengths):
        shares = [len(np.unique(w[:tokens])) / experts for w in windows if len(w) >= tokens]
        expected.append((tokens, np.mean(shares), len(shares)))
        tokens *= 2
    found = [(x.tokens, x.share, x.weight) for x in layer.curve]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def _checkpoint(kind: str, folder: Path) -> Path:
    """A checkpoint whose experts keep their codes, or whose layers are dense, or that has neither."""
    if kind == "GGUF":
        model = make_tiny(folder / "hf", "olmoe", GGUF_SHAPES["olmoe"] | {"num_hidden_layers": 2})
        GgufModel.of(model, "olmoe", lambda _: Kind.Q4_0).write(folder / "model.gguf")
        return folder / "model.gguf"
    if kind == "dense":
        make_tiny(folder / "source", "deepseek_v2", FAMILIES["deepseek_v2"].shapes["as V2-Lite"])
        return folder / "source"
    make_olmoe(folder / "source", OLMOE_SHAPES["8 experts, grouped queries"])
    if kind == "plain":
        return folder / "source"
    one, settings = {"GPTQ": (layouts.gptq(32, True), layouts.GPTQ), "AWQ": (layouts.awq(32), layouts.AWQ)}[kind]
    packed, _ = layouts.compress(layouts.load(folder / "source"), one)
    return layouts.write(folder / "source", folder / "packed", packed, quantization_config=settings)


def _text(path: Path, vocabulary: int) -> Path:
    """Ids that are not even: some experts are chosen more often."""
    np.save(path, (vocabulary * np.random.default_rng(0).random(2500) ** 3).astype(np.int64))
    return path


@pytest.mark.parametrize(("kind", "bits"), [("plain", 8), ("dense", 8), ("GPTQ", 4), ("GPTQ", 8), ("AWQ", 4), ("GGUF", 4)])
def test_where_no_codes_are_chosen_a_text_only_orders_experts(kind: str, bits: int, tmp_path: Path):
    source = _checkpoint(kind, tmp_path)
    plain = convert(source, tmp_path / "plain.estream", ConvertOptions(bits))
    text = _text(tmp_path / "ids.npy", plain.manifest.config.vocabulary)
    ordered = convert(source, tmp_path / "ordered.estream", ConvertOptions(bits, calibrate=text))
    assert page_bytes(ordered) == page_bytes(plain)
    assert ordered.embedding_path.read_bytes() == plain.embedding_path.read_bytes()
    assert ordered.manifest.report == plain.manifest.report
    assert ordered.manifest.source == plain.manifest.source
    assert (plain.manifest.use, plain.manifest.expert_order) == (None, None)
    _lies_most_used_first(ordered)
    assert order_on_tape(ordered) != order_on_tape(plain)
    if kind in ("GPTQ", "GGUF"):
        weights = {entry["kind"]: entry for entry in ordered.manifest.source["conversion"]["weights"]}
        assert weights["expert"]["kept"] > 0


def _lies_most_used_first(package: Package) -> None:
    manifest = package.manifest
    assert manifest.use is not None
    assert manifest.expert_order is not None
    sparse = [layer for layer in range(manifest.config.layers) if layer not in manifest.config.dense_layers]
    assert [use.layer for use in manifest.use.layers] == sparse
    assert list(manifest.expert_order) == order_on_tape(package)
    for use in manifest.use.layers:
        chosen, order = use.chosen, manifest.expert_order[use.layer]
        assert sum(chosen) == use.tokens * manifest.config.moe.top_k
        assert list(order) == sorted(range(len(chosen)), key=lambda e: (-chosen[e], e))


def test_calibrated_codes_come_with_the_order_and_what_is_counted_is_what_a_sweep_chooses(tmp_path: Path):
    source = _checkpoint("plain", tmp_path)
    text = _text(tmp_path / "ids.npy", 330)
    package = convert(source, tmp_path / "out.estream", ConvertOptions(calibrate=text))
    _lies_most_used_first(package)
    report, use = package.manifest.report, package.manifest.use
    assert report is not None
    assert use is not None
    assert report.calibration == {"text": "ids.npy", "tokens": 2500, "windows": 5}
    ids = np.load(text)
    windows = [ids[first : first + 512].tolist() for first in range(0, 2500, 512)]
    with estream.load(package.path) as model:
        recorder = RoutingRecorder(model)
        model.prefill_batch(windows, [range(len(window)) for window in windows])
    for layer, (chosen, _) in zip(use.layers, recorder.seen, strict=True):
        assert np.bincount(chosen.reshape(-1), minlength=8).tolist() == layer.chosen


def test_a_conversion_that_fails_amid_ordered_experts_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = _checkpoint("plain", tmp_path)
    text = _text(tmp_path / "ids.npy", 330)
    options = ConvertOptions(8, calibrate=text, force=True)
    before = convert(source, tmp_path / "out.estream", options)
    write = PackageWriter.add_page

    def failing(writer: PackageWriter, spec, data) -> None:
        if (spec.kind, spec.layer) == ("expert", 1):
            raise OSError(28, "No space left on device")
        write(writer, spec, data)

    with monkeypatch.context() as patch:
        patch.setattr(PackageWriter, "add_page", failing)
        with pytest.raises(PackageError, match="the disk is full"):
            convert(source, tmp_path / "out.estream", options)
    assert sorted(os.listdir(tmp_path)) == ["ids.npy", "out.estream", "source"]
    assert open_package(before.path, "cpu").manifest == before.manifest
    again = convert(source, tmp_path / "out.estream", options)
    assert again.manifest == before.manifest
