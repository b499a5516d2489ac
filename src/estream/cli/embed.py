"""``estream embed``: one vector for a text."""

from typing import Annotated, Any, cast

import typer

from estream.api.model import Model
from estream.cli.forms import form_of
from estream.cli.options import Activations, Memory, Threads
from estream.cli.output import say
from estream.cli.results import Target
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
from estream.package.package import open_package
from estream.services.embed import Embedder, EmbedOptions, Pooling
from estream.services.jobs import answer
from estream.text.segments import TextRule


def embed_command(
    path: Package,
    text: Text = None,
    given: Input = None,
    column: Column = "text",
    pooling: Annotated[
        str | None, typer.Option("--pooling", help="last or mean; else as the checkpoint says, or last.")
    ] = None,
    dimensions: Annotated[int | None, typer.Option("--dimensions", min=1, help="Keep so many of the first values.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="A text before each text.")] = None,
    prompt_name: Annotated[
        str | None, typer.Option("--prompt-name", help="Instead, one that the checkpoint names, such as query.")
    ] = None,
    form: Annotated[str | None, typer.Option("--format", help="jsonl, or npy: float32 [rows, dimensions].")] = None,
    output: Output = None,
    resume: Resume = False,
    allow_special: AllowSpecial = False,
    truncate: Truncate = False,
    memory: Memory = None,
    threads: Threads = None,
    device: Device = "cpu",
    activations: Activations = "int8",
    as_json: AsJson = False,
) -> None:
    """One vector of length 1 for each text."""
    one_of(text, given)
    chosen = cast("Pooling | None", pooling)
    options = EmbedOptions(chosen, dimensions, prompt, prompt_name, TextRule(allow_special, truncate))
    load = load_options(memory, threads, device, activations)
    if given is None:
        assert text is not None
        with Model(open_package(path, device), load) as model:
            result = answer(model, [Embedder(model, options).job(text, "the text")])[0]
        print_one(result) if as_json else say(" ".join(map(str, result.vector.tolist())))
        return
    target = Target(output, resume, form_of(output, form))
    settings = {"column": column, "options": repr(options)}

    def make(model: Model) -> tuple[Any, None]:
        embedder = Embedder(model, options)
        return lambda row: embedder.job(row.text(column), row.where), None

    run_rows(Work("embed", path, given, target, load, settings, as_json), make)
