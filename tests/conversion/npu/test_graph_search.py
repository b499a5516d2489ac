"""Graph sizes are chosen by the compiler's account: one that is made up, and the vendor's on small and real shapes."""

import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("onnxruntime_qnn", reason="needs the extra 'qnn'")

from estream.conversion.npu import graph_search, graph_sizes
from estream.conversion.npu.compiler import Compiled, Traffic
from estream.conversion.npu.graph_search import Figures, GraphCompiler, choose, search
from estream.conversion.npu.target import NpuTarget
from estream.devices.qnn.toolchain import toolchain
from estream.models import family_of
from estream.models.config import ModelConfig
from estream.models.published_shapes import SHAPES
from estream.package.npu.graph_specs import mlp
from estream.package.npu.section import NpuSection

BITS = 4
SOCS = ("sm8650", "x-elite")
#: What a made-up compiler says of a graph: bytes spilled and bytes read, by chip and the graph's slice width and rows.
Account = Callable[[str, int, int], tuple[int, int]]


def config_of(model: str) -> ModelConfig:
    return family_of(SHAPES[model]).read_config(SHAPES[model])


@pytest.fixture
def odd() -> ModelConfig:
    """A model whose shape is not in the table: candidates are slices of 768, 512, ... with tiles up to 256, 128, 64."""
    config = config_of("olmoe-1b-7b")
    return replace(config, hidden=1024, moe=replace(config.moe, intermediate_size=768))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[Account], Counter[tuple[str, str]]]:
    """Puts a made-up compiler in place; what it gives counts calls by chip and graph."""

    def install(account: Account) -> Counter[tuple[str, str]]:
        calls: Counter[tuple[str, str]] = Counter()

        def compile_model(name: str, model: bytes, soc: str) -> Compiled:
            calls[soc, name] += 1
            found = re.fullmatch(r"mlp\d+w(\d+)x(\d+)", name)
            spilled, read = account(soc, int(found[1]), int(found[2])) if found else (0, 0)
            return Compiled(f"{soc} {name}".encode(), Traffic(spilled, spilled, read, 0))

        monkeypatch.setattr(graph_search, "compile_model", compile_model)
        return calls

    return install


def test_the_first_sizes_are_taken_where_their_graphs_pass(odd, compiled, caplog):
    calls = compiled(lambda soc, width, rows: (0, 0))
    sizes = choose(odd, BITS, GraphCompiler(SOCS))
    assert (sizes.slice_width, sizes.tiles) == (768, (16, 32, 64, 128, 256))
    assert set(calls) == {(soc, f"mlp4w768x{rows}") for soc in SOCS for rows in (16, 32, 64, 128, 256)}
    assert caplog.records == []


def test_the_next_sizes_are_taken_where_a_graph_spills_on_one_chip(odd, compiled, caplog):
    calls = compiled(lambda soc, width, rows: (4096 if soc == "x-elite" and rows > 128 else 0, 0))
    sizes = choose(odd, BITS, GraphCompiler(SOCS))
    assert (sizes.slice_width, sizes.tiles) == (768, (16, 32, 64, 128))
    assert max(calls.values()) == 1
    assert caplog.records == []


def test_the_next_sizes_are_taken_where_a_graph_reads_its_weights_twice(odd, compiled):
    compiled(lambda soc, width, rows: (0, 10**8 if width > 512 else 0))
    assert choose(odd, BITS, GraphCompiler(SOCS)).slice_width == 384, "768 in two equal slices"


def test_the_best_sizes_are_taken_with_a_warning_where_none_pass(odd, compiled, caplog):
    calls = compiled(lambda soc, width, rows: (width * rows + (soc == "sm8650"), 2 * 10**6))
    sizes = choose(odd, BITS, GraphCompiler(SOCS))
    widths = [found.slice_width for found in graph_sizes.candidates(odd, BITS)]
    assert (sizes.slice_width, sizes.tiles) == (min(widths), (16, 32, 64))
    assert max(calls.values()) == 1
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == 2 * 3
    for soc in SOCS:
        for rows in (16, 32, 64):
            (message,) = [m for m in messages if f"graph 'mlp4w{min(widths)}x{rows}' for {soc} spills" in m]
            assert "times its inputs" in message
    # 64 rows times 192 values.
    assert sum("spills 12 KiB" in message for message in messages) == 2


def test_sizes_in_the_table_are_tried_first(compiled):
    mixtral = config_of("mixtral-8x7b")
    calls = compiled(lambda soc, width, rows: (0, 0))
    assert choose(mixtral, BITS, GraphCompiler(SOCS)).tiles[-1] == 128
    assert (SOCS[0], "mlp4w256x256") not in calls, "which the rule would offer first"


def test_sizes_in_the_table_that_spill_now_are_not_taken(compiled):
    """As another release of the compiler may have it."""
    compiled(lambda soc, width, rows: (width if width > 128 else 0, 0))
    assert choose(config_of("mixtral-8x7b"), BITS, GraphCompiler(SOCS)).slice_width == 128


def test_without_a_chip_other_shapes_are_unchecked_and_a_warning_says_so(odd, compiled, caplog):
    calls = compiled(lambda soc, width, rows: (1, 0))
    assert choose(odd, BITS, GraphCompiler(())) == next(graph_sizes.candidates(odd, BITS))
    assert not calls
    (record,) = caplog.records
    assert record.name == "estream"
    assert "olmoe are not checked" in record.getMessage()


def test_without_a_chip_the_table_needs_no_warning(compiled, caplog):
    compiled(lambda soc, width, rows: (1, 0))
    assert choose(config_of("mixtral-8x7b"), BITS, GraphCompiler(())).slice_width == 256
    assert caplog.records == []


def test_a_package_gets_the_graphs_that_were_checked(odd, compiled):
    calls = compiled(lambda soc, width, rows: (rows if rows > 128 else 0, 0))
    target = NpuTarget.of(odd, BITS, SOCS)
    assert set(target.section.contexts) == set(SOCS)
    for soc in SOCS:
        assert len(target.section.contexts[soc]) == 7 + 4
        for name in target.section.contexts[soc]:
            assert target.files[NpuSection.file(soc, name)] == f"{soc} {name}".encode()
    assert len(target.files) == 2 * 11
    # What was rejected was compiled once, and nothing twice.
    assert set(calls) - {(soc, name) for soc in SOCS for name in target.section.contexts[soc]} == {
        (soc, "mlp4w768x256") for soc in SOCS
    }
    assert max(calls.values()) == 1


def test_a_spill_or_a_second_reading_does_not_pass():
    figures = Figures(read=1_050_000 + 32_768, ideal=1_000_000, written=0, spilled=0, context=0)
    assert figures.passes
    assert not replace(figures, read=figures.read + 1).passes
    assert not replace(figures, spilled=1).passes


@pytest.mark.parametrize("soc", ["sm8650", "x-elite"])
@pytest.mark.parametrize(("model", "graph"), [("olmoe-1b-7b", "mlp4w1024x256"), ("mixtral-8x7b", "mlp4w256x128")])
def test_the_table_is_what_the_compiler_says(model, graph, soc):
    table = graph_sizes.table()
    if table["toolchain"] != toolchain():
        pytest.skip(
            f"graph_sizes.json is of {table['toolchain']}, installed are {toolchain()}: run benchmarks/npu_graph_sizes.py"
        )
    sizes = graph_sizes.stored_sizes(config_of(model), BITS)
    shapes = graph_sizes.npu_shapes(config_of(model), BITS, sizes)
    (found,) = GraphCompiler([soc]).compile([mlp(shapes, shapes.expert, shapes.expert.tiles[-1])], shapes)
    stored = table["shapes"][model]["graphs"][soc][graph]
    assert found.spec.name == graph
    assert (found.figures.read, found.figures.spilled) == (stored["read"], stored["spilled"])
    assert found.compiled.traffic.written == stored["written"]


def test_what_really_spills_is_rejected():
    """Mixtral's experts spill with 256 rows, and do not with 128."""
    config = config_of("mixtral-8x7b")
    first = next(graph_sizes.candidates(config, BITS))
    offered = [replace(first, tiles=(256,)), replace(first, tiles=(128,))]
    assert search(config, BITS, GraphCompiler(["sm8750"]), offered).tiles == (128,)


def test_small_graphs_really_pass(caplog):
    """Their inputs are rounded up to more than a twentieth; that is not a second reading."""
    config = config_of("olmoe-1b-7b")
    tiny = replace(config, hidden=64, moe=replace(config.moe, intermediate_size=64))
    offered = [replace(sizes, tiles=(16, 256)) for sizes in graph_sizes.candidates(tiny, BITS)]
    compiler = GraphCompiler(["sm8750"])
    assert search(tiny, BITS, compiler, offered).slice_width == 64
    assert caplog.records == []
