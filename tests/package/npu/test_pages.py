"""The tape of a package for the NPU, and where tensors lie in its pages."""

from dataclasses import replace
from itertools import pairwise

import pytest
from qnn_tiny import SHAPES

from estream.models import family_of
from estream.models.config import ModelConfig
from estream.models.published_shapes import SHAPES as PUBLISHED
from estream.package.npu.pages import build_tape, mlp_shapes, page_layout

OLMOE = PUBLISHED["olmoe-1b-7b"] | {"num_hidden_layers": 2, "num_experts": 3, "num_experts_per_tok": 1, "vocab_size": 200}


def config(**changes: int) -> ModelConfig:
    values = OLMOE | changes
    return family_of(values).read_config(values)


def test_an_expert_page_holds_the_weights_of_its_graph_one_after_another():
    """By hand, of 4 bits: matrices 128 x 64 twice and 64 x 128; two codes in a byte, a scale of 2 bytes for each 32 inputs."""
    layout = page_layout(SHAPES, "expert")
    sizes = []
    for name, codes, scales in (("gate", 4096, 256), ("up", 4096, 256), ("down", 4096, 256)):
        sizes += [(f"{name}_codes", codes), (f"{name}_low", scales), (f"{name}_high", scales)]
    assert [(part.name, part.bytes) for part in layout.parts] == sizes
    assert [part.offset for part in layout.parts] == [0, 4096, 4352, 4608, 8704, 8960, 9216, 13312, 13568]


@pytest.mark.parametrize("kind", ["attention", "router", "shared", "expert", "head"])
def test_tensors_begin_at_multiples_of_256_bytes_and_do_not_overlap(kind):
    parts = page_layout(SHAPES, kind).parts
    assert all(part.offset % 256 == 0 for part in parts)
    assert all(part.offset + part.bytes <= behind.offset for part, behind in pairwise(parts))


def test_pages_lie_in_the_order_of_a_sweep():
    """Intermediate sizes of 160 in slices of 64: the last one has 32. A vocabulary of 200 in slices of 96: the last has 8."""
    pages = list(build_tape(config(intermediate_size=160), SHAPES))
    layer = ["attention", "router", *["expert"] * 9]
    assert [page.kind for page in pages] == [*layer, *layer, "head", "head", "head"]
    experts = [(page.expert, page.slice, page.first, page.count) for page in pages[2:11]]
    assert experts == [(e, i, first, count) for e in range(3) for i, first, count in ((0, 0, 64), (1, 64, 64), (2, 128, 32))]
    assert [(page.first, page.count) for page in pages[-3:]] == [(0, 96), (96, 96), (192, 8)]


def test_an_expert_of_one_slice_has_no_number_of_a_slice():
    experts = [page for page in build_tape(config(intermediate_size=64), SHAPES) if page.kind == "expert"]
    assert {page.slice for page in experts} == {-1}
    assert len(experts) == 2 * 3


def test_mlps_of_all_tokens_are_experts_where_they_have_no_shapes_of_their_own():
    assert mlp_shapes(SHAPES, "shared") is SHAPES.shared
    assert mlp_shapes(SHAPES, "expert") is SHAPES.expert
    assert mlp_shapes(replace(SHAPES, shared=None), "shared") is SHAPES.expert
