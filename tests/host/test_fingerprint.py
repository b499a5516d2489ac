"""Whether a checkpoint is still the one that a package was made from."""

import os
from pathlib import Path

import pytest

from estream.host import fingerprint
from estream.host.fingerprint import changed_file, take_fingerprint

SMALL, LARGE = 5000, (64 * 64 << 10) + 12345


@pytest.fixture(params=[0, SMALL, LARGE], ids=["empty", "small", "sampled"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "model.bin"
    path.write_bytes(bytes(request.param))
    return path


def later(path: Path) -> None:
    """Another time of change, whatever the clock's steps are."""
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 10**9))


def test_an_untouched_copied_or_gone_file_has_not_changed(file: Path):
    taken = take_fingerprint("folder", file.parent, [file])
    assert (taken["kind"], taken["name"], taken["folder"]) == ("folder", file.parent.name, str(file.parent))
    assert taken["files"]["model.bin"]["bytes"] == file.stat().st_size
    assert changed_file(taken) is None
    later(file)
    assert changed_file(taken) is None
    file.unlink()
    assert changed_file(taken) is None
    assert changed_file({"kind": "synthetic"}) is None


def test_other_bytes_or_another_length_are_a_change(file: Path):
    taken = take_fingerprint("folder", file.parent, [file])
    size = file.stat().st_size
    if size:
        # The first and the last byte are in a sample, whatever the size.
        for at in (0, size - 1):
            with open(file, "r+b") as handle:
                handle.seek(at)
                handle.write(b"x")
            later(file)
            assert changed_file(taken) == file
            with open(file, "r+b") as handle:
                handle.seek(at)
                handle.write(b"\0")
    with open(file, "ab") as handle:
        handle.write(b"x")
    assert changed_file(taken) == file


def test_only_samples_of_a_large_file_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "huge.bin"
    with open(file, "wb") as handle:
        handle.truncate(1 << 40)
    seen = []
    real = fingerprint._native.checksum
    monkeypatch.setattr(fingerprint._native, "checksum", lambda data: seen.append(data.size) or real(data))
    taken = take_fingerprint("folder", tmp_path, [file])
    assert seen == [4 << 20]
    assert changed_file(taken) is None


def test_what_is_no_file_any_more_has_changed_and_is_not_opened(file: Path):
    taken = take_fingerprint("folder", file.parent, [file])
    file.unlink()
    os.mkfifo(file)
    assert changed_file(taken) == file
    file.unlink()
    file.symlink_to("/dev/zero")
    assert changed_file(taken) == file


def test_files_in_folders_keep_their_path(tmp_path: Path):
    (tmp_path / "part").mkdir()
    inner = tmp_path / "part/a.bin"
    inner.write_bytes(b"a")
    taken = take_fingerprint("folder", tmp_path, [inner])
    assert list(taken["files"]) == ["part/a.bin"]
    inner.write_bytes(b"b")
    later(inner)
    assert changed_file(taken) == inner
