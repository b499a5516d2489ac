"""The commands and what is common to them: their options are parsed, wrong usage is said in one line."""

import logging
import sys
from typing import Annotated, Any

import typer

import estream
from estream.cli import bench, classify, convert, doctor, embed, inspect, plan, report, rerank, score
from estream.cli import run as reading
from estream.cli.guard import Debug
from estream.errors import OptionError

_WRONG_USAGE = 2
#: What the parser raises for wrong usage.
_UsageError: Any = typer.BadParameter.__mro__[1]

app = typer.Typer(
    help="Prefill of Mixture-of-Experts models many times larger than the memory it may use.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"estream {estream.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    Debug.on = debug


app.command("convert")(convert.convert_command)
app.command("synth")(convert.synth_command)
app.command("inspect")(inspect.inspect_command)
app.command("verify")(inspect.verify_command)
app.command("run")(reading.run_command)
app.command("score")(score.score_command)
app.command("classify")(classify.classify_command)
app.command("rerank")(rerank.rerank_command)
app.command("embed")(embed.embed_command)
app.command("plan")(plan.plan_command)
app.command("tune")(plan.tune_command)
app.command("bench")(bench.bench_command)
app.command("report")(report.report_command)
app.command("doctor")(doctor.doctor_command)


def run() -> int:
    """Parse the options and run a command; returns the exit status."""
    logging.basicConfig(format="estream: %(message)s", level=logging.WARNING)
    logging.getLogger("estream").setLevel(logging.INFO)
    try:
        status = app(standalone_mode=False)
    except _UsageError as error:
        # Help is asked for by giving no arguments at all.
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
            return _WRONG_USAGE
        raise OptionError(_one_line(error)) from error
    return status if isinstance(status, int) else 0


def _one_line(error: Any) -> str:
    context = error.ctx
    where = f"; 'estream {context.info_name} --help' tells more" if context is not None and context.parent else ""
    return str(error.format_message()).rstrip(".") + where
