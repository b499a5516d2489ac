"""``estream report``: draw the timeline of a run."""

from pathlib import Path
from typing import Annotated

import typer

from estream.cli.output import print_json, say
from estream.errors import OptionError, PackageError
from estream.report.page import to_html
from estream.report.picture import to_png
from estream.report.trace import read_trace


def report_command(
    trace_file: Annotated[Path, typer.Argument(metavar="FILE", help="What 'estream run --trace FILE' wrote.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The picture: a .html page or a .png.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print where the time went as one JSON document.")] = False,
) -> None:
    """Draw the timeline of a run as a picture."""
    if output.suffix not in (".html", ".png"):
        raise OptionError(f"--output must end in .html or .png, not '{output.name}'")
    trace = read_trace(trace_file)
    if output.suffix == ".png":
        to_png(trace, trace_file.name, output)
    else:
        try:
            output.write_text(to_html(trace, trace_file.name), "utf-8")
        except OSError as error:
            raise PackageError(f"{output}: cannot be written ({error.strerror})") from error
    seconds = trace.seconds_by_kind()
    if as_json:
        print_json({"output": str(output), "ttft_s": trace.stats["ttft_s"], "seconds": seconds})
        return
    say(f"{output}: " + ", ".join(f"{kind} {value:.3f} s" for kind, value in seconds.items()))
