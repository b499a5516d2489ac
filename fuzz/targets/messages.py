"""A file of messages, as ``estream run --messages`` reads it; the command line's own promises hold too."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random

from estream.cli.main import main
from fuzz import fixtures
from fuzz.harness import FoundError, Run, Target
from fuzz.mutate import mutate_json


def _prepare(folder: Path) -> Run:
    package = fixtures.make_package(folder)
    file = folder / "messages.json"

    def run(data: bytes) -> None:
        file.write_bytes(data)
        sys.argv = ["estream", "run", str(package), "--memory", fixtures.MEMORY, "--threads", "1", "--json"]
        sys.argv += ["--messages", str(file)]
        out, err = io.StringIO(), io.StringIO()
        status: object = 0
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                status = end.code or 0
        _check(status, out.getvalue(), err.getvalue())

    return run


def _check(status: object, out: str, err: str) -> None:
    if status == 0:
        json.loads(out)
        return
    if status not in (1, 2):
        raise FoundError(f"exit status: {status}")
    if "Traceback" in err or "is a bug" in err:
        raise FoundError(f"bug in the command line {err.strip()[-300:]}")
    if len(err.strip().splitlines()) != 1:
        raise FoundError(f"not one line of error: {err[:300]!r}")


def _mutate(data: bytes, rng: Random) -> bytes:
    return mutate_json(data, rng)


def _seeds() -> dict[str, bytes]:
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "hello"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}], "reasoning": "b"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    return {
        "list.json": json.dumps(messages).encode(),
        "object.json": json.dumps({"messages": parts, "tools": tools, "enable_thinking": False}).encode(),
    }


TARGET = Target("messages", ".json", _prepare, _mutate, _seeds)
