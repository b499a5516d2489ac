"""The order of experts in a package: one permutation a layer, checked; packages without one are read by id."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run
from demo_answers import IDS
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from reordered import order_on_tape, page_bytes, random_order, reorder, reordered, sealed

import estream
from estream.errors import PackageError
from estream.models.config import ModelConfig
from estream.package.expert_order import check_expert_order
from estream.package.expert_use import ExpertUse, LayerUse, UsedShare
from estream.package.layout import build_tape
from estream.package.manifest import Manifest
from estream.package.package import Package, open_package
from estream.package.tapes import count_pages, tape_of
from estream.package.verify import verify
from estream.schema import SchemaError

BY_ID = tuple(range(16))


@pytest.fixture(scope="module")
def use(demo_package: Package) -> ExpertUse:
    curve = [UsedShare(1.0, 0.25, 3.0), UsedShare(2.0, 0.375, 2.0)]
    return ExpertUse([LayerUse(layer, 100.0, [25.0] * 16, curve) for layer in range(demo_package.manifest.config.layers)])


def _shape(base: ModelConfig, layers: int, experts: int, dense: frozenset[int]) -> ModelConfig:
    moe = replace(base.moe, experts=experts, top_k=min(base.moe.top_k, experts))
    dense_layers = tuple(sorted(layer for layer in dense if layer < layers))
    return replace(base, layers=layers, moe=moe, dense_layers=dense_layers, intermediate_size=128)


@given(
    layers=st.integers(1, 5),
    experts=st.integers(1, 40),
    slices=st.sampled_from([1, 2, 4]),
    dense=st.frozensets(st.integers(1, 4), max_size=3),
    seed=st.integers(0, 1000),
)
def test_a_tape_in_another_order_has_the_same_pages_and_a_manifest_holds_it(
    demo_package: Package, layers: int, experts: int, slices: int, dense: frozenset[int], seed: int
):
    config = _shape(demo_package.manifest.config, layers, experts, dense)
    quantization = replace(demo_package.manifest.quantization, expert_slices=slices)
    by_id = list(build_tape(config, quantization))
    order = random_order(config, seed)
    check_expert_order(order, config)
    tape = list(tape_of(config, quantization, None, order))
    assert len(tape) == count_pages(config, quantization, None)
    rank = [{expert: place for place, expert in enumerate(experts)} for experts in order]

    def place(item: tuple[int, Any]) -> tuple[int, int]:
        index, spec = item
        if spec.kind != "expert":
            return index, 0
        first = next(i for i, s in enumerate(by_id) if s.kind == "expert" and s.layer == spec.layer)
        return first, rank[spec.layer][spec.expert] * slices + max(spec.slice, 0)

    assert tape == [spec for _, spec in sorted(enumerate(by_id), key=place)]
    base = dataclasses.replace(demo_package.manifest, config=config, quantization=quantization)
    base = dataclasses.replace(base, tape=tuple(_pages(base)))
    manifest = reordered(base, order)
    text = manifest.to_json()
    read = Manifest.from_json(Path("m"), text.encode())
    assert read == manifest
    assert read.to_json() == text


def _pages(manifest: Manifest) -> Any:
    page, end = manifest.tape[0], 0
    for index, spec in enumerate(build_tape(manifest.config, manifest.quantization)):
        yield (made := type(page)(index, spec, end, index))
        end += made.padded_bytes


@given(
    experts=st.integers(1, 12),
    order=st.lists(st.lists(st.integers(0, 13), max_size=13).map(tuple), max_size=4).map(tuple),
    dense=st.frozensets(st.integers(0, 2), max_size=2),
)
def test_all_but_permutations_is_refused_by_field(
    demo_package: Package, experts: int, order: tuple[tuple[int, ...], ...], dense: frozenset[int]
):
    config = _shape(demo_package.manifest.config, 3, experts, dense)
    expected = [[] if layer in config.dense_layers else list(range(experts)) for layer in range(3)]
    if [sorted(layer) for layer in order] == expected:
        check_expert_order(order, config)
        return
    with pytest.raises(SchemaError, match="^'expert_order"):
        check_expert_order(order, config)


def _first(package: Package, *first: Any) -> list[Any]:
    layers = package.manifest.config.layers
    return [*first, *([list(BY_ID)] * (layers - len(first)))]


REFUSED: dict[str, tuple[list[Any], str]] = {
    "too short": ([list(BY_ID[:15])], r"'expert_order\[0\]' names 15 experts, the model has 16"),
    "too long": ([list(BY_ID), [*BY_ID, 0]], r"'expert_order\[1\]' names 17 experts, the model has 16"),
    "twice": (
        [[1, *BY_ID[1:]]],
        r"'expert_order\[0\]' must name each expert once, found expert 0 nowhere and another twice",
    ),
    "beyond the experts": ([[16, *BY_ID[1:]]], r"'expert_order\[0\]' names expert 16, the model has 16"),
    "beyond any": ([[1 << 16, *BY_ID[1:]]], r"'expert_order\[0\]\[0\]' must be int <= 65535, found 65536"),
    "negative": ([[-1, *BY_ID[1:]]], r"'expert_order\[0\]\[0\]' must be int >= 0, found -1"),
    "a text": (["0"], r"'expert_order\[0\]' must be array, found '0'"),
    "another order than the pages'": ([[1, 0, *BY_ID[2:]]], "page 2 is .*its config implies"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_order_is_refused_by_name(case: str, demo_package: Package):
    first, message = REFUSED[case]
    text = sealed(demo_package.manifest, expert_order=_first(demo_package, *first))
    with pytest.raises(PackageError, match=rf"^m: {message}.*; convert the model again$"):
        Manifest.from_json(Path("m"), text)


def test_layers_too_few_or_dense_and_packages_for_the_npu_are_refused(demo_package: Package):
    manifest = demo_package.manifest
    whole = _first(demo_package)
    for text, message in (
        (sealed(manifest, expert_order=whole[1:]), r"'expert_order' has 5 layers, the model has 6"),
        (sealed(manifest, expert_order=[]), r"'expert_order' has 0 layers, the model has 6"),
        (sealed(manifest, expert_order=whole, device="qnn"), "'expert_order' must be null in a package for the NPU"),
        (sealed(manifest, expert_order=whole, version=2), "'expert_order' and 'use' belong to version 3, found version 2"),
    ):
        with pytest.raises(PackageError, match=message):
            Manifest.from_json(Path("m"), text)
    config = replace(manifest.config, dense_layers=(1,))
    with pytest.raises(SchemaError, match=r"'expert_order\[1\]' must be empty, found 16 experts: the layer is dense"):
        check_expert_order((BY_ID,) * 6, config)


def test_use_that_is_not_the_models_is_refused(demo_package: Package):
    layer = {"layer": 0, "tokens": 1.0, "chosen": [1.0] * 16, "curve": []}
    for layers, message in (
        ([layer | {"layer": 6}], "the use of layer 6 does not belong"),
        ([layer | {"chosen": [1.0] * 15}], "the use of layer 0 counts 15 experts, the model has 16"),
        ([layer | {"tokens": 0}], r"'use.layers\[0\].tokens' must be float > 0"),
        ([layer | {"curve": [{"tokens": 1, "share": 1.5, "weight": 1}]}], "share' must be float <= 1.0, found 1.5"),
    ):
        with pytest.raises(PackageError, match=message):
            Manifest.from_json(Path("m"), sealed(demo_package.manifest, use={"layers": layers}))


def test_packages_of_version_2_are_read_by_id(demo_package: Package, demo_copy: Package, demo_logits: np.ndarray):
    """A manifest as it was written before there was an order."""
    text = sealed(demo_package.manifest, ("expert_order", "use"), version=2)
    (demo_copy.path / "manifest.json").write_bytes(text)
    old = open_package(demo_copy.path, "cpu")
    assert old.manifest == demo_package.manifest
    assert (old.manifest.expert_order, old.manifest.use) == (None, None)
    assert order_on_tape(old) == [BY_ID] * 6
    assert verify(old).damaged == []
    with estream.load(old.path) as model:
        np.testing.assert_array_equal(model.prefill(IDS).logits, demo_logits)


def test_an_ordered_package_is_verified_and_described(demo_package: Package, use: ExpertUse, tmp_path: Path):
    order = random_order(demo_package.manifest.config, 1)
    package = reorder(demo_package, order, tmp_path / "ordered.estream", use)
    assert open_package(package.path, "cpu").manifest == package.manifest
    assert package.manifest.use == use
    assert order_on_tape(package) == list(order)
    assert page_bytes(package) == page_bytes(demo_package)
    assert verify(package).damaged == []
    shown = run("inspect", package.path).stdout
    assert "most used first, use known from 100 tokens" in shown
    assert "by id" in run("inspect", demo_package.path).stdout
    page = next(p for p in package.manifest.tape if p.spec.kind == "expert")
    with open(package.pages_path, "r+b") as file:
        file.seek(page.offset)
        file.write(b"\xff\xff\xff")
    (damaged,) = verify(package).damaged
    assert f"layer 0 expert {order[0][0]} at offset {page.offset}: wrong checksum" in damaged
