"""The sizes of the NPU's graphs: what graph_sizes.json promises for published shapes, and the rule for all others."""

from dataclasses import replace

import pytest

pytest.importorskip("onnxruntime_qnn", reason="needs the extra 'qnn'")

from estream.conversion.npu import graph_sizes
from estream.conversion.npu.compiler import parse_traffic
from estream.devices.qnn.toolchain import SOCS, toolchain
from estream.errors import DeviceError, OptionError
from estream.models import family_of
from estream.models.config import ModelConfig
from estream.models.published_shapes import SHAPES
from estream.package.npu.graph_specs import graph_specs, mlp

MODELS = ("olmoe-1b-7b", "qwen1.5-moe-a2.7b", "deepseek-v2-lite", "mixtral-8x7b", "qwen3-30b-a3b")
BITS = 4


def config_of(model: str) -> ModelConfig:
    return family_of(SHAPES[model]).read_config(SHAPES[model])


@pytest.mark.parametrize("model", MODELS)
def test_the_table_keeps_what_is_promised(model):
    """Every expert graph without spill and re-reading, and a model's binaries small, for every SoC."""
    shapes = graph_sizes.choose(config_of(model), BITS)
    specs = {spec.name: spec for spec in graph_specs(shapes)}
    assert len(specs) <= graph_sizes.LARGEST_COUNT
    graphs = graph_sizes.table()["shapes"][model]["graphs"]
    assert set(graphs) == set(SOCS)
    for by_name in graphs.values():
        assert set(by_name) == set(specs)
        figures = {name: graph_sizes.Figures(**stored) for name, stored in by_name.items()}
        for name, found in figures.items():
            assert found.ideal == sum(tensor.bytes for tensor in specs[name].inputs)
            assert found.passes or specs[name].kind != "mlp", name
        assert sum(found.context for found in figures.values()) < 4_000_000


@pytest.mark.parametrize("model", MODELS)
def test_slices_cover_an_expert(model):
    config = config_of(model)
    shapes = graph_sizes.choose(config, BITS)
    assert config.moe.intermediate_size % shapes.expert.slice_width == 0, "no published width needs padding"
    assert 16 in shapes.expert.tiles
    assert shapes.routing.window >= max(shapes.expert.tiles)


@pytest.mark.parametrize("soc", ["sm8650", "x-elite"])
@pytest.mark.parametrize("model", ["olmoe-1b-7b", "mixtral-8x7b"])
def test_the_table_is_what_the_compiler_says(model, soc):
    table = graph_sizes.table()
    if table["toolchain"] != toolchain():
        pytest.skip(
            f"graph_sizes.json is of {table['toolchain']}, installed are {toolchain()}: run benchmarks/npu_graph_sizes.py"
        )
    shapes = graph_sizes.choose(config_of(model), BITS)
    spec = mlp(shapes, shapes.expert, shapes.expert.tiles[-1])
    found, stored = (
        graph_sizes.figures(spec, shapes, soc),
        graph_sizes.Figures(**table["shapes"][model]["graphs"][soc][spec.name]),
    )
    assert (found.read, found.written, found.spilled) == (stored.read, stored.written, stored.spilled)


def test_the_search_rejects_what_spills():
    """Mixtral's experts with tiles of 256 rows spill; the search goes on to 128."""
    config = config_of("mixtral-8x7b")
    first, second = list(graph_sizes.candidates(config, BITS))[:2]
    assert (first.tiles[-1], second.tiles[-1]) == (256, 128)
    shapes = graph_sizes.shapes(config, BITS, first)
    assert not graph_sizes.figures(mlp(shapes, shapes.expert, 256), shapes, "sm8750").passes
    assert graph_sizes.table()["shapes"]["mixtral-8x7b"]["sizes"]["tiles"][-1] == 128


def test_a_spill_or_a_second_reading_does_not_pass():
    figures = graph_sizes.Figures(read=1050, ideal=1000, written=0, spilled=0, context=0)
    assert figures.passes
    assert not replace(figures, read=1051).passes
    assert not replace(figures, spilled=1).passes


@pytest.mark.parametrize(("width", "bits", "expected"), [(96, 4, 128), (96, 8, 96), (1500, 4, 768), (32, 4, 64)])
def test_the_rule_pads_odd_widths_to_whole_groups(width, bits, expected):
    config = config_of("olmoe-1b-7b")
    odd = replace(config, moe=replace(config.moe, intermediate_size=width))
    shapes = graph_sizes.choose(odd, bits)
    assert shapes.expert.slice_width == expected
    assert -(-width // expected) * expected - width < expected


def test_the_rule_keeps_the_number_of_graphs():
    for model in MODELS:
        for bits in (4, 8):
            assert all(
                len(graph_specs(graph_sizes.shapes(config_of(model), bits, s))) <= 12
                for s in graph_sizes.candidates(config_of(model), bits)
            )
    config = config_of("qwen1.5-moe-a2.7b")
    tiles = replace(next(graph_sizes.candidates(config, BITS)), tiles=(16, 32, 64, 128, 256))
    with pytest.raises(OptionError, match="13 graphs"):
        graph_sizes.shapes(config, BITS, tiles)


def test_traffic_is_read_from_the_log():
    log = "x DDR bandwidth summary: spill_bytes=1 fill_bytes=2 write_total_bytes=30 read_total_bytes=40\nspill_bytes=5"
    traffic = parse_traffic("g", log)
    assert (traffic.spilled, traffic.filled, traffic.written, traffic.read) == (6, 2, 30, 40)
    with pytest.raises(DeviceError, match="graph 'g': no 'spill_bytes='"):
        parse_traffic("g", "another release")
