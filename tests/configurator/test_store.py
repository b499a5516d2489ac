"""Profiles of this machine are kept and found again, and nothing fails where they cannot be."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from simulated_machines import profile

import estream
from estream.configurator import store
from estream.configurator.profile import Profile, read_profile
from estream.configurator.upkeep import Run, Upkeep
from estream.package.package import Package

KEY = {"package": "x"}
WARNED = "this user has no home"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in ("ESTREAM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(store, "_unkept", {})
    store._say_no_folder.cache_clear()
    return monkeypatch


def test_the_folder_is_the_given_one_or_the_users(environment: pytest.MonkeyPatch, tmp_path: Path):
    assert store.folder() == tmp_path / ".cache/estream"
    environment.setenv("XDG_CACHE_HOME", "/caches")
    assert store.folder() == Path("/caches/estream")
    environment.setenv("ESTREAM_CACHE", "/mine")
    assert store.folder() == Path("/mine")


def test_a_user_without_a_home_keeps_nothing_and_is_told_once(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    environment.delenv("HOME")
    environment.setattr(os, "getuid", lambda: 987654)
    with caplog.at_level(logging.WARNING, "estream"):
        for _ in range(2):
            assert store.folder() is None
            assert store.path_of(KEY) is None
            assert store.keep(replace(profile(), key=KEY)) is None
            assert not store.keep_upkeep(KEY, Upkeep(unchanged=1))
            assert store.find_upkeep(KEY) == Upkeep()
    # This process goes on using it.
    assert store.find(KEY) == replace(profile(), key=KEY)
    assert [record.message.startswith(WARNED) for record in caplog.records] == [True]


def test_a_profile_is_kept_whole_and_found(environment: pytest.MonkeyPatch, tmp_path: Path):
    kept = replace(profile(), key=KEY)
    assert store.keep(kept) == store.path_of(KEY)
    assert store.find(KEY) == kept
    assert [path.suffix for path in store.folder().iterdir()] == [".json"]


def test_what_is_remembered_beside_it_survives_its_file(environment: pytest.MonkeyPatch):
    slower = replace(profile(), key=KEY, others=0.05)
    kept = Upkeep(Run(True, 3, 2, 1.0, 2.0), 5.0, 1, 7.0, 2, slower, 1)
    assert store.keep_upkeep(KEY, kept)
    assert store.find_upkeep(KEY) == kept
    assert store.find(KEY) is None


def test_a_folder_that_cannot_be_used_is_said(
    environment: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    environment.setenv("ESTREAM_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "estream"):
        assert store.keep(replace(profile(), key=KEY)) is None
        assert not store.keep_upkeep(KEY, Upkeep())
        assert store.find_upkeep(KEY) == Upkeep()
    assert "the profile cannot be kept" in caplog.text


def test_a_profile_that_a_disk_cut_short_leaves_nothing_behind(
    environment: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    environment.setattr(Path, "write_text", full)
    assert store.keep(replace(profile(), key=KEY)) is None
    assert list(store.folder().iterdir()) == []


def test_a_measured_profile_is_kept_and_found_again(demo_package: Package, tuned: Profile):
    again, now = estream.tune(demo_package.path)
    assert not now
    assert again == read_profile(store.path_of(tuned.key))
    _, forced = estream.tune(demo_package.path, force=True)
    assert forced


def test_a_damaged_profile_is_said_and_measured_again(demo_package: Package, tuned: Profile, caplog):
    path = store.path_of(tuned.key)
    path.write_text("{")
    _, now = estream.tune(demo_package.path)
    assert now
    assert str(path) in caplog.text


def test_other_threads_are_another_machine(demo_package: Package, tuned: Profile):
    other, now = estream.tune(demo_package.path, threads=1)
    assert now
    assert other.key["threads"] == 1
    assert store.path_of(other.key) != store.path_of(tuned.key)


def test_a_cache_that_cannot_be_written_is_said(demo_package: Package, monkeypatch, tmp_path: Path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ESTREAM_CACHE", str(tmp_path / "file"))
    _, now = estream.tune(demo_package.path)
    assert now
    assert "ESTREAM_CACHE" in caplog.text


def test_commands_that_look_for_no_profile_do_not_import_platformdirs():
    code = "import sys, estream; print('platformdirs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
