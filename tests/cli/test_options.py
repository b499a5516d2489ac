"""Numbers and sizes among the options: out of range they are refused by name."""

import pytest
from command import run

from estream.package.package import Package

LONG = "9" * 400
WRONG = [
    *(("run", option, text) for option in ("--memory",) for text in (LONG, "1e999", "nan", "inf", "-1", "0", "", "1 parsec")),
    *(("run", option, text) for option in ("--threads", "--top", "--repeat") for text in (LONG, "0", "-1", "nan", "1e3")),
    *(("run", "--seed", text) for text in (LONG, "-1")),
    *(("plan", option, LONG) for option in ("--memory", "--request", "--ring", "--pinned", "--lanes", "--prompt-tokens")),
    *(("plan", "--prompt-tokens", text) for text in ("²", "1,", "-4", "0", "1e3", "9" * 5000)),
    *(("bench", "-p", text) for text in (LONG, "²", "99999999")),
    ("bench", "-r", LONG),
    ("tune", "--memory", LONG),
    ("tune", "--threads", "0"),
]


@pytest.mark.parametrize(("command", "option", "text"), WRONG, ids=lambda word: word[:12])
def test_a_number_out_of_range_is_refused_by_name(command: str, option: str, text: str, demo_package: Package):
    more = ["--tokens", "3"] if command == "run" else []
    result = run(command, demo_package.path, *more, option, text)
    assert result.returncode == (1 if (option, text) == ("--memory", LONG) else 2)
    assert len(result.stderr.splitlines()) == 1
    assert len(result.stderr) < 1000
    assert {"-p": "--prompt-tokens", "-r": "--repetitions"}.get(option, option) in result.stderr
