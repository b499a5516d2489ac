"""Compiles every graph of published shapes for named SoCs, offline, and says what the compiler counts: bytes read, written and
spilled by a call, and the size of the binaries. Nothing here is a time on an NPU.

    python benchmarks/npu_graph_sizes.py                     all shapes, all SoCs, with the sizes of graph_sizes.json
    python benchmarks/npu_graph_sizes.py --search --write    search the sizes anew and write graph_sizes.json
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from estream.conversion.npu import graph_sizes
from estream.conversion.npu.graph_search import Figures, GraphCompiler, search
from estream.conversion.npu.graph_sizes import GraphSizes
from estream.devices.qnn.toolchain import SOCS, toolchain
from estream.models import family_of
from estream.models.config import ModelConfig
from estream.models.published_shapes import SHAPES
from estream.package.npu.graph_specs import graph_specs

TABLE = Path(__file__).parents[1] / "src/estream/conversion/npu/graph_sizes.json"
MODELS = ("olmoe-1b-7b", "qwen1.5-moe-a2.7b", "deepseek-v2-lite", "mixtral-8x7b", "qwen3-30b-a3b")
BITS = 4


def config_of(model: str) -> ModelConfig:
    return family_of(SHAPES[model]).read_config(SHAPES[model])


def measure(config: ModelConfig, sizes: GraphSizes, compiler: GraphCompiler) -> dict[str, dict[str, Figures]]:
    """Figures by SoC and graph."""
    shapes = graph_sizes.npu_shapes(config, BITS, sizes)
    found: dict[str, dict[str, Figures]] = {soc: {} for soc in compiler.socs}
    for graph in compiler.compile(graph_specs(shapes), shapes):
        found[graph.soc][graph.spec.name] = graph.figures
    return found


def show(model: str, by_soc: dict[str, dict[str, Figures]]) -> None:
    """Worst figures over the SoCs."""
    print(f"\n{model}\n\n| graph | read MB | of ideal | written MB | spilled MB | binary KB |\n{'| --- ' * 6}|")
    for name in next(iter(by_soc.values())):
        every = [figures[name] for figures in by_soc.values()]
        read, written, spilled = (max(getattr(f, key) for f in every) for key in ("read", "written", "spilled"))
        context = max(f.context for f in every)
        cells = (f"{read / 1e6:.2f}", f"{read / every[0].ideal:.3f}", f"{written / 1e6:.2f}", f"{spilled / 1e6:.2f}")
        mark = " FAILS" if name.startswith("mlp") and not all(f.passes for f in every) else ""
        print(f"| {name} | {' | '.join(cells)} | {context / 1e3:.0f}{mark} |")
    totals = ", ".join(f"{soc} {sum(f.context for f in figures.values()) / 1e6:.2f}" for soc, figures in by_soc.items())
    print(f"\n{len(next(iter(by_soc.values())))} graphs; binaries together, MB: {totals}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--soc", action="append", choices=list(SOCS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--search", action="store_true", help="search sizes instead of taking those of graph_sizes.json")
    parser.add_argument("--write", action="store_true", help="write graph_sizes.json")
    options = parser.parse_args()
    socs = options.soc or list(SOCS)
    table: dict[str, Any] = json.loads(TABLE.read_text())
    table["toolchain"] = toolchain()
    print(f"{table['toolchain']}; {', '.join(socs)}; worst SoC in each row")
    for model in options.model or MODELS:
        config = config_of(model)
        compiler = GraphCompiler(socs, options.jobs)
        sizes = None if options.search else graph_sizes.stored_sizes(config, BITS)
        if sizes is None:
            sizes = search(config, BITS, compiler, graph_sizes.candidates(config, BITS))
        by_soc = measure(config, sizes, compiler)
        print(f"\n{sizes}")
        show(model, by_soc)
        entry = graph_sizes.entry(config, BITS, sizes)
        entry["graphs"] = {soc: {name: asdict(f) for name, f in figures.items()} for soc, figures in by_soc.items()}
        table["shapes"][model] = entry
        if options.write:
            TABLE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
