"""What the fuzzer of native calls reaches: a choice that it leaves out is never tried."""

import sys
from pathlib import Path
from random import Random

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT))
from fuzz.targets import native_calls


class Asked:
    """A reader that reads nothing and keeps what it was asked for."""

    def __init__(self) -> None:
        self.files: set[int] = set()
        self.ends: set[bool] = set()

    def submit(self, file: int, offset: int, address: int, length: int, pages: list[tuple[int, int, int, bool]]) -> int:
        self.files.add(file)
        self.ends |= {begin + size >= 1 << 64 for begin, size, _, _ in pages}
        return 0

    def gather(self, file: int, parts: list[tuple[int, int, int]]) -> int:
        self.files.add(file)
        return 0

    def wait(self, *_: object) -> None: ...

    is_published = cancel = direct = wait


def test_reads_of_files_that_are_not_there_and_of_pages_that_wrap_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls, asked = native_calls.Calls(tmp_path), Asked()
    monkeypatch.setattr(native_calls._native, "Reader", lambda *_: asked)
    rng = Random(1)
    for _ in range(300):
        calls._read(native_calls.Choices(rng.randbytes(80)))
    assert {-1, 0, 1, 2**31 - 1} <= asked.files
    assert asked.ends == {True, False}
