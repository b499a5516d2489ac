"""``estream bench``: prefill speed at given prompt lengths, in the form of llama-bench."""

import csv
import io
import statistics
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from estream.api.model import Model
from estream.api.result import Prefill
from estream.cli import bench_prompts
from estream.cli.options import MOST_REPETITIONS, Activations, Memory, Threads, lengths_of, memory_of
from estream.cli.output import doing, err, print_json, say
from estream.devices.qnn.target import refuse_times
from estream.engine.options import LoadOptions
from estream.errors import OptionError
from estream.host.sizes import format_bytes
from estream.package.package import open_package


class Form(StrEnum):
    """The output formats."""

    MD = "md"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True)
class Row:
    """The means over the repetitions of one test. Times are in seconds, sizes in bytes, ``speed`` in tokens per second."""

    model: str
    size: int
    params: int
    backend: str
    threads: int
    test: str
    speed: float
    speed_deviation: float
    ttft_s: float
    stall_s: float
    bytes_read: int
    peak_rss_bytes: int
    budget_bytes: int
    direct_io: bool
    work_s: dict[str, float]


def bench_command(
    path: Annotated[Path, typer.Argument(metavar="PKG", help="The package folder.")],
    prompts: Annotated[
        str, typer.Option("-p", "--prompt-tokens", metavar="N,...", help="Prompt lengths, in tokens.")
    ] = "256,512,1024",
    repetitions: Annotated[
        int, typer.Option("-r", "--repetitions", min=1, max=MOST_REPETITIONS, help="Measured prompts of each length.")
    ] = 5,
    corpus: Annotated[Path | None, typer.Option("--corpus", metavar="FILE", help=bench_prompts.HELP)] = None,
    output: Annotated[Form, typer.Option("-o", "--output", help="How to print the rows.")] = Form.MD,
    memory: Memory = None,
    threads: Threads = None,
    device: Annotated[str, typer.Option("--device", help="cpu, or qnn for the NPU.")] = "cpu",
    activations: Activations = "int8",
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time goes, by kind of work.")] = False,
) -> None:
    """Time different prompts of random tokens, or of a text, on a loaded model, after one warm-up prompt of each length."""
    refuse_times("bench", device)
    options = LoadOptions(memory_of(memory), threads, device, activations)
    options.check()
    lengths = lengths_of("--prompt-tokens", prompts)
    package = open_package(path, device)
    _check_lengths(lengths, package.manifest.config.context)
    # Before loading, so that what the tokenizer takes is part of what the budget has left.
    prompts_of = bench_prompts.bench_prompts(package, corpus, max(lengths), repetitions + 1)
    with Model(package, options, doing(output is Form.JSON)) as model:
        rows = [_measure(model, prompts_of, tokens, repetitions) for tokens in lengths]
    if output is Form.JSON:
        print_json([asdict(row) for row in rows])
    elif output is Form.CSV:
        say(_csv(rows).rstrip())
    else:
        say(_table(rows))
        if profile:
            for row in rows:
                say("\n" + _profile(row))


def _check_lengths(lengths: list[int], context: int) -> None:
    # Before the ids are made, since a large number of them would not fit into memory.
    if max(lengths) > context:
        raise OptionError(f"--prompt-tokens: {max(lengths)} tokens, the model's context is {context}")


def _measure(model: Model, prompts: bench_prompts.Prompts, tokens: int, repetitions: int) -> Row:
    results: list[Prefill] = []
    work: list[dict[str, float]] = []
    for i in range(repetitions + 1):
        if err.is_terminal:
            err.print(f"pp{tokens}: {f'{i} of {repetitions}' if i else 'warming up'} ", end="\r")
        before = model.device_seconds()
        results.append(model.prefill(prompts(tokens, i)))
        work.append({kind: after - before[kind] for kind, after in model.device_seconds().items()})
    package = model.package
    stats = [result.stats for result in results[1:]]
    speeds = [tokens / s.ttft_s for s in stats]
    mean = {kind: statistics.fmean(w[kind] for w in work[1:]) for kind in work[0]}
    ttft, compute, stall = (statistics.fmean(getattr(s, name) for s in stats) for name in ("ttft_s", "compute_s", "stall_s"))
    mean |= {"in Python": compute - sum(mean.values()), "waiting for pages": stall, "between pages": ttft - compute - stall}
    return Row(
        model=package.path.name,
        size=package.bytes,
        params=package.weights,
        backend=f"{stats[0].device} ({stats[0].config['kernels']})",
        threads=stats[0].config["threads"],
        test=f"pp{tokens}",
        speed=statistics.fmean(speeds),
        speed_deviation=statistics.stdev(speeds) if len(speeds) > 1 else 0.0,
        ttft_s=ttft,
        stall_s=stall,
        bytes_read=round(statistics.fmean(s.bytes_read for s in stats)),
        peak_rss_bytes=max(s.peak_rss_bytes for s in stats),
        budget_bytes=stats[0].budget_bytes,
        direct_io=stats[0].direct_io,
        work_s=mean,
    )


def _markdown(head: list[str], rows: list[list[str]], right: int) -> str:
    """A Markdown table; columns from ``right`` on are numbers, aligned to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: list[str]) -> str:
        padded = [c.rjust(w) if i >= right else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "| " + " | ".join(padded) + " |"

    rule = "| " + " | ".join("-" * (w - 1) + (":" if i >= right else "-") for i, w in enumerate(widths)) + " |"
    return "\n".join([line(head), rule, *map(line, rows)])


def _table(rows: list[Row]) -> str:
    head = ["model", "size", "params", "backend", "threads", "test", "t/s", "TTFT s", "peak RSS", "read"]
    cells = [
        [
            row.model,
            format_bytes(row.size),
            f"{row.params / 1e9:.2f} B",
            row.backend,
            str(row.threads),
            row.test,
            f"{row.speed:.2f} ± {row.speed_deviation:.2f}",
            f"{row.ttft_s:.3f}",
            format_bytes(row.peak_rss_bytes),
            format_bytes(row.bytes_read) + ("" if row.direct_io else " buffered"),
        ]
        for row in rows
    ]
    return _markdown(head, cells, 6)


def _profile(row: Row) -> str:
    cells = [
        [kind, f"{seconds:.4f}", f"{seconds / row.ttft_s:.1%}"]
        for kind, seconds in sorted(row.work_s.items(), key=lambda item: -item[1])
        if seconds > 0
    ]
    return _markdown([row.test, "s", "share"], [*cells, ["TTFT", f"{row.ttft_s:.4f}", "100.0%"]], 1)


def _csv(rows: list[Row]) -> str:
    flat = [asdict(row) | {f"{kind} s": seconds for kind, seconds in row.work_s.items()} for row in rows]
    for row in flat:
        del row["work_s"]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()
