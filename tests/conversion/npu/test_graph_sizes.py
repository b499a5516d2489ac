"""Graph sizes of published shapes, and candidates for all others."""

from dataclasses import replace
from typing import Any

import pytest

from estream.conversion.npu import graph_sizes
from estream.devices.qnn.toolchain import SOCS
from estream.errors import OptionError
from estream.models import family_of
from estream.models.config import ModelConfig
from estream.models.published_shapes import SHAPES
from estream.package.npu.graph_specs import graph_specs

#: By hand: what each published expert is cut into (slices, width of each), the largest tile, and the number of graphs.
PUBLISHED = {
    "olmoe-1b-7b": (1, 1024, 256, 12),
    "qwen1.5-moe-a2.7b": (2, 704, 128, 12),
    "deepseek-v2-lite": (2, 704, 128, 12),
    "mixtral-8x7b": (56, 256, 128, 11),
    "qwen3-30b-a3b": (1, 768, 256, 12),
}
BITS = 4


def config_of(model: str) -> ModelConfig:
    return family_of(SHAPES[model]).read_config(SHAPES[model])


def published_width(model: str) -> int:
    """The intermediate size of an expert, in the words of the model's own config.json."""
    return SHAPES[model].get("moe_intermediate_size") or SHAPES[model]["intermediate_size"]


def mlp_input_bytes(hidden: int, width: int, bits: int, rows: int) -> int:
    """Three matrices of codes and fp16 scales for groups of 32; fp16 rows, sums, and a weight for each row."""
    return 3 * hidden * width * bits // 8 + 3 * hidden * width // 32 * 2 + 2 * rows * hidden * 2 + rows * 2


def stored_graphs(model: str) -> dict[str, dict[str, Any]]:
    return graph_sizes.table()["shapes"][model]["graphs"]


@pytest.mark.parametrize(("model", "expected"), PUBLISHED.items(), ids=list(PUBLISHED))
def test_published_experts_are_cut_into_equal_slices(model, expected):
    count, width, largest_tile, graphs = expected
    sizes = graph_sizes.stored_sizes(config_of(model), BITS)
    assert sizes is not None
    assert sizes.slice_width == width
    assert count * width == published_width(model), "no published width needs padding"
    assert (sizes.tiles[0], sizes.tiles[-1]) == (16, largest_tile)
    assert len(graph_specs(graph_sizes.npu_shapes(config_of(model), BITS, sizes))) == graphs


@pytest.mark.parametrize(("model", "expected"), PUBLISHED.items(), ids=list(PUBLISHED))
def test_the_compiler_found_no_spill_and_no_second_reading_in_an_expert(model, expected):
    """Its figures for every chip, beside the bytes that the published shape makes necessary."""
    _, width, largest_tile, graphs = expected
    hidden = SHAPES[model]["hidden_size"]
    assert set(stored_graphs(model)) == set(SOCS)
    for figures in stored_graphs(model).values():
        assert len(figures) == graphs
        for rows in (16, 32, 64, 128, 256):
            if rows > largest_tile:
                continue
            found = figures[f"mlp{BITS}w{width}x{rows}"]
            needed = mlp_input_bytes(hidden, width, BITS, rows)
            assert found["ideal"] == needed
            assert found["spilled"] == 0
            assert needed <= found["read"] <= 1.05 * needed
        assert sum(found["context"] for found in figures.values()) < 4_000_000


@pytest.mark.parametrize("model", ["qwen1.5-moe-a2.7b", "deepseek-v2-lite"])
def test_the_shared_expert_has_one_graph_of_8_bits(model):
    for figures in stored_graphs(model).values():
        assert [name for name in figures if name.startswith("mlp8")] == ["mlp8w704x128"]
        needed = mlp_input_bytes(2048, 704, 8, 128)
        assert figures["mlp8w704x128"]["ideal"] == needed
        assert figures["mlp8w704x128"]["spilled"] == 0
        assert figures["mlp8w704x128"]["read"] <= 1.05 * needed


def test_other_shapes_and_other_bits_are_not_in_the_table():
    config = config_of("olmoe-1b-7b")
    assert graph_sizes.stored_sizes(config, 8) is None
    assert graph_sizes.stored_sizes(replace(config, hidden=1024), BITS) is None
    assert graph_sizes.stored_sizes(replace(config, moe=replace(config.moe, experts=128)), BITS) is None


@pytest.mark.parametrize(
    ("width", "bits", "expected"),
    [
        # Whole groups of 64 at 4 bits, of 32 at 8.
        (32, 4, [64]),
        (96, 4, [128, 64]),
        (96, 8, [96, 32]),
        # Slices that pad by more than a twentieth are left out: 2 x 768 and 3 x 512 hold 1,536, 5 x 320 hold 1,600.
        (1500, 4, [768, 512, 384, 256, 192]),
    ],
)
def test_candidates_fall_in_width_and_tiles(width, bits, expected):
    config = config_of("olmoe-1b-7b")
    found = list(graph_sizes.candidates(replace(config, moe=replace(config.moe, intermediate_size=width)), bits))
    assert [(sizes.slice_width, sizes.tiles[-1]) for sizes in found] == [(w, t) for w in expected for t in (256, 128, 64)]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("model", PUBLISHED)
def test_no_candidate_has_more_than_twelve_graphs(model, bits):
    """Beside tiles there are seven: qkv, attend, output, route, gather, combine and head; and one for shared experts."""
    shared = model in ("qwen1.5-moe-a2.7b", "deepseek-v2-lite")
    for sizes in graph_sizes.candidates(config_of(model), bits):
        count = 7 + len(sizes.tiles) + (shared and bits == 4)
        assert len(graph_specs(graph_sizes.npu_shapes(config_of(model), bits, sizes))) == count <= 12


def test_too_many_tiles_are_refused():
    config = config_of("qwen1.5-moe-a2.7b")
    sizes = replace(next(graph_sizes.candidates(config, BITS)), tiles=(16, 32, 64, 128, 256))
    with pytest.raises(OptionError, match="13 graphs"):
        graph_sizes.npu_shapes(config, BITS, sizes)
