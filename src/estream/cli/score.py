"""``estream score``: log-probabilities of texts, or of continuations."""

from typing import Annotated, Any

import typer

from estream.api.model import Model
from estream.cli.forms import form_of
from estream.cli.options import Activations, Memory, Threads
from estream.cli.output import print_table, say
from estream.cli.results import Target
from estream.cli.rows import Row
from estream.cli.services import (
    AllowSpecial,
    AsJson,
    Column,
    Device,
    Input,
    Output,
    Package,
    Resume,
    Text,
    Truncate,
    Work,
    load_options,
    one_of,
    print_one,
    run_rows,
)
from estream.errors import OptionError
from estream.package.package import open_package
from estream.services.jobs import Job
from estream.services.score import Score, ScoreOptions, score_job
from estream.text.segments import TextRule


def score_command(
    path: Package,
    text: Text = None,
    continuation: Annotated[str | None, typer.Option("--continuation", help="Score this behind --text.")] = None,
    given: Input = None,
    column: Column = "text",
    output: Output = None,
    resume: Resume = False,
    greedy: Annotated[bool, typer.Option("--greedy", help="Also tell whether each token was the likeliest.")] = False,
    allow_special: AllowSpecial = False,
    truncate: Truncate = False,
    memory: Memory = None,
    threads: Threads = None,
    device: Device = "cpu",
    activations: Activations = "int8",
    as_json: AsJson = False,
) -> None:
    """Log-probabilities of each text's tokens; of rows with "context" and "continuation", of the continuation's."""
    one_of(text, given)
    if continuation is not None and text is None:
        raise OptionError("--continuation needs --text, the context; rows have both as columns")
    load = load_options(memory, threads, device, activations)
    options = ScoreOptions(TextRule(allow_special, truncate), greedy)
    if given is None:
        assert text is not None
        with Model(open_package(path, device), load) as model:
            asked = text if continuation is None else (text, continuation)
            result = model.score(asked, greedy=greedy, allow_special=allow_special, truncate=truncate)
        print_one(result) if as_json else _print(result)
        return
    target = Target(output, resume, form_of(output))
    settings: dict[str, Any] = {"column": column, "greedy": greedy, "allow_special": allow_special, "truncate": truncate}

    def make(model: Model) -> tuple[Any, None]:
        def job(row: Row) -> Job[Score]:
            if column not in row.values and "continuation" in row.values:
                return score_job(model, (row.text("context"), row.text("continuation")), options, row.where)
            return score_job(model, row.text(column), options, row.where)

        return job, None

    run_rows(Work("score", path, given, target, load, settings, as_json), make)


def _print(result: Score) -> None:
    rows = [(repr(each.token), str(each.id), "" if each.logprob is None else f"{each.logprob:.4f}") for each in result.tokens]
    print_table(("token", "id", "log-probability"), rows, left=("token",))
    average = "" if result.logprob_per_token is None else f", {result.logprob_per_token:.4f} a token"
    byte = "" if result.logprob_per_byte is None else f", {result.logprob_per_byte:.4f} a byte"
    say(f"\nsum {result.logprob:.4f}{average}{byte}")
    if result.truncated_tokens:
        say(f"shortened by {result.truncated_tokens} tokens")
