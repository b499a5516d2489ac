"""``estream convert`` and ``estream synth``."""

import time
from pathlib import Path
from typing import Annotated

import typer

from estream.cli.inspect import describe, order_of_experts
from estream.cli.output import print_json, progress, say
from estream.cli.quantization import largest_errors, outputs, print_layers
from estream.conversion import convert, synth
from estream.host.sizes import format_bytes
from estream.package.package import Package
from estream.quantization.summary import describe_conversion

Bits = Annotated[int, typer.Option("--bits", help="Bits of the experts' weights: 4 or 8. Attention and head have 8.")]
Group = Annotated[
    int | None,
    typer.Option(
        "--group",
        help=f"Weights that share a scale: 32, 64 or 128. By default that of a source whose codes can be kept, "
        f"else {convert.DEFAULT_GROUP}.",
        show_default=False,
    ),
]
DeviceName = Annotated[str, typer.Option("--device", help="The device that will run the package: cpu or qnn (an NPU).")]
Soc = Annotated[
    str | None,
    typer.Option(
        "--soc",
        help="Chips that a package for the NPU holds compiled graphs for, separated by commas; 'none' compiles at loading. "
        "By default all known chips.",
        show_default=False,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace a package that is there already.")]
Calibrate = Annotated[
    Path | None,
    typer.Option(
        "--calibrate",
        metavar="TEXT",
        help="Lay experts most used first by this text (or .npy file of token ids), and choose 4-bit codes for it.",
    ),
]
Report = Annotated[bool, typer.Option("--report", help="Print the error of each layer's weights and outputs.")]
RoutingSkew = Annotated[
    float,
    typer.Option(
        "--routing-skew",
        metavar="S",
        help="How unevenly experts are used. 0: evenly. 1: fitted to a trained model of 256 experts, 8 a token, of which "
        "130 tokens of a prompt use 40 % and 1,658 tokens 77 % in each layer.",
    ),
]
Layers = Annotated[
    int | None, typer.Option("--layers", metavar="N", help="Only the first N layers of the shape.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Destination = Annotated[Path, typer.Argument(metavar="DST", help="The package to write, by custom NAME.estream.")]


def convert_command(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A Hugging Face folder, a hub id (owner/name) or a .gguf file.")],
    destination: Destination,
    bits: Bits = convert.DEFAULT_BITS,
    group: Group = None,
    device: DeviceName = "cpu",
    soc: Soc = None,
    calibrate: Calibrate = None,
    report: Report = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Convert a checkpoint to a package, in bounded memory."""
    options = convert.ConvertOptions(bits, group, device, force, calibrate, socs(soc))
    begin = time.perf_counter()
    with progress("converting") as update:
        package = convert.convert(source, destination, options, update)
    _report(package, time.perf_counter() - begin, as_json)
    if report and not as_json and package.manifest.report:
        print_layers(package.manifest.report)


def synth_command(
    family: Annotated[str, typer.Argument(metavar="FAMILY", help=f"A published shape: {', '.join(synth.SHAPES)}.")],
    destination: Destination,
    bits: Bits = convert.DEFAULT_BITS,
    group: Group = None,
    device: DeviceName = "cpu",
    soc: Soc = None,
    routing_skew: RoutingSkew = 0.0,
    layers: Layers = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a package of a published shape with random weights, for benchmarks and capacity tests."""
    options = convert.ConvertOptions(bits, group, device, force, soc=socs(soc))
    variation = synth.Variation(routing_skew, layers)
    begin = time.perf_counter()
    with progress("writing") as update:
        package = synth.synthesize(family, destination, options, update, variation)
    _report(package, time.perf_counter() - begin, as_json)


def socs(text: str | None) -> tuple[str, ...] | None:
    """Parse ``--soc``: names of chips, an empty tuple for "none", None (all known chips) if the option is not given."""
    if text is None:
        return None
    return () if text == "none" else tuple(part.strip() for part in text.split(","))


def _report(package: Package, seconds: float, as_json: bool) -> None:
    if as_json:
        print_json(describe(package) | {"seconds": seconds})
        return
    say(
        f"{package.path}: {package.manifest.config.family}, {len(package.manifest.tape)} pages, "
        f"{format_bytes(package.bytes)}, written in {seconds:.1f} s"
    )
    if compression := package.manifest.source.get("compression"):
        say(f"the checkpoint is compressed ({compression})")
    stored = package.manifest.quantization
    say(f"experts {stored.expert_bits} bits, all else {stored.dense_bits}, in groups of {stored.group}")
    if package.manifest.use is not None:
        say(f"experts lie {order_of_experts(package.manifest)}")
    if (npu := package.manifest.npu) is not None:
        size = sum(file.stat().st_size for file in package.path.glob("contexts/*/*"))
        held = (
            f"compiled for {', '.join(npu.contexts)} ({format_bytes(size)})" if npu.contexts else "compiled when it is loaded"
        )
        say(f"one set of graphs for all layers and experts, {held}")
    cost = package.manifest.report
    for line in describe_conversion(package.manifest.source.get("conversion", {}), largest_errors(cost) if cost else {}):
        say(line)
    if cost:
        say(f"{describe(package)['bits_per_weight']:.2f} bits a weight{outputs(cost)}")
