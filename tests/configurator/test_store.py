"""Profiles of this machine are kept and found again."""

from pathlib import Path

import estream
from estream.configurator import store
from estream.configurator.profile import Profile, read_profile
from estream.package.package import Package


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
