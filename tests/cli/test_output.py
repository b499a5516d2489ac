"""What commands show while something takes long."""

import io

import pytest
from rich.console import Console
from rich.progress import Task, TaskID

from estream.cli import output


def _shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, quiet: bool) -> str:
    text = io.StringIO()
    monkeypatch.setattr(output, "err", Console(file=text, force_terminal=terminal, width=100))
    with output.doing(quiet)("measuring this machine for a.estream, once", 8.0):
        pass
    return text.getvalue()


def test_what_takes_long_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch):
    assert "measuring this machine for a.estream, once: 0 of 8 s" in _shown(monkeypatch, terminal=True, quiet=False)
    assert _shown(monkeypatch, terminal=True, quiet=True) == ""
    assert _shown(monkeypatch, terminal=False, quiet=False) == ""


@pytest.mark.parametrize(
    ("elapsed", "total", "words"), [(3.7, 8.0, "a\\x1b: 3 of 8 s"), (9.2, 8.0, "a\\x1b: 9 s"), (2.0, None, "a\\x1b: 2 s")]
)
def test_seconds_are_counted_beyond_what_was_expected(elapsed: float, total: float | None, words: str):
    task = Task(TaskID(0), "a\x1b", total, 0, _get_time=lambda: elapsed)
    task.start_time = 0.0
    assert output._Seconds().render(task).plain == words
