"""``python -m fuzz --minutes 30 [TARGET ...]``: runs the fuzzers one after another and prints what they found.

With atheris they are guided by coverage, without it they change inputs at random. What hangs or ends a process is found here.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.harness import CRASHES, FUZZ, Finding, keep
from fuzz.targets import NAMES, load_target

_WORK = FUZZ / "work"


@dataclass
class Row:
    """A target in the table."""

    target: str
    inputs: int = 0
    minutes: float = 0.0
    findings: dict[str, str] = field(default_factory=dict)


def _command(name: str, seconds: float, seed: int, guided: bool, folder: Path) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "fuzz.guided" if guided else "fuzz.worker",
        name,
        "--seconds",
        str(seconds),
        "--seed",
        str(seed),
    ]
    command += ["--folder", str(folder)]
    return [*command, "--atheris", "--found", str(_WORK / name)] if guided else command


def _one_process(row: Row, seconds: float, seed: int, guided: bool) -> None:
    """Until its time is over, or an input ends it."""
    with tempfile.TemporaryDirectory() as top:
        folder, errors = Path(top) / "run", Path(top) / "errors"
        with open(errors, "wb") as file:
            command = _command(row.target, seconds, seed, guided, folder)
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, cwd=FUZZ.parent)
            assert process.stdout is not None
            for line in process.stdout:
                _hear(row, line)
            process.wait()
        tail = errors.read_text("utf-8", "replace")[-6000:]
        count = folder / "count"
        row.inputs += int(count.read_text() or 0) if count.exists() else 0
        current = folder / "current"
        if process.returncode and current.exists():
            kind = "hang" if "Timeout (" in tail else "death"
            place = _place(tail)
            found = Finding(kind, place, f"{kind} (exit {process.returncode}): {place[:200]}", tail)
            row.findings[found.message] = str(keep(load_target(row.target), current.read_bytes(), found))
        elif process.returncode:
            row.findings[f"the worker failed: {tail[-500:]}"] = "-"
            time.sleep(1)


def _place(errors: str) -> str:
    """The innermost line of Python, as faulthandler says it, in estream or else in a target."""
    lines = [line.strip() for line in errors.splitlines() if line.strip().startswith('File "')]
    for part in ("src/estream/", "site-packages/estream/", "fuzz/targets/"):
        for line in lines:
            if part in line:
                return line[line.index(part) + len(part) :]
    return errors[-200:]


def _hear(row: Row, line: str) -> None:
    try:
        said = json.loads(line)
    except ValueError:
        return
    if "finding" in said:
        row.findings[said["finding"]] = said["kept"]
        print(f"{row.target}: {said['finding'][:200]}", flush=True)


def _fuzz(name: str, seconds: float, seed: int, guided: bool) -> Row:
    row, begin = Row(name), time.monotonic()
    while (left := seconds - (time.monotonic() - begin)) > 1:
        # A quarter of the time at random, which is faster and follows no path.
        plain = not guided or left > 0.75 * seconds
        _one_process(row, max(1.0, left - 0.75 * seconds) if guided and plain else left, seed, not plain)
        seed += 1
    row.minutes = (time.monotonic() - begin) / 60
    return row


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"some of {', '.join(NAMES)}; all by default")
    parser.add_argument("--minutes", type=float, default=30.0, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if unknown := set(options.targets) - set(NAMES):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    guided = importlib.util.find_spec("atheris") is not None
    print(f"{'guided by coverage' if guided else 'at random, since atheris is not installed'}", flush=True)
    rows = []
    for name in options.targets or NAMES:
        rows.append(_fuzz(name, options.minutes * 60, options.seed, guided))
        print(f"{name}: {rows[-1].inputs} inputs, {len(rows[-1].findings)} findings", flush=True)
    print("\n| target | minutes | inputs | findings |\n| --- | --- | --- | --- |")
    for row in rows:
        print(f"| {row.target} | {row.minutes:.1f} | {row.inputs} | {len(row.findings)} |")
    for row in rows:
        for message, path in row.findings.items():
            print(f"\n{row.target}: {path}\n  {message}")
    if any(row.findings for row in rows):
        print(f"\nIts input and traceback of each finding: {CRASHES}")
        sys.exit(1)


if __name__ == "__main__":
    main()
