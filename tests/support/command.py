"""Running the command line, in this process or in one of its own."""

import io
import logging
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from cgroup import estream_command

from estream.cli.main import main


def run(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Here, where everything is imported already. Its memory is that of all tests: small budgets need :func:`run_apart`."""
    out, err, log = io.StringIO(), io.StringIO(), logging.getLogger("estream")
    level = log.level
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["estream", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"))
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        finally:
            log.setLevel(level)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def run_apart(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """As a user does."""
    return subprocess.run(estream_command(*arguments), capture_output=True, text=True, check=False)
