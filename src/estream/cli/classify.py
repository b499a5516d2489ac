"""``estream classify``: which label follows a text."""

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from estream.api.model import Model
from estream.cli.forms import form_of
from estream.cli.options import Activations, Memory, Threads, clipped
from estream.cli.output import print_table, say
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
from estream.errors import OptionError
from estream.host.regular_file import read_regular
from estream.host.sizes import MiB
from estream.package.package import open_package
from estream.services.classify import Classification, Classifier, ClassifyOptions, Normalise
from estream.services.jobs import answer
from estream.text.segments import TextRule

#: Bytes of a file of labels or of a template.
LARGEST_FILE = 16 * MiB


def classify_command(
    path: Package,
    text: Text = None,
    labels: Annotated[str | None, typer.Option("--labels", help="Labels, separated by commas.")] = None,
    labels_file: Annotated[Path | None, typer.Option("--labels-file", help="A file with a label on each line.")] = None,
    label_token_ids: Annotated[
        str | None, typer.Option("--label-token-ids", help="Instead of labels, token ids separated by commas.")
    ] = None,
    template: Annotated[
        str | None, typer.Option("--template", help="The prompt, with {text} and, where wanted, {labels}.")
    ] = None,
    template_file: Annotated[Path | None, typer.Option("--template-file", help="A file with the template.")] = None,
    normalise: Annotated[str, typer.Option("--normalise", help="sum, mean (by token) or bytes.")] = "sum",
    prior: Annotated[bool, typer.Option("--prior", help="Less what a label gets without a text.")] = False,
    neutral: Annotated[str | None, typer.Option("--neutral", help="With --prior, the text that says nothing.")] = None,
    given: Input = None,
    column: Column = "text",
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
    """Tell which label follows each text, and how likely each is among the labels."""
    one_of(text, given)
    if neutral is not None and not prior:
        raise OptionError("--neutral needs --prior")
    options = ClassifyOptions(
        _labels(labels, labels_file),
        _ids(label_token_ids),
        _template(template, template_file),
        cast("Normalise", normalise),
        neutral if neutral is not None else prior,
        TextRule(allow_special, truncate),
    )
    load = load_options(memory, threads, device, activations)
    if given is None:
        assert text is not None
        with Model(open_package(path, device), load) as model:
            classifier = Classifier(model, options)
            if (before := classifier.prior_job()) is not None:
                answer(model, [before])
            result = answer(model, [classifier.job(text, "the text")])[0]
        print_one(result) if as_json else _print(result)
        return
    target = Target(output, resume, form_of(output))
    settings = {"column": column, "options": repr(options)}

    def make(model: Model) -> tuple[Any, Any]:
        classifier = Classifier(model, options)
        return lambda row: classifier.job(row.text(column), row.where), classifier.prior_job()

    run_rows(Work("classify", path, given, target, load, settings, as_json), make)


def _labels(given: str | None, file: Path | None) -> tuple[str, ...]:
    if given is not None and file is not None:
        raise OptionError("give one of --labels and --labels-file")
    if file is not None:
        found = [line for line in _file("--labels-file", file).splitlines() if line.strip()]
        if not found:
            raise OptionError(f"--labels-file: {file}: has no label")
        return tuple(found)
    if given is None:
        return ()
    found = given.split(",")
    if not all(found):
        raise OptionError(f"--labels must be texts separated by commas, none empty, not '{clipped(given)}'")
    return tuple(found)


def _ids(given: str | None) -> tuple[int, ...]:
    if given is None:
        return ()
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise OptionError(f"--label-token-ids must be whole numbers separated by commas, not '{clipped(given)}'")
    return tuple(map(int, parts))


def _template(given: str | None, file: Path | None) -> str:
    if given is not None and file is not None:
        raise OptionError("give one of --template and --template-file")
    if file is not None:
        # Editors add a newline at the end of a file.
        return _file("--template-file", file).removesuffix("\n")
    return "{text}" if given is None else given


def _file(option: str, path: Path) -> str:
    try:
        return read_regular(path, LARGEST_FILE).decode("utf-8")
    except OSError as error:
        raise OptionError(f"{option}: {path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"{option}: {path}: not UTF-8 text ({error.reason} at byte {error.start})") from error


def _print(result: Classification) -> None:
    best = sorted(result.labels, key=lambda each: -each.probability)[:20]
    rows = [(each.label, f"{each.probability:.4f}", f"{each.logprob:.4f}") for each in best]
    print_table(("label", "probability", "log-probability"), rows, left=("label",))
    say(f"\n{result.outside:.4f} of the probability is outside all labels")
    if result.truncated_tokens:
        say(f"shortened by {result.truncated_tokens} tokens")
