"""A ranking on standard output: its rows are in a temporary file until the last is known."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from estream.cli.results import Finish, Target
from estream.errors import OptionError


@contextmanager
def ranked_to_stdout(output: Path | None, resume: bool, finish_of: Callable[[Path | None], Finish]) -> Iterator[Target]:
    """The target of a ranking; without ``output`` it is printed at the end, without its keys.

    Raises:
        OptionError: there is nothing to resume.

    """
    if output is not None:
        yield Target(output, resume, finish_of(output))
        return
    if resume:
        raise OptionError("--resume needs --output")
    with tempfile.TemporaryDirectory(prefix="estream-") as folder:
        path = Path(folder) / "ranking.jsonl"
        yield Target(path, False, finish_of(path), temporary=True)
        sys.stdout.write(path.read_text("utf-8"))
