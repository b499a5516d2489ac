"""The command ``estream``: exit status 0 for success, 2 for wrong usage, 1 for failure, with one line that says why."""

import logging
import os
import sys
from typing import Annotated

import typer

import estream
from estream.cli import bench, convert, doctor, inspect, plan, report, run
from estream.errors import EstreamError, OptionError

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
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


app.command("convert")(convert.convert_command)
app.command("synth")(convert.synth_command)
app.command("inspect")(inspect.inspect_command)
app.command("verify")(inspect.verify_command)
app.command("run")(run.run_command)
app.command("plan")(plan.plan_command)
app.command("tune")(plan.tune_command)
app.command("bench")(bench.bench_command)
app.command("report")(report.report_command)
app.command("doctor")(doctor.doctor_command)


def main() -> None:
    """Run the command line; the entry point of the console script."""
    logging.basicConfig(format="estream: %(message)s", level=logging.WARNING)
    logging.getLogger("estream").setLevel(logging.INFO)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OptionError as error:
        _fail(str(error), 2)
    except (EstreamError, MemoryError) as error:
        _fail(str(error) or "out of memory", 1)
    except BrokenPipeError:
        # Nothing reads our output any more. /dev/null takes the rest, so that the flush at exit does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (OSError, UnicodeError) as error:
        _fail(f"{getattr(error, 'filename', None) or 'output'}: {getattr(error, 'strerror', None) or error}", 1)


def _fail(message: str, status: int) -> None:
    print(f"estream: error: {message}", file=sys.stderr)
    sys.exit(status)
