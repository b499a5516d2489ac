"""``estream run``: read one prompt, print the likeliest next tokens and what it cost."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from estream.api.model import Model
from estream.api.result import SweepStats, TopToken
from estream.cli.options import LARGEST_SEED, MOST_REPETITIONS, MOST_TOP, Activations, Memory, Threads, memory_of
from estream.cli.output import doing, out, print_json, print_pairs, print_table
from estream.cli.prompt import Conversation, GivenPrompt, one_prompt
from estream.devices.qnn.target import refuse_times
from estream.engine.options import LoadOptions
from estream.engine.wanted import Prompt
from estream.errors import PackageError, PromptError
from estream.host.sizes import format_bytes
from estream.package.package import open_package
from estream.package.topics import prompt_ids


def run_command(
    path: Annotated[Path, typer.Argument(metavar="PKG", help="The package folder.")],
    prompt: Annotated[str | None, typer.Option("--prompt", help="The text to read.")] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option(
            "--prompt-file", help="A file with the text to read, - for standard input; one newline at its end is not read."
        ),
    ] = None,
    chat: Annotated[
        str | None, typer.Option("--chat", help="What a user says; the model's chat template makes the prompt of it.")
    ] = None,
    messages: Annotated[
        Path | None,
        typer.Option("--messages", help="A JSON file with a list of messages (role, content), - for standard input."),
    ] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", help="Read this many random token ids instead.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=LARGEST_SEED, help="Seed of the random ids.")] = 0,
    memory: Memory = None,
    threads: Threads = None,
    device: Annotated[str, typer.Option("--device", help="cpu, or qnn for the NPU.")] = "cpu",
    soc: Annotated[str | None, typer.Option("--soc", help="The chip whose NPU is used, such as sm8750.")] = None,
    activations: Activations = "int8",
    top: Annotated[int, typer.Option("--top", min=1, max=MOST_TOP, help="How many next tokens to print.")] = 5,
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat", min=1, max=MOST_REPETITIONS, help="Read the prompt again on the loaded model; the last counts."
        ),
    ] = 1,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write a timeline here (Chrome trace, Perfetto).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Read a prompt and print the likeliest next tokens, TTFT, peak memory, stall and bytes read."""
    options = LoadOptions(memory_of(memory), threads, device, activations, soc=soc)
    options.check()
    asked = GivenPrompt(prompt, prompt_file, chat, messages, tokens)
    asked.check()
    if trace:
        refuse_times("--trace", device)
    if trace and not trace.absolute().parent.is_dir():
        raise PackageError(f"{trace.absolute().parent}: no such folder to write a trace into")
    package = open_package(path, device)
    given = one_prompt(asked, package.manifest.config.context)
    with Model(package, options, doing(as_json)) as model:
        read = _for_model(given, model, seed)
        for _ in range(repeat - 1):
            model.prefill(read)
        with model.record() if trace else nullcontext() as timeline:
            result = model.prefill(read)
        best = model.top(result, top)
    if as_json:
        facts = result.stats.to_json()
        facts["top"] = [{"id": t.id, "token": t.token, "logprob": t.logprob} for t in best]
        print_json(facts)
    else:
        _print(best, result.stats)
    if timeline and trace:
        timeline.save(trace, result.stats.to_json())


def _for_model(given: str | Conversation | int, model: Model, seed: int) -> Prompt:
    if isinstance(given, Conversation):
        return model.render(given.messages, **given.variables)
    if isinstance(given, int):
        config = model.package.manifest.config
        # Checked before the ids are made, since a large number would not fit into memory.
        if given > config.context:
            raise PromptError(f"the prompt has {given} tokens, the model's context is {config.context}")
        return prompt_ids(model.package.manifest, given, seed)
    return given


def _print(best: list[TopToken], stats: SweepStats) -> None:
    words = ["" if token.token is None else repr(token.token) for token in best]
    chances = [(word, str(token.id), f"{np.exp(token.logprob):.4f}") for word, token in zip(words, best, strict=True)]
    print_table(("next token", "id", "probability"), chances, left=("next token",))
    speed = stats.bytes_read / stats.read_s if stats.read_s else 0.0
    how = "direct I/O" if stats.direct_io else "buffered: this file system has no direct I/O"
    where = f"on {stats.config['threads']} threads ({stats.config['kernels']})"
    rows = {
        "TTFT": f"{stats.ttft_s:.3f} s, {stats.prompt_tokens} tokens ({stats.prompt_tokens / stats.ttft_s:.0f} tokens/s)",
        "computing": f"{stats.compute_s:.3f} s {where if stats.device == 'cpu' else 'on ' + stats.config['kernels']}",
        "waiting": f"{stats.stall_s:.3f} s for pages",
    }
    if stats.emulated:
        rows = {"device": f"emulator of {stats.config['soc']}: right results, and no times, since they would not be the NPU's"}
    if stats.device == "qnn":
        rows["experts"] = (
            f"{stats.config['expert_rows']} rows in {stats.config['expert_calls']} calls; "
            f"{stats.config['expert_rows_for_nothing']:.1%} of the rows computed for nothing"
        )
    rows["read"] = f"{format_bytes(stats.bytes_read)} at {format_bytes(speed)}/s ({how})"
    rows["peak memory"] = f"{format_bytes(stats.peak_rss_bytes)} of a budget of {format_bytes(stats.budget_bytes)}"
    out.print()
    print_pairs("", rows)
